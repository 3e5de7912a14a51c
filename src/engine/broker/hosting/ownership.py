"""`Ownership`: which broker owns a segment, under which term, and how long this broker's leases hold (L1, G3).

A segment stays with its owner as long as the owner lives, or until it hands the segment over: the record then names the
*heir*, which alone may claim it while it lives. A segment without owner and heir belongs to the broker that rendezvous
hashing names, which all brokers compute alike. That broker claims it, by compare-and-set with the next term; or, when
it has its share of the load already, it names an heir. So load decides where a segment goes, and no two brokers have to
agree on what the load is.

Leases depend on the broker's session with the metadata store:
a lease ends before other brokers can see that the session is over.

Terms of leases are versions of the record, which the store never repeats: they keep rising when a topic is deleted and
another takes its name, so that a late write by an owner of the old topic is never taken for one of the new.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from engine.aio.tasks import Supervisor
from engine.clock import Clock
from engine.control.base.brokers import Brokers
from engine.control.policy.placement import OPEN, place, spread, traffic
from engine.errors import EngineError, NotOwnerError, StorageError, UnknownOutcomeError
from engine.metadata import keys, unsure
from engine.metadata.following import follow
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
    from engine.storage.objects.references import SegmentObjects

log = logging.getLogger(__name__)

INDEX_OWNERS = "segment-owners"  # of the ownership records; holds their own key
INDEX_LOGS = "wal-sessions"  # of the records of segments on objects; holds the sessions that they refer to
INDEX_OBJECTS = "segment-objects"  # likewise; holds their own key (storage.objects.sweep)
_CLAIMS_MAX = 16

Listener = Callable[[], None]
Siblings = Callable[[], Awaitable[Sequence[SegmentName]]]
Closed = tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class Owner:
    """An ownership record. `url` None: released in order, free for `heir`, or without one for the broker that placement
    names.

    `term` counts the segment's owners. `born`: the record's version under the first owner, known from the second
    on; 0 where it was not kept. `objects`: where its log lies, of a segment on objects that was served; a claim keeps
    it (R1).
    """

    url: str | None
    session: int | None
    term: int
    born: int | None = None
    heir: str | None = None
    objects: SegmentObjects | None = None

    def to_json(self) -> bytes:
        facts: dict[str, Any] = {"owner": self.url, "session": self.session, "term": self.term, "born": self.born}
        if self.heir is not None:
            facts["heir"] = self.heir
        if self.objects is not None:
            facts |= msgspec.to_builtins(self.objects)
        return json.dumps(facts).encode()

    @classmethod
    def of(cls, record: Record | None) -> Owner:
        """Undo to_json(); the owner that a segment without a record has."""
        if record is None:
            return cls(None, None, 0)
        facts = json.loads(record.value)
        born = facts.get("born", 0)
        born = record.stat.version if born is None else int(born)
        objects = _objects_of(facts) if _OBJECTS & facts.keys() else None
        return cls(facts["owner"], facts.get("session"), int(facts["term"]), born, facts.get("heir"), objects)


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


class Ownership:
    """`follows`: other brokers may share the store, so the ownership records are watched."""

    def __init__(self, metadata: MetadataStore, brokers: Brokers, clock: Clock, *, follows: bool) -> None:
        self.brokers = brokers
        self._metadata = metadata
        self._clock = clock
        self._follows = follows
        self._leases: dict[SegmentName, OwnerLease] = {}
        self._owners: dict[str, Owner] = {}  # by the record's key; only when following
        # How many segments each broker has: by (URL, session), or (URL, None) for those that it is the heir of.
        self._counts: Counter[tuple[str, int | None]] = Counter()
        self.passed_on = 0  # segments left to another broker, since this one has its share
        self._listeners: dict[str, dict[Listener, None]] = {}  # by the key of the topic's record
        # Called with a topic's key and a segment's id when another broker owns the segment (True), or none does.
        self.answering: Callable[[str, int, bool], None] = lambda topic, segment_id, elsewhere: None
        self._tasks = Supervisor("segment owners")

    def start(self) -> None:
        """Begin to follow the store."""
        if self._follows:
            watch = partial(self._metadata.watch_index, INDEX_OWNERS, "", keys.LAST)
            following = follow(self._metadata, watch, self._heard, self._owners.keys, what="the segments' owners")
            self._tasks.spawn(following, "segment owners")
            self.brokers.changed.append(self._brokers_changed)

    async def close(self) -> None:
        await self._tasks.close()
        self._listeners.clear()

    # -- owners ----------------------------------------------------------------------------------------------------

    @property
    def alone(self) -> bool:
        """Whether no other broker is known, so that all segments are this broker's."""
        return not self._follows or self.brokers.alone

    def url_of(self, name: SegmentName) -> str:
        """The owner, or the broker that placement names, by the watch's last state."""
        if self.alone:
            return self.brokers.url
        return self._owner_url(name, self._owners.get(keys.segment(name)) or Owner(None, None, 0))

    async def resolve(self, name: SegmentName) -> str:
        """url_of() by a read of the store."""
        if self.alone:
            return self.brokers.url
        return self._owner_url(name, Owner.of(await self._metadata.newest.get(keys.segment(name))))

    async def owner(self, name: SegmentName) -> str | None:
        """The live broker that has it, by a read of the store; None: none has."""
        if self.alone:
            return self.brokers.url
        return self._live_owner(Owner.of(await self._metadata.newest.get(keys.segment(name))))

    def may_own(self, name: SegmentName) -> bool:
        """Whether this broker owns it, or may claim it."""
        return self.url_of(name) == self.brokers.url

    def _owner_url(self, name: SegmentName, owner: Owner) -> str:
        taken = self._live_owner(owner) or self._live_heir(owner)
        return taken or place(str(name), self.brokers.takers) or self.brokers.url

    def counts(self) -> dict[str, int]:
        """How many segments each live broker has, or is the heir of, as the watch shows them; this one's at once."""
        live = self.brokers.live
        found = {url: self._counts[url, record.session] + self._counts[url, None] for url, record in live.items()}
        mine = self.brokers.url
        return found | {mine: max(found.get(mine, 0), len(self._leases))}

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
                owner = replace(before, url=self.brokers.url, session=session.id, term=before.term + 1, heir=None)
            else:
                owner = replace(before, url=None, session=None, heir=heir)
            try:
                version = await self._put(key, owner, record)
            except (ConflictError, OutcomeUnknownError):
                continue
            if heir is not None:
                self.passed_on += 1
                raise NotOwnerError(f"{name} belongs to the broker {heir}")
            born = version if owner.born is None else owner.born
            unused = before.url is None and before.heir is None
            lease = self._lease(name, version, born, session, always=leased)
            return Owned(owner.term, lease, unused, owner.objects)
        raise StorageError(f"{name}: its owner cannot be read from the metadata store; try again")

    async def _passes_on(self, name: SegmentName, owner: Owner, siblings: Siblings | None) -> str | None:
        """The broker to leave it to, for the load; None: this one claims it.

        The siblings without an owner are placed with it, so that the segments of a new topic spread, although each is
        opened by itself, and most brokers have not heard of the others yet.
        """
        mine = owner.url == self.brokers.url and owner.session == self.brokers.session_id
        if siblings is None or self.alone or mine or self._live_heir(owner) is not None:
            return None
        names = {one.segment_id: str(one) for one in await siblings() if self._is_free(one)} | {
            name.segment_id: str(name)
        }
        placed = spread(dict.fromkeys((names[i] for i in sorted(names)), OPEN), self.loads())
        url = placed.get(str(name), self.brokers.url)
        return None if url == self.brokers.url else url

    def _is_free(self, name: SegmentName) -> bool:
        owner = self._owners.get(keys.segment(name)) or Owner.of(None)
        return self._live_owner(owner) is None and self._live_heir(owner) is None

    def _lease(self, name: SegmentName, term: int, born: int, session: Session, *, always: bool) -> OwnerLease | None:
        if not always and not isfinite(session.deadline):
            return None
        lease = self._leases[name] = OwnerLease(name, term, born, session, self._clock)
        return lease

    def session_lost(self) -> None:
        """Nothing is owned any more."""
        for lease in self._leases.values():
            lease.end()
        self._leases.clear()

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
        lease = self._leases.pop(name, None)
        if lease is not None:
            lease.end()

    async def claim_to_remove(self, name: SegmentName) -> OwnerLease | None:
        """Claim it until its store is deleted, where other brokers could own it. Raises as claim() does."""
        if not self._follows:
            return None
        lease = self._leases.get(name)
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
        key, wanted = keys.segment(name), None
        for _ in range(_CLAIMS_MAX):
            demands = await also()
            record = await self._metadata.newest.get(key)
            owner = Owner.of(record)
            if record is None or owner.term != owned.term or not self.is_mine(owner):
                raise NotOwnerError(f"{name} is not this broker's any more; look the topic up again")
            if wanted is not None and owner.objects == wanted:
                return wanted  # by a write whose outcome was unknown
            wanted = change(owner.objects)
            with contextlib.suppress(ConflictError, OutcomeUnknownError):
                await self._put(key, replace(owner, objects=wanted), record, demands)
                return wanted
        raise UnknownOutcomeError(f"{name}: the metadata store did not say whether its record was written")

    async def release(self, name: SegmentName, term: int, left: Closed = None) -> None:
        """Release a fully written segment to other brokers. If that fails, this process stays the owner.

        `left`: the own session's log, and where the segment's groups in it end (R9).
        """
        self.forget(name)
        if self.alone:
            return
        key = keys.segment(name)
        try:
            record = await self._metadata.newest.get(key)
            owner = Owner.of(record)
            if record is not None and owner.term == term and self.is_mine(owner):
                owner = replace(owner, url=None, session=None, objects=_closed(owner.objects, left))
                await self._put(key, owner, record)
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

    def listen(self, topic: TopicName, listener: Listener) -> Callable[[], None]:
        """Call `listener` when owners of the topic's segments may have changed. The result unsubscribes."""
        if not self._follows:
            return _nothing
        key = keys.topic(topic)
        self._listeners.setdefault(key, {})[listener] = None

        def end() -> None:
            listeners = self._listeners.get(key, {})
            listeners.pop(listener, None)
            if not listeners:
                self._listeners.pop(key, None)

        return end

    def _heard(self, event: Event) -> None:
        if event.kind is not EventKind.SNAPSHOT_END:
            self._changed(event.key, event.record)

    def _changed(self, key: str, record: Record | None) -> None:
        topic, _, segment_id = key.rpartition("/segments/")
        gone = self._owners.pop(key, Owner.of(None))
        before, after = self._live_owner(gone), Owner.of(record)
        self._count(gone, -1)
        self._count(after, 1)
        if record is not None:
            self._owners[key] = after
        self._notify(topic)
        owner = self._live_owner(after)
        if owner not in (before, self.brokers.url):
            self.answering(topic, int(segment_id), owner is not None)

    def _live_owner(self, owner: Owner) -> str | None:
        return owner.url if owner.url is not None and self.brokers.lives(owner.url, owner.session) else None

    def _live_heir(self, owner: Owner) -> str | None:
        return owner.heir if owner.url is None and owner.heir in self.brokers.takers else None

    def _count(self, owner: Owner, change: int) -> None:
        url, session = (owner.url, owner.session) if owner.url is not None else (owner.heir, None)
        if url is not None:
            self._counts[url, session] += change
            if not self._counts[url, session]:
                del self._counts[url, session]

    def _brokers_changed(self) -> None:
        for key in list(self._listeners):
            self._notify(key)

    def _notify(self, key: str) -> None:
        for listener in list(self._listeners.get(key, ())):
            listener()


def _closed(objects: SegmentObjects | None, left: Closed) -> SegmentObjects | None:
    return objects if objects is None or left is None else objects.handed_over(*left)


def _nothing() -> None:
    """A listener's end where nothing is watched."""
