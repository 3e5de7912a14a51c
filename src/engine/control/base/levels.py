"""`Levels`: what the builds of a cluster have in common, so that it can be upgraded broker by broker.

A *level* names what brokers may write: formats of records, of files and objects, commands among brokers. A build works
at the levels SUPPORTED; whatever it writes is of the cluster's level, which is a record, and never goes down. A broker
says in its own record at which levels it works, and then looks whether the cluster is at one of them, else it does not
join. When all brokers work at a higher level, one of them raises it:

    announce   the record says which level is next     a broker that does not work at it joins no more
    look       at all brokers, once more               one may have joined before it could see the announcement
    raise      or withdraw, when one does not work at the next level

Both writes are compare-and-sets, so that it does not matter which brokers try, or where one of them stops.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import NamedTuple

from engine.control.base.brokers import BrokerRecord, Brokers
from engine.errors import CorruptionError, EngineError, UnsupportedError
from engine.metadata import keys
from engine.metadata.store import ABSENT, ConflictError, MetadataStore, OutcomeUnknownError, Record

SUPPORTED = (1, 1)  # the lowest and the highest level at which this build works
LOOK_AGAIN_S = 10.0

log = logging.getLogger(__name__)


class Level(NamedTuple):
    """The record. `next`: the level that is announced."""

    level: int
    next: int | None = None

    def to_json(self) -> bytes:
        """See docs/formats/metadata.md."""
        return json.dumps({"level": self.level} | ({} if self.next is None else {"next": self.next})).encode()

    @staticmethod
    def of(record: Record) -> Level:
        """Undo to_json(). Raises CorruptionError."""
        try:
            facts = json.loads(record.value)
            found = Level(facts["level"], facts.get("next"))
            if all(type(level) is int for level in found.named):
                return found
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise CorruptionError(f"{record.key}: the level of the cluster must be JSON with a level: {e!r}") from e
        raise CorruptionError(f"{record.key}: levels must be integers, got {found!r}")

    @property
    def named(self) -> tuple[int, ...]:
        """The cluster's level, and the announced one."""
        return (self.level,) if self.next is None else (self.level, self.next)

    def refused_by(self, lowest: int, highest: int) -> int | None:
        """The first of its levels at which a build that works at `lowest` to `highest` does not work."""
        return next((level for level in self.named if not lowest <= level <= highest), None)


class Levels:
    """Loop thread only. `supported`: the lowest and the highest level of this build."""

    def __init__(
        self, metadata: MetadataStore, brokers: Brokers, *, version: str, supported: tuple[int, int] | None = None
    ) -> None:
        """Has `brokers` register only where this build may join. `supported`: SUPPORTED, unless a test says another."""
        self._metadata = metadata
        self._lowest, self._highest = supported or SUPPORTED
        self._version = version
        self._wake = asyncio.Event()
        brokers.admission = self._admission
        brokers.describe(version=version, levels=(self._lowest, self._highest))
        brokers.changed.append(self._wake.set)

    async def _admission(self) -> None:
        """Of this broker, which has registered. Raises UnsupportedError, and what the metadata store raises."""
        while (found := await self._metadata.newest.get(keys.LEVEL)) is None:
            first = min(highest for _, highest in await self._of_live())
            try:
                await self._metadata.put(keys.LEVEL, Level(first).to_json(), ABSENT)
            except (ConflictError, OutcomeUnknownError):
                continue  # read what is there
        now = Level.of(found)
        level = now.refused_by(self._lowest, self._highest)
        if level is not None:
            mine = f"Engine {self._version} works at the levels {self._lowest} to {self._highest}"
            what = "is at" if level == now.level else "is about to be raised to"
            wanted = "an older release" if level < self._lowest else "a newer release"
            raise UnsupportedError(f"{mine}, and the cluster {what} level {level}: start {wanted} on this machine")

    async def run(self, leads: Callable[[], bool]) -> None:
        """Raise the level whenever all brokers work at a higher one. Does not end.

        `leads`: whether it is for this broker to look. One reads the records of all, and not each those of each other;
        two that lead for a moment do no harm.
        """
        while True:
            try:
                if leads():
                    await self.look()
            except (EngineError, OutcomeUnknownError) as e:
                log.warning("the level of the cluster could not be looked at: %s", e)
            self._wake.clear()
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def look(self) -> None:
        """Take the next step, if there is one. Raises what the metadata store raises."""
        try:
            await self._look()
        except ConflictError:
            log.debug("another broker changes the level")

    async def _look(self) -> None:
        found = await self._metadata.newest.get(keys.LEVEL)
        if found is None:
            return
        now, version = Level.of(found), found.stat.version
        if now.next is None:
            highest = min(high for _, high in await self._of_live())
            if highest <= now.level:
                return
            now = Level(now.level, highest)
            version = (await self._metadata.put(keys.LEVEL, now.to_json(), version)).version
        assert now.next is not None
        allowed = all(low <= now.next <= high for low, high in await self._of_live())
        after = Level(now.next if allowed else now.level)
        await self._metadata.put(keys.LEVEL, after.to_json(), version)
        if allowed:
            log.warning("the cluster is at level %d now: builds below it do not join any more", now.next)

    async def _of_live(self) -> list[tuple[int, int]]:
        """The levels of all brokers that are registered; of this build alone where none is."""
        live = await self._metadata.newest.list(keys.BROKERS, keys.prefix_end(keys.BROKERS))
        return [BrokerRecord.of(record).levels for record in live] or [(self._lowest, self._highest)]
