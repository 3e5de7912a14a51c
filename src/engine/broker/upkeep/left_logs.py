"""`LeftLogs`: closed segments whose references keep a log that nothing else would shorten (R19).

A segment that was closed because it was idle refers to the log of the session that it was closed under, if only for the
header of its last file. While that session lives and its broker is the segment's heir, this broker opens it in time
(objects.py). Others keep the whole log of a session that has ended, or a part of another broker's. So the sweep, which
reads all records, notes some of them, and the broker that sweeps asks their owners for a few at a time, which opens
them: an owner uploads what is in no file, and its reference takes the place of those.

A sweep that finds more than there is room for is followed by one that begins behind what was noted, and at the front
again after the end: segments that fail each time do not keep those behind them waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from engine.broker.hosting.ownership import Owner
from engine.control.base.brokers import Brokers
from engine.control.base.ports import SegmentSpec
from engine.control.base.topic_records import topic_of_key
from engine.errors import AlreadyClosedError, EngineError, NotFoundError, NotOwnerError
from engine.metadata.store import Record
from engine.model.names import TopicName
from engine.storage.objects.records import WalRecord
from engine.storage.objects.references import SegmentObjects

log = logging.getLogger(__name__)

NOTED_MAX = 2_000  # the next sweep begins behind them
ASKED_AT_ONCE = 8  # in a round

SpecOf = Callable[[TopicName, int], Awaitable[SegmentSpec]]


class LeftLogs:
    """Of one broker. Loop thread only. `asked`: since the start."""

    def __init__(self, brokers: Brokers, spec: SpecOf, ask: Callable[[SegmentSpec], Awaitable[object]]) -> None:
        """`spec`: of a segment, by its topic and id. `ask`: something of the segment's owner, which opens it."""
        self.asked = 0
        self._brokers = brokers
        self._spec = spec
        self._ask = ask
        self._noted: dict[str, None] = {}  # keys of records, in the order in which they were noted
        self._last = ""  # the key that was noted last
        self._after = ""  # this sweep notes what is behind
        self._full = False  # it has found more than was noted

    def sweep_begins(self) -> None:
        """All records are noted from now on, in the order of their keys."""
        self._after = self._last if self._full else ""
        self._full = False

    def note(self, record: Record, objects: SegmentObjects, sessions: Mapping[str, WalRecord]) -> None:
        """A segment's record that refers to logs. `sessions`: the records of all; one without has ended."""
        if record.key <= self._after or not objects.wal or self._full:
            return
        owner = Owner.of(record)
        if owner.url is not None and self._brokers.lives(owner.url, owner.session):
            return  # it has the segment open, or takes it over
        if any(_is_left(sessions.get(session), owner.heir) for session in objects.starts()):
            self._full = len(self._noted) >= NOTED_MAX and record.key not in self._noted
            if not self._full:
                self._noted[record.key] = None
                self._last = record.key

    async def round(self) -> None:
        """Have a few of them opened. What fails is noted again by the next sweep."""
        some = list(self._noted)[:ASKED_AT_ONCE]
        for key in some:
            del self._noted[key]
        await asyncio.gather(*map(self._open, some))

    async def _open(self, key: str) -> None:
        topic = topic_of_key(key)
        try:
            await self._ask(await self._spec(topic, int(key.rpartition("/")[2])))
        except (NotFoundError, NotOwnerError, AlreadyClosedError) as e:
            log.debug("a segment of %s was not opened for its log: %s", topic, e)  # deleted, or on its way elsewhere
        except EngineError as e:
            log.warning("a segment of %s could not be opened, so that the log it refers to is kept: %s", topic, e)
        else:
            self.asked += 1


def _is_left(session: WalRecord | None, heir: str | None) -> bool:
    """Whether a closed segment that refers to this session's log is no matter of the broker that writes there."""
    return session is None or session.fenced is not None or session.broker != heir
