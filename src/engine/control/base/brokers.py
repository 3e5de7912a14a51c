"""`Brokers`: the live brokers, and this broker's registration among them (PIP-468 "Broker Roles").

A broker has one session with the metadata store. Its ephemeral record, its leaderships and its segments all belong to
that session. When the session ends, all of them are gone; the broker then registers again, with nothing.

    register --> refresh every third of the timeout --> deadline passed --> give everything up --> register ...

The deadline is local: it counts from before a refresh was sent, the store's from its arrival. So this broker stops
acting as a leader or owner before the store lets another broker take over (docs/invariants.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from typing import Any

from engine.aio.tasks import Supervisor
from engine.clock import Clock
from engine.errors import AlreadyClosedError, CorruptionError, EngineError, NotOwnerError, StorageError
from engine.metadata import keys
from engine.metadata.following import follow
from engine.metadata.store import (
    ABSENT,
    ANY,
    ConflictError,
    Event,
    EventKind,
    MetadataStore,
    OutcomeUnknownError,
    Record,
    Session,
)
from engine.model.load import SegmentLoadStats

log = logging.getLogger(__name__)

SESSION_S = 30.0
_REFRESHES_PER_TIMEOUT = 5
_RETRY_S = 0.5
_CLOSE_S_MAX = 2.0
_PUBLISH_ATTEMPTS_MAX = 8


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A live broker. `draining`: it takes no segments. `version`, `levels`: its build, and at which levels that works
    (levels.py). `segments`, `load`: what it has open, and their rates together, as it last said; two records that
    differ in these alone are equal.
    """

    url: str
    admin_url: str | None
    session: int | None
    draining: bool = False
    version: str | None = None
    levels: tuple[int, int] = (1, 1)
    segments: int = field(default=0, compare=False)
    load: SegmentLoadStats = field(default_factory=SegmentLoadStats, compare=False)

    def to_json(self) -> bytes:
        facts: dict[str, Any] = {"url": self.url, "adminUrl": self.admin_url}
        if self.draining:
            facts["draining"] = True
        if self.version is not None:
            facts |= {"version": self.version, "levels": self.levels}
        if self.segments or not self.load.silent:
            facts |= {"segments": self.segments, "load": self.load.to_mapping()}
        return json.dumps(facts).encode()

    @classmethod
    def of(cls, record: Record) -> BrokerRecord:
        """Undo to_json(). Raises CorruptionError."""
        try:
            facts = json.loads(record.value)
            said = facts.get("load")
            load = SegmentLoadStats() if said is None else SegmentLoadStats.from_json(json.dumps(said).encode())
            lowest, highest = facts.get("levels", (1, 1))
            return cls(
                str(facts["url"]),
                facts.get("adminUrl"),
                record.stat.session,
                draining=bool(facts.get("draining", False)),
                version=facts.get("version"),
                levels=(int(lowest), int(highest)),
                segments=int(facts.get("segments", 0)),
                load=load,
            )
        except (CorruptionError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise CorruptionError(f"{record.key}: the record of a broker must be JSON with its URL: {e!r}") from e


class Brokers:
    """Loop thread only. `changed` is called when a broker came or left, `lost` when this one's session ended."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        clock: Clock,
        url: str,
        admin_url: str | None = None,
        session_timeout: float = SESSION_S,
    ) -> None:
        self.url = url
        self.changed: list[Callable[[], None]] = []
        self.lost: list[Callable[[], None]] = []
        self.admission: Callable[[], Awaitable[None]] | None = None  # raises what keeps a registered broker from acting
        self._metadata = metadata
        self._clock = clock
        self._timeout = session_timeout
        self._session: Session | None = None
        self._said = BrokerRecord(url, admin_url, None)  # of this broker, to be registered again with
        self._version = 0  # of its record
        self._writing = asyncio.Lock()
        self._live: dict[str, BrokerRecord] = {}  # by the record's key
        self._takers: tuple[str, ...] | None = None  # see `takers`; None: not found yet
        self._registered = asyncio.Event()
        self._vacated = asyncio.Event()  # set when a broker's record is deleted
        self._tasks = Supervisor("brokers")
        self._closed = False

    # -- facts -----------------------------------------------------------------------------------------------------

    @property
    def live(self) -> dict[str, BrokerRecord]:
        """The live brokers known here, by URL."""
        return {record.url: record for record in self._live.values()}

    @property
    def takers(self) -> Collection[str]:
        """The URLs of the brokers that take segments: those that do not drain; all, where all do.

        Others may have seen the end of this broker before it opens another session, so it is not among them until then.
        """
        if self._takers is None:
            here = self._session is not None
            takers = (record for record in self._live.values() if here or record.url != self.url)
            found = sorted(takers, key=lambda record: record.url)
            taking = [record.url for record in found if not record.draining]
            self._takers = tuple(taking or [record.url for record in found])
        return self._takers

    @property
    def draining(self) -> bool:
        """Whether this broker takes no segments."""
        return self._said.draining

    @property
    def alone(self) -> bool:
        """Whether no other broker is known, so that no call needs routing."""
        key = keys.broker(self.url)
        return not self._live or (len(self._live) == 1 and key in self._live)

    def lives(self, url: str, session: int | None) -> bool:
        """Whether a broker still has the session under which it took a role."""
        if url == self.url and self._session is None:
            return False
        record = self._live.get(keys.broker(url))
        return record is not None and (session is None or record.session == session)

    @property
    def deadline(self) -> float:
        """The monotonic time until which the session surely lives; 0 without a session."""
        return 0.0 if self._session is None else self._session.deadline

    @property
    def session_id(self) -> int | None:
        """The session's id; None without a session."""
        return None if self._session is None else self._session.id

    async def session(self) -> Session:
        """The session of this broker's leaderships and ownerships. Raises NotOwnerError while there is none."""
        if self._closed:
            raise AlreadyClosedError("this broker is closing")
        if self._session is None or self._session.deadline <= self._clock.monotonic():
            raise NotOwnerError("this broker has no session with the metadata store; try again, or another broker")
        return self._session

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register, once an earlier life of this broker has ended, and follow the others. Raises the store's errors."""
        for record in await self._metadata.newest.list(keys.BROKERS, keys.prefix_end(keys.BROKERS)):
            self._know(record.key, _readable(record))
        watch = partial(self._metadata.watch, keys.BROKERS)
        following = follow(self._metadata, watch, self._heard, self._live.keys, what="the brokers")
        self._tasks.spawn(following, "watch of the brokers")
        await self._register()
        if isfinite(self.deadline):
            self._tasks.spawn(self._keep_session(), "session")

    async def close(self) -> None:
        """End the session, and with it the record and all roles. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._tasks.close()
        session, self._session = self._session, None
        if session is not None:
            try:
                async with asyncio.timeout(_CLOSE_S_MAX):
                    await session.close()
            except (TimeoutError, EngineError, OutcomeUnknownError) as e:
                log.warning("the session with the metadata store could not be closed and will expire: %s", e)

    async def _register(self) -> None:
        session = await self._metadata.session(self._timeout)
        mine = replace(self._said, session=session.id)
        key = keys.broker(self.url)
        # In a store whose sessions end with their process, an earlier session of this broker has ended already.
        expected = ABSENT if isfinite(session.deadline) else ANY
        while True:
            self._vacated.clear()
            try:
                stat = await self._metadata.put(key, mine.to_json(), expected, session=session)
            except (ConflictError, OutcomeUnknownError):
                found = await self._metadata.newest.get(key)
                if found is None or found.stat.session != session.id:
                    await self._wait_for_predecessor(session)
                    continue
                stat = found.stat
            break
        if self.admission is not None:
            try:
                await self.admission()
            except BaseException:
                await self._end(session)
                raise
        self._version = stat.version
        self._session = session
        self._know(key, mine)

    def describe(self, *, version: str, levels: tuple[int, int]) -> None:
        """What the record says of the build. Before start()."""
        self._said = replace(self._said, version=version, levels=levels)

    async def publish(self, **facts: Any) -> None:
        """Change what the others know of this broker: `draining`, `segments`, `load`. Kept for later sessions, too.

        Raises NotOwnerError: there is no session now; what the metadata store raises.
        """
        async with self._writing:
            self._said = replace(self._said, **facts)
            session = await self.session()
            key, mine = keys.broker(self.url), replace(self._said, session=session.id)
            before = self._live.get(key)
            for _ in range(_PUBLISH_ATTEMPTS_MAX):
                try:
                    stat = await self._metadata.put(key, mine.to_json(), self._version, session=session)
                except (ConflictError, OutcomeUnknownError):
                    found = await self._metadata.newest.get(key)
                    if found is None or found.stat.session != session.id:
                        raise NotOwnerError("this broker's session with the metadata store is over") from None
                    self._version = found.stat.version
                    continue
                self._version = stat.version
                break
            else:
                raise StorageError(f"the metadata store did not take the record of {self.url}; try again")
            if self._session is session:
                self._know(key, mine)
        if mine != before:
            self._notify(self.changed)

    async def _wait_for_predecessor(self, session: Session) -> None:
        """Wait for the end of an earlier session of this broker: until then that process may still act."""
        log.info("waiting for the earlier session of %s to end", self.url)
        try:
            async with asyncio.timeout(_RETRY_S):
                await self._vacated.wait()
        except TimeoutError:
            await session.refresh()

    async def _keep_session(self) -> None:
        """Refresh the session; when it has ended, report that and open another."""
        while True:
            await asyncio.sleep(self._pause())
            session = self._session
            try:
                if session is None:
                    await self._register()
                    log.warning("%s has registered again", self.url)
                    self._notify(self.changed)
                    continue
                await self._refresh(session)
            except (EngineError, OutcomeUnknownError, ConflictError) as e:
                log.warning("the metadata store is out of reach of %s: %s", self.url, e)

    def _pause(self) -> float:
        """Seconds until the next refresh: fewer when opening the session took long."""
        usual = self._timeout / _REFRESHES_PER_TIMEOUT
        left = usual if self._session is None else self._session.deadline - self._clock.monotonic()
        return min(usual, max(left / 2, 0.001))

    async def _refresh(self, session: Session) -> None:
        """Refresh while the session may live. Raises the store's errors.

        Past the deadline the session counts as ended, whatever the store says: other brokers may have seen its leases
        end.
        """
        deadline = session.deadline
        try:
            async with asyncio.timeout(deadline - self._clock.monotonic()):
                await session.refresh()
            if self._clock.monotonic() < deadline:
                return
        except AlreadyClosedError:
            pass
        except TimeoutError as e:
            log.warning("the metadata store did not answer %s: %s", self.url, e)
        except (EngineError, OutcomeUnknownError) as e:
            log.warning("the metadata store did not answer %s: %s", self.url, e)
            if deadline > self._clock.monotonic():
                return
        self._session_over()
        await self._end(session)

    async def _end(self, session: Session) -> None:
        """Close a session that is given up, without waiting for it."""
        with contextlib.suppress(TimeoutError, EngineError, OutcomeUnknownError):
            async with asyncio.timeout(_CLOSE_S_MAX):
                await session.close()

    def _session_over(self) -> None:
        log.warning(
            "the session of %s with the metadata store has ended: its leaderships and segments are given up", self.url
        )
        self._session = self._takers = None
        self._notify(self.lost)

    # -- the others ------------------------------------------------------------------------------------------------

    def _heard(self, event: Event) -> None:
        if event.kind is EventKind.SNAPSHOT_END:
            return
        before = self._live.get(event.key)
        if event.record is None:
            self._know(event.key, None)
            self._vacated.set()
        else:
            self._know(event.key, _readable(event.record))
        if self._live.get(event.key) != before:
            self._notify(self.changed)

    def _know(self, key: str, record: BrokerRecord | None) -> None:
        self._takers = None
        if record is None:
            self._live.pop(key, None)
        else:
            self._live[key] = record

    def _notify(self, listeners: list[Callable[[], None]]) -> None:
        for listener in list(listeners):
            listener()


def _readable(record: Record) -> BrokerRecord | None:
    """A damaged record is of no broker that others can call; the one that it is of writes it again."""
    try:
        return BrokerRecord.of(record)
    except CorruptionError as e:
        log.warning("a broker is taken for gone: %s", e)
        return None
