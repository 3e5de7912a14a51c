"""`Ownership`: which broker owns a segment, under which term, and how long this broker's leases hold (L1, G3).

A segment stays with its owner as long as the owner lives, or until it hands the segment over: the record then names the
*heir*, which alone may claim it while it lives. A segment without owner and heir belongs to the broker that rendezvous
hashing names, which all brokers compute alike. That broker claims it, by compare-and-set with the next term; or, when
it has its share of the load already, it names an heir. So load decides where a segment goes, and no two brokers have to
agree on what the load is. A broker that closes an idle segment names itself.

What a broker hears of owners grows with what its own clients look at: owners are followed topic by topic, while
something listens. All other questions are reads of the store.

Leases depend on the broker's session with the metadata store:
a lease ends before other brokers can see that the session is over.

Terms of leases are versions of the record, which the store never repeats: they keep rising when a topic is deleted and
another takes its name, so that a late write by an owner of the old topic is never taken for one of the new.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from engine.aio.tasks import Supervisor
from engine.clock import Clock
from engine.control.base.brokers import BrokerRecord, Brokers
from engine.control.policy.placement import OPEN, place, spread, traffic
from engine.errors import EngineError, NotOwnerError, StorageError, TimeoutError, UnknownOutcomeError
from engine.metadata import keys, unsure
from engine.metadata.store import (
    ABSENT,
    ConflictError,
    Event,
    EventKind,
    MetadataStore,
    OutcomeUnknownError,
    Record,
    Session,
)
from engine.model.names import SegmentName, TopicName

if TYPE_CHECKING:
    from engine.metadata.selection import Selection
    from engine.storage.objects.references import SegmentObjects

log = logging.getLogger(__name__)

INDEX_OWNERS = "segment-owners"  # of the ownership records; holds their own key
INDEX_LOGS = "wal-sessions"  # of the records of segments on objects; holds the sessions that they refer to
INDEX_OBJECTS = "segment-objects"  # likewise; holds their own key (storage.objects.sweep)
IDLE, PASSED_ON = "idle", "passed"
_CLAIMS_MAX = 16
_SNAPSHOT_S_MAX = 20.0  # until the store has told the owners of a topic's segments
_PASSED_S = 60.0  # a broker has said by then that it has what was passed on to it

Listener = Callable[[], None]
Siblings = Callable[[], Awaitable[Sequence[SegmentName]]]
Closed = tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class Owner:
    """An ownership record. `url` None: released in order, free for `heir`, or without one for the broker that placement
    names.

    `term` counts the segment's owners. `born`: the record's version under the first owner, known from the second
    on; 0 where it was not kept. `left`: how it came to its heir if nothing used it, IDLE (the heir is the last owner)
    or PASSED_ON (for the load); None: it was handed over in use, or has no heir. `objects`: where its log lies, of a
    segment on objects that was served; a claim keeps it (R1).
    """

    url: str | None
    session: int | None
    term: int
    born: int | None = None
    heir: str | None = None
    left: str | None = None
    objects: SegmentObjects | None = None

    def to_json(self) -> bytes:
        facts: dict[str, Any] = {"owner": self.url, "session": self.session, "term": self.term, "born": self.born}
        if self.heir is not None:
            facts["heir"] = self.heir
        if self.left is not None:
            facts["left"] = self.left
        if self.objects is not None:
            facts |= msgspec.to_builtins(self.objects)
        return json.dumps(facts).encode()

    @property
    def unused(self) -> bool:
        """Whether no client can come back to it."""
        return self.url is None and (self.heir is None or self.left is not None)

    @classmethod
    def of(cls, record: Record | None) -> Owner:
        """Undo to_json(); the owner that a segment without a record has."""
        if record is None:
            return cls(None, None, 0)
        facts = json.loads(record.value)
        born = facts.get("born", 0)
        born = record.stat.version if born is None else int(born)
        objects = _objects_of(facts) if _OBJECTS & facts.keys() else None
        heir, left = facts.get("heir"), facts.get("left")
        return cls(facts["owner"], facts.get("session"), int(facts["term"]), born, heir, left, objects)


_OBJECTS = {"wal", "files", "older", "floor", "inherited"}  # the fields of SegmentObjects


def _objects_of(facts: Mapping[str, Any]) -> SegmentObjects:
    from engine.storage.objects.references import SegmentObjects  # with the first segment on objects

    return msgspec.convert(facts, SegmentObjects)


class OwnerLease:
    """The right to write one segment (storage.succession.Lease)."""

    __slots__ = ("_clock", "_name", "_over", "_session", "born", "term")

    def __init__(self, name: SegmentName, term: int, born: int, session: Session, clock: Clock) -> None:
        self.term = term
        self.born = born
        self._name = name
        self._session = session
        self._clock = clock
        self._over = False

    @property
    def held(self) -> bool:
        """Whether no other broker can own it yet. Once false, false for ever."""
        if not self._over and self._clock.monotonic() >= self._session.deadline:
            self._over = True
        return not self._over

    def end(self) -> None:
        """End the lease: it was given up, or lost."""
        self._over = True

    def check(self) -> None:
        """Raise NotOwnerError when the lease may be over."""
        if not self.held:
            raise NotOwnerError(f"this broker may no longer own {self._name}; look the topic up again")


@dataclass(frozen=True, slots=True)
class Owned:
    """A claimed segment. `term` counts its owners, unlike the lease's. No lease: owned while this process lives.

    `released`: the last owner released it because it was idle. `objects`: as the former owners left them.
    """

    term: int
    lease: OwnerLease | None
    released: bool = False
    objects: SegmentObjects | None = None


class _Passed(NamedTuple):
    """Segments passed on to a broker, since it said how many it has."""

    said: BrokerRecord | None
    at_s: float  # the last of them
    segments: int

    def since(self, said: BrokerRecord | None, now_s: float) -> int:
        """How many of them `said`, its present record, does not count yet."""
        return self.segments if said is self.said and now_s < self.at_s + _PASSED_S else 0


class Ownership:
    """Loop thread only. `follows`: other brokers may share the store."""

    def __init__(self, metadata: MetadataStore, brokers: Brokers, clock: Clock, *, follows: bool) -> None:
        self.brokers = brokers
        self._metadata = metadata
        self._clock = clock
        self._follows = follows
        self._owned: dict[SegmentName, OwnerLease | None] = {}  # by this broker
        self.passed_on = 0  # segments left to another broker, since this one has its share
        self._passed: dict[str, _Passed] = {}  # by the URL of the broker
        self._owners: dict[str, dict[str, Owner]] = {}  # by the key of a followed topic, then by the record's key
        self._listeners: dict[str, dict[Listener, None]] = {}  # by the key of the topic's record
        self._tasks = Supervisor("segment owners")
        self._selected: Selection[TopicName] | None = None
        if follows:
            from engine.metadata.selection import Selection

            self._selected = Selection(metadata, INDEX_OWNERS, _of_topic, self._heard, self._known, self._tasks)
            brokers.changed.append(self._brokers_changed)

    async def close(self) -> None:
        """End all watches; listeners are not called any more. Idempotent."""
        await self._tasks.close()
        self._listeners.clear()

    # -- owners ----------------------------------------------------------------------------------------------------

    @property
    def alone(self) -> bool:
        """Whether no other broker is known, so that all segments are this broker's."""
        return not self._follows or self.brokers.alone

    def url_of(self, name: SegmentName) -> str:
        """The owner, or the broker that placement names: of a topic that something listens to, as last heard."""
        if self.alone:
            return self.brokers.url
        owners = self._owners.get(keys.topic(name.topic), {})
        return self._owner_url(name, owners.get(keys.segment(name)) or Owner.of(None))

    async def urls(self, names: Sequence[SegmentName]) -> list[str]:
        """resolve() for segments of one topic."""
        if self.alone or not names:
            return [self.brokers.url] * len(names)
        owners = await self._read_owners(names[0].topic)
        return [self._owner_url(name, owners.get(keys.segment(name)) or Owner.of(None)) for name in names]

    async def resolve(self, name: SegmentName) -> str:
        """The owner, or the broker that placement names, by a read of the store."""
        if self.alone:
            return self.brokers.url
        return self._owner_url(name, Owner.of(await self._metadata.newest.get(keys.segment(name))))

    async def owner(self, name: SegmentName) -> str | None:
        """The live broker that has it, by a read of the store; None: none has."""
        if self.alone:
            return self.brokers.url
        return self._live_owner(Owner.of(await self._metadata.newest.get(keys.segment(name))))

    async def may_own(self, name: SegmentName) -> bool:
        """Whether this broker owns it, or may claim it, by a read of the store."""
        return await self.resolve(name) == self.brokers.url

    def owns(self, name: SegmentName) -> bool:
        """Whether this broker has claimed it, in its present session."""
        return name in self._owned

    async def _read_owners(self, topic: TopicName) -> dict[str, Owner]:
        """{key of the record: owner} of the topic's segments that have one."""
        found = await self._metadata.newest.list_index(INDEX_OWNERS, *_of_topic(topic))
        return {record.key: Owner.of(record) for _, record in found}

    def _owner_url(self, name: SegmentName, owner: Owner) -> str:
        taken = self._live_owner(owner) or self._live_heir(owner)
        return taken or place(str(name), self.brokers.takers) or self.brokers.url

    def counts(self) -> dict[str, int]:
        """How many segments each live broker has: as it said last, and what was passed on to it from here since."""
        now = self._clock.monotonic()
        found = {
            url: said.segments + (self._passed[url].since(said, now) if url in self._passed else 0)
            for url, said in self.brokers.live.items()
        }
        return found | {self.brokers.url: len(self._owned)}

    def loads(self) -> dict[str, float]:
        """The load of each broker that takes segments, in units (policy.placement)."""
        counts, live = self.counts(), self.brokers.live
        return {url: OPEN * counts[url] + traffic(live[url].load) for url in self.brokers.takers}

    # -- claims and releases ---------------------------------------------------------------------------------------

    async def read(self, name: SegmentName) -> Owner:
        """The record, as it is in the store."""
        return Owner.of(await self._metadata.newest.get(keys.segment(name)))

    async def claim(self, name: SegmentName, siblings: Siblings | None = None, *, leased: bool = False) -> Owned:
        """Claim ownership under a new term. Raises NotOwnerError naming the owner, StorageError: the owner is unknown.

        `siblings`: the active segments of its topic. With them, a segment without an heir may be left to another
        broker, if this one has its share of the load: NotOwnerError names it. `leased`: with a lease also where no
        other broker can own it.

        A claim whose outcome is unknown is repeated under the next term: had it succeeded, this broker is the owner.
        """
        key = keys.segment(name)
        for _ in range(_CLAIMS_MAX):
            session = await self.brokers.session()
            record = await self._metadata.newest.get(key)
            before = Owner.of(record)
            await self._check_free(name, before)
            heir = await self._passes_on(name, before, siblings)
            if heir is None:
                owner = replace(before, url=self.brokers.url, session=session.id, term=before.term + 1)
                owner = replace(owner, heir=None, left=None)
            else:
                left = PASSED_ON if before.unused else None
                owner = replace(before, url=None, session=None, heir=heir, left=left)
            try:
                version = await self._put(key, owner, record)
            except (ConflictError, OutcomeUnknownError):
                continue
            if heir is not None:
                self.passed_on += 1
                self._note_passed(heir)
                raise NotOwnerError(f"{name} belongs to the broker {heir}")
            born = version if owner.born is None else owner.born
            lease = self._lease(name, version, born, session, always=leased)
            return Owned(owner.term, lease, before.unused, owner.objects)
        raise StorageError(f"{name}: its owner cannot be read from the metadata store; try again")

    async def _passes_on(self, name: SegmentName, owner: Owner, siblings: Siblings | None) -> str | None:
        """The broker to leave it to, for the load; None: this one claims it.

        The siblings without an owner are placed with it, so that the segments of a new topic spread, although each is
        opened by itself, and most brokers have not heard of the others yet.
        """
        if siblings is None or self.alone or self.is_mine(owner) or not self._is_free(owner):
            return None
        several = await siblings()
        owners = await self._read_owners(name.topic) if len(several) > 1 else {}
        free = [one for one in several if self._is_free(owners.get(keys.segment(one)) or Owner.of(None))]
        names = {one.segment_id: str(one) for one in (*free, name)}
        placed = spread(dict.fromkeys((names[i] for i in sorted(names)), OPEN), self.loads())
        url = placed.get(str(name), self.brokers.url)
        return None if url == self.brokers.url else url

    def _is_free(self, owner: Owner) -> bool:
        """Whether load may decide where it goes."""
        return self._live_owner(owner) is None and (owner.left == IDLE or self._live_heir(owner) is None)

    def _note_passed(self, url: str) -> None:
        said, now = self.brokers.live.get(url), self._clock.monotonic()
        passed = self._passed.get(url)
        self._passed[url] = _Passed(said, now, 1 if passed is None else passed.since(said, now) + 1)

    def _lease(self, name: SegmentName, term: int, born: int, session: Session, *, always: bool) -> OwnerLease | None:
        needed = always or isfinite(session.deadline)
        lease = self._owned[name] = OwnerLease(name, term, born, session, self._clock) if needed else None
        return lease

    def session_lost(self) -> None:
        """Nothing is owned any more, and clients are to ask others."""
        for lease in self._owned.values():
            if lease is not None:
                lease.end()
        self._owned.clear()
        self._brokers_changed()

    async def _check_free(self, name: SegmentName, owner: Owner) -> None:
        """Raise NotOwnerError when another broker owns it, or is named by placement."""
        if not self._follows:
            return
        url = self._owner_url(name, owner)
        if url != self.brokers.url:
            raise NotOwnerError(f"{name} belongs to the broker {url}")
        if owner.url is None or owner.session == self.brokers.session_id:
            return
        # The watch may lag behind. A segment changes owner only by a read of the store.
        record = await self._metadata.newest.get(keys.broker(owner.url))
        if record is not None and owner.session in (None, record.stat.session) and owner.url != self.brokers.url:
            raise NotOwnerError(f"{name} belongs to the broker {owner.url}")

    def forget(self, name: SegmentName) -> None:
        lease = self._owned.pop(name, None)
        if lease is not None:
            lease.end()

    async def claim_to_remove(self, name: SegmentName) -> OwnerLease | None:
        """Claim it until its store is deleted, where other brokers could own it. Raises as claim() does."""
        if not self._follows:
            return None
        lease = self._owned.get(name)
        return lease if lease is not None and lease.held else (await self.claim(name)).lease

    async def removed(self, name: SegmentName) -> None:
        """Delete the ownership record of a deleted segment, unless a later segment's owner has written it since."""
        key = keys.segment(name)
        if not self._follows:
            await unsure.delete(self._metadata, key)
            return
        self.forget(name)
        record = await self._metadata.newest.get(key)
        if record is not None and self.is_mine(Owner.of(record)):
            with contextlib.suppress(ConflictError):
                await unsure.delete(self._metadata, key, record.stat.version)

    async def change(
        self,
        name: SegmentName,
        owned: Owned,
        change: Callable[[SegmentObjects | None], SegmentObjects],
        also: Callable[[], Awaitable[Mapping[str, int]]],
    ) -> SegmentObjects:
        """Write what the record of an owned segment says of its objects (R2, R14). `also`: demands on other records.

        Raises NotOwnerError: this broker does not own it under this term any more, and nothing was written;
        UnknownOutcomeError; what `change` and `also` raise.
        """
        key, wanted, unknown = keys.segment(name), None, False
        for _ in range(_CLAIMS_MAX):
            try:
                demands = await also()
                record = await self._metadata.newest.get(key)
                owner = Owner.of(record)
                if record is None or owner.term != owned.term or not self.is_mine(owner):
                    raise NotOwnerError(f"{name} is not this broker's any more; look the topic up again")
            except NotOwnerError as e:
                if unknown:  # what the record perhaps names must stay
                    raise UnknownOutcomeError(f"{name}: its record may have been written before: {e}") from e
                raise
            if wanted is not None and owner.objects == wanted:
                return wanted  # by a write whose outcome was unknown
            wanted = change(owner.objects)
            try:
                await self._put(key, replace(owner, objects=wanted), record, demands)
            except ConflictError:
                continue
            except OutcomeUnknownError:
                unknown = True
            else:
                return wanted
        raise UnknownOutcomeError(f"{name}: the metadata store did not say whether its record was written")

    async def release(self, name: SegmentName, term: int, left: Closed = None) -> None:
        """Release a fully written segment that nothing uses. If that fails, this process stays the owner.

        The segment stays with this broker while that lives and takes segments, unless load wants it elsewhere when it
        is used again: so exactly one broker answers for it, and none has to be told. `left`: the own session's log, and
        where the segment's groups in it end (R9).
        """
        self.forget(name)
        if self.alone:
            return
        key = keys.segment(name)
        try:
            record = await self._metadata.newest.get(key)
            owner = Owner.of(record)
            if record is not None and owner.term == term and self.is_mine(owner):
                owner = replace(owner, url=None, session=None, heir=self.brokers.url, left=IDLE)
                await self._put(key, replace(owner, objects=_closed(owner.objects, left)), record)
        except (EngineError, ConflictError, OutcomeUnknownError) as e:
            log.warning("%s was not released: %s", name, e)

    async def leave(self, name: SegmentName, term: int, heir: str, left: Closed = None) -> None:
        """Leave a fully written segment to `heir`. Raises NotOwnerError: it is not this broker's; what the store
        raises: then this broker stays the owner, or `heir` has it. `left`: see release().
        """
        self.forget(name)
        key = keys.segment(name)
        for _ in range(_CLAIMS_MAX):
            record = await self._metadata.newest.get(key)
            owner = Owner.of(record)
            if owner.term == term and owner.url is None and owner.heir == heir:
                return  # by a write whose outcome was unknown
            if record is None or owner.term != term or not self.is_mine(owner):
                break
            with contextlib.suppress(ConflictError, OutcomeUnknownError):
                objects = _closed(owner.objects, left)
                await self._put(key, replace(owner, url=None, session=None, heir=heir, objects=objects), record)
                self._note_passed(heir)
                return
        raise NotOwnerError(f"{name} is not this broker's any more")

    def is_mine(self, owner: Owner) -> bool:
        """Whether a record names this broker in its present session."""
        return (owner.url, owner.session) == (self.brokers.url, self.brokers.session_id)

    async def _put(self, key: str, owner: Owner, record: Record | None, also: Mapping[str, int] | None = None) -> int:
        expected = ABSENT if record is None else record.stat.version
        indexes: dict[str, str | tuple[str, ...]] = {INDEX_OWNERS: key} if self._follows else {}
        if owner.objects is not None and owner.objects.wal:
            indexes[INDEX_LOGS] = tuple(owner.objects.starts())
        if owner.objects is not None:
            indexes[INDEX_OBJECTS] = key
        return (await self._metadata.put(key, owner.to_json(), expected, indexes=indexes, also=also)).version

    # -- following -------------------------------------------------------------------------------------------------

    async def listen(self, topic: TopicName, listener: Listener) -> Callable[[], None]:
        """Call `listener` when owners of the topic's segments may have changed; from now on url_of() is as heard.

        The result unsubscribes. Raises TimeoutError: the store does not tell the owners.
        """
        if self._selected is None:
            return _nothing
        key, selected = keys.topic(topic), self._selected
        self._listeners.setdefault(key, {})[listener] = None
        selected.add(topic)

        def end() -> None:
            listeners = self._listeners.get(key, {})
            if listener not in listeners:
                return
            del listeners[listener]
            selected.drop(topic)
            if not listeners:
                del self._listeners[key]
                self._owners.pop(key, None)

        try:
            async with asyncio.timeout(_SNAPSHOT_S_MAX):
                await selected.shown(topic)
        except builtins.TimeoutError:
            end()
            raise TimeoutError(
                f"the metadata store did not tell the owners of {topic} within {_SNAPSHOT_S_MAX:g} s; try again"
            ) from None
        except BaseException:
            end()
            raise
        return end

    def _known(self, topic: TopicName) -> Collection[str]:
        return self._owners.get(keys.topic(topic), {}).keys()

    def _heard(self, event: Event) -> None:
        topic = event.key.rpartition("/segments/")[0]
        if event.kind is EventKind.SNAPSHOT_END or topic not in self._listeners:
            return
        owners = self._owners.setdefault(topic, {})
        if event.record is None:
            owners.pop(event.key, None)
        else:
            owners[event.key] = Owner.of(event.record)
        self._notify(topic)

    def _live_owner(self, owner: Owner) -> str | None:
        return owner.url if owner.url is not None and self.brokers.lives(owner.url, owner.session) else None

    def _live_heir(self, owner: Owner) -> str | None:
        return owner.heir if owner.url is None and owner.heir in self.brokers.takers else None

    def _brokers_changed(self) -> None:
        """Placement, and what a record of a broker that is gone says, are other than before: tell all listeners."""
        for key in list(self._listeners):
            self._notify(key)

    def _notify(self, key: str) -> None:
        for listener in list(self._listeners.get(key, ())):
            listener()


def _closed(objects: SegmentObjects | None, left: Closed) -> SegmentObjects | None:
    return objects if objects is None or left is None else objects.handed_over(*left)


def _of_topic(topic: TopicName) -> tuple[str, str]:
    """The range of INDEX_OWNERS that holds this topic's segments."""
    segments = keys.segments(topic)
    return segments, keys.prefix_end(segments)


def _nothing() -> None:
    """A listener's end where nothing is watched."""
