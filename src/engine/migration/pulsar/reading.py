"""`Source`: one topic or partition of Apache Pulsar, read in order, and read on where a connection was lost.

It is read as readers do, by a subscription that is not stored. An entry comes whole, so its messages up to the place
where reading begins are passed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from engine._native.format.entry import Entry, EntryMessage
from engine._native.format.heads import entry_heads
from engine.errors import ConnectError, EngineError, NotFoundError, TimeoutError, UnsupportedError
from engine.migration.pulsar.connection import Connection, Service
from engine.migration.pulsar.places import NOWHERE, Place
from engine.pulsar.payloads import published

PERMITS = 2_000
_CONSUMER = 1
_EXCLUSIVE = 0
_NONE = 2**64 - 1
_WORD = 64
_ATTEMPTS_MAX = 8  # one after the other without a message
_VERSIONS_MAX = 4096  # that are asked for; fewer can be stored
_PAUSE_S, _PAUSE_S_MAX = 0.1, 5.0

Read = tuple[Place, EntryMessage]


async def partitions_of(service: Service, topic: str) -> int:
    """How many a topic has; 0: it is one itself, or there is none."""
    connection = await service.connect()
    try:
        return int((await connection.ask("partitioned", topic=topic)).partitions)
    finally:
        await connection.close()


class Source:
    """One topic or partition. `optional`: one that is not there is empty."""

    def __init__(self, service: Service, topic: str, *, optional: bool = False) -> None:
        self.topic = topic
        self._service = service
        self._optional = optional
        self.versions: Sequence[int | None] = ()  # of its schema, as the copy has them: of version_in()

    async def last(self) -> Place | None:
        """The place of its last message; None: it is empty. Raises NotFoundError."""
        try:
            connection = await self._attach(NOWHERE)
        except NotFoundError:
            if self._optional:
                return None
            raise
        try:
            said = await connection.ask("get_last_message_id", consumer=_CONSUMER)
        finally:
            await connection.close()
        found = said.last
        if found.entry >= 1 << 63 or found.ledger >= 1 << 63:
            return None
        return Place(found.ledger, found.entry, max(found.batch_index, 0) if found.HasField("batch_index") else 0)

    async def schemas(self) -> list[Any]:
        """All versions, in order; None: that one was deleted. Raises UnsupportedError where there are too many."""
        found: list[Any] = []
        connection = await self._service.connect_to(self.topic)
        try:
            newest = await self._schema(connection, b"")
            count = 0 if newest is None else 1 + int.from_bytes(newest.version, "big")
            if count > _VERSIONS_MAX:
                raise UnsupportedError(
                    f"{self.topic} must have at most {_VERSIONS_MAX:,} versions of its schema, got {count:,}"
                )
            while len(found) < count:
                answer = await self._schema(connection, len(found).to_bytes(8, "big"))
                found.append(None if answer is None else answer.schema)
            return found
        finally:
            await connection.close()

    async def _schema(self, connection: Connection, version: bytes) -> Any:
        """The answer; without a version, of the newest one. None: there is none."""
        try:
            return await connection.ask("get_schema", topic=self.topic, **({"version": version} if version else {}))
        except NotFoundError:
            return None

    async def messages(self, behind: Place, end: Place) -> AsyncIterator[list[Read]]:
        """All messages behind a place up to another, by entries.

        Raises ConnectError; TimeoutError: the end does not come; UnsupportedError, MessageTooLargeError and
        CorruptionError with the place of a message that cannot be copied.
        """
        failures = 0
        while True:
            try:
                async for entry, messages in self._entries(behind):
                    failures = 0
                    found = [(place, message) for place, message in messages if behind < place <= end]
                    behind = max(behind, Place(*entry, -1), *(place for place, _ in messages))
                    if found:
                        yield found
                    if entry >= (end.ledger, end.entry):
                        return
            except ConnectError:
                failures += 1
                if failures >= _ATTEMPTS_MAX:
                    raise
                await asyncio.sleep(min(_PAUSE_S * 2**failures, _PAUSE_S_MAX))
            except TimeoutError as e:
                raise TimeoutError(f"{self.topic} has messages up to {end}, but sends none behind {behind}: {e}") from e

    async def _attach(self, behind: Place) -> Connection:
        """A connection with a consumer on it, which has no permits yet."""
        connection = await self._service.connect_to(self.topic)
        # An entry that is named by an index is sent as a whole.
        start = {"ledger": behind.ledger % 2**64, "entry": max(behind.entry, 0) if behind.ledger >= 0 else _NONE}
        if behind.ledger >= 0:
            start["batch_index"] = 0
        name = f"engine-migrate-{id(connection):x}"
        said = {"topic": self.topic, "subscription": name, "type": _EXCLUSIVE, "consumer": _CONSUMER, "name": name}
        try:
            await connection.ask("subscribe", "success", **said, durable=False, start=start, create=False,
                                 initial_position=1)  # fmt: skip
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _entries(self, behind: Place) -> AsyncIterator[tuple[tuple[int, int], list[Read]]]:
        connection = await self._attach(behind)
        try:
            await connection.say("flow", consumer=_CONSUMER, permits=PERMITS)
            taken = 0
            while True:
                name, header, payload = await connection.hear()
                if name == "close_consumer":
                    raise ConnectError(f"{connection.address} has {self.topic} no longer")
                if name != "message":
                    continue
                found = header.message_id
                messages = self._read(header, payload)
                yield (found.ledger, found.entry), messages
                taken += max(len(messages), 1)
                if taken >= PERMITS // 2:
                    await connection.say("flow", consumer=_CONSUMER, permits=taken)
                    taken = 0
        finally:
            await connection.close()

    def _read(self, header: Any, payload: memoryview) -> list[Read]:
        """The messages of an entry."""
        at = header.message_id
        try:
            made = published(payload, b"migrate", -1, compress=False, versions=self.versions)
        except EngineError as e:
            raise type(e)(f"the message {at.ledger}:{at.entry} of {self.topic} cannot be copied: {e}") from e
        entries = memoryview(made.entries)
        messages = [m for head in entry_heads(entries) for m in Entry(entries[head.start : head.stop]).messages()]
        words = header.ack_set  # without a bit: is not due
        return [
            (Place(at.ledger, at.entry, index), message)
            for index, message in enumerate(messages)
            if not words or (index // _WORD < len(words) and words[index // _WORD] >> index % _WORD & 1)
        ]
