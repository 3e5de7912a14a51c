"""`Shown`: a record in which each broker shows the others something of itself, and what the others show."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from engine.errors import EngineError
from engine.metadata import keys
from engine.metadata.store import OutcomeUnknownError

if TYPE_CHECKING:
    from engine.control.base.brokers import Brokers
    from engine.metadata.store import MetadataStore

log = logging.getLogger(__name__)

T = TypeVar("T")


class Shown(Generic[T]):
    """Records of one kind, below `prefix` by the broker's URL; each goes with its broker's session. Loop thread only.

    `about`: what the others do not know where it cannot be written, for the log.
    """

    def __init__(self, metadata: MetadataStore, brokers: Brokers, prefix: str, kind: type[T], about: str) -> None:
        self._metadata = metadata
        self._brokers = brokers
        self._prefix = prefix
        self._kind = kind
        self._about = about
        self._value: T | None = None
        self._nothing = kind()

    async def show(self, value: T, same: Callable[[T, T], bool] = lambda one, other: one == other) -> None:
        """Write it, where it is not the `same` as what was written last; a failure is logged."""
        if same(value, self._nothing if self._value is None else self._value):
            return
        try:
            session = await self._brokers.session()
            await self._metadata.put(self._own, msgspec.json.encode(value), session=session)
            self._value = value
        except (EngineError, OutcomeUnknownError) as e:
            log.warning("the other brokers do not know %s: %s", self._about, e)

    async def others(self) -> list[T]:
        """What the other brokers show. A record that cannot be read shows nothing."""
        found: list[T] = []
        own, mine = self._own, False
        for record in await self._metadata.mirror.list(self._prefix, keys.prefix_end(self._prefix)):
            if record.key == own:
                mine = True
                continue
            try:
                found.append(msgspec.json.decode(record.value, type=self._kind))
            except msgspec.MsgspecError as e:
                log.warning("the record %s in the metadata store is ignored: %s", record.key, e)
        if not mine:
            self._value = None  # it went with a session that was lost: it is said again
        return found

    @property
    def _own(self) -> str:
        return keys.shown(self._prefix, self._brokers.url)
