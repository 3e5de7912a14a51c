"""Writer schemas: nothing is received before the schemas of everything queued are known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from engine._native.consume.opening import first_value
from engine._native.format.entry import Entry
from engine.client.consume.opening import opener
from engine.client.topic.declaring import learn
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine.client.consume.receiver import Receiver


class Writers:
    """Finds unknown schemas in what arrives for one consumer. Loop thread only."""

    def __init__(self, receiver: Receiver[Any]) -> None:
        self._receiver = receiver
        self._decompress = opener(receiver.options)

    def check(self, entries: Iterable[Entry]) -> None:
        """All messages of an entry have one schema. A compressed entry is decompressed again when it is received."""
        receiver = self._receiver
        values = (first_value(entry, self._decompress) for entry in entries)
        if unread := sum(receiver.options.schema.unknown(value) for value in values if value is not None):
            if not receiver.unread:
                receiver.pool.tasks.spawn(self._learn(), name=f"schemas of {receiver.topic}")
            receiver.unread += unread

    async def _learn(self) -> None:
        """A schema unknown even then is none of the topic's: reading the value raises SchemaError."""
        receiver = self._receiver
        try:
            while unread := receiver.unread:
                await learn(receiver.session, receiver.options.schema)
                receiver.unread -= unread
        except EngineError as e:
            receiver.unread = 0
            receiver.fail(e)
        receiver.schemas_came()
