"""`TopicLists`: lists of the topics of namespaces, kept current for the sessions that watch them here.

    metadata store --one watch per namespace--> _Namespace: facts of all its topics
                                                   |  filter, in paced steps
                                                   v
                                                TopicList: one per filter, with its last changes
                                                   |  list_changed(); since(position)
                                                   v
                                                sessions, each with the number of changes that it has seen

Sessions that ask for the same filter share one list, and a session keeps only a position in the list's changes. A list
is made in steps, so that a namespace of any size does not block the loop; topics that change meanwhile are corrected at
the end. Memory is reserved before a namespace is read or a list made (list_memory.py). A namespace without readers is
dropped after a while.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from engine.aio.bag import Bag
from engine.aio.memory_limiter import AsyncDualMemoryLimiter
from engine.aio.pace import Pace
from engine.aio.shielded import shielded
from engine.aio.tasks import Supervisor
from engine.control.base.topic_records import INDEX_TOPICS, ScalableTopicResources, topic_of_key
from engine.control.topic.list_memory import LIST_SIZE, LISTED_NAME_SIZE, READ_TOPIC_SIZE, Growing, permit_of
from engine.errors import AlreadyClosedError, EngineError, MemoryLimitError, TooManyRequestsError
from engine.limits import TOPIC_CHANGES_KEPT
from engine.metadata import keys
from engine.metadata.store import Event, EventKind, MetadataStore, Watch
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName, parse_namespace
from engine.model.topic_filter import TopicFilter

log = logging.getLogger(__name__)

LINGER_S = 60.0
_RESTART_S = 1.0
_LISTS_KEPT = 16
_LISTS_MAX = 4_096  # of one namespace; each is updated with each change
_MADE_AT_ONCE = 100  # names: a step that hardly delays other work
_READ_AT_ONCE = 25  # records, which must be parsed
_lists = itertools.count(1)
LISTED_NAMES_MAX = 1_000_000  # in all lists of one namespace; a single list may exceed it


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """The facts for filters. `created_ms` tells a topic from a later one of the same name."""

    created_ms: int
    properties: Mapping[str, str]
    name: str = ""  # "topic://…", one for all lists


class TopicListListener(Protocol):
    """A follower of a TopicList. Must neither block nor raise; calls run on the loop."""

    def list_changed(self) -> None:
        """A topic came or left; `since()` returns the changes."""


Change = tuple[str, int | None]  # a name, and when the topic was created, milliseconds; None: it has left


class TopicList:
    """The topics of one namespace that pass one filter. Loop thread only.

    `names`: "topic://…", sorted; `births`: when each was created, milliseconds. Texts and numbers are shared with
    TopicFacts, so that another list of a namespace takes two references per name. A follower keeps only the number of
    `changes` that it has seen: the last TOPIC_CHANGES_KEPT of them are stored here. `ident` is unique.
    """

    def __init__(self, topics: TopicFilter) -> None:
        self.ident = next(_lists)
        self.filter = topics
        self.names: list[str] = []
        self.births: list[int] = []
        self.listeners: Bag[TopicListListener] = Bag()
        self.changes = 0
        self._kept: deque[Change] = deque(maxlen=TOPIC_CHANGES_KEPT)
        self._sum = 0
        self._ordered = True  # whether fill() got the names in order

    @property
    def hash(self) -> str:
        """A hash of names and creation times: lists with the same hash are equal."""
        return f"{self._sum:032x}"

    def since(self, position: int, most: int) -> list[Change] | None:
        """The changes after the first `position`, in order, up to `most`; None when they are no longer stored.

        A topic that is deleted and created anew leaves and comes.
        """
        behind = self.changes - position
        if behind > len(self._kept):
            return None
        start = len(self._kept) - behind
        return [self._kept[at] for at in range(start, min(start + most, len(self._kept)))] if behind else []

    def fill(self, facts: Mapping[TopicName, TopicFacts]) -> None:
        """Add some of the topics, before the list has followers; finish() comes after the last."""
        for topic, one in facts.items():
            if self.filter.passes(topic.local, one.properties):
                name = one.name or str(topic)
                self._sum = (self._sum + _digest(name, one.created_ms)) % _HASHES
                self._ordered = self._ordered and (not self.names or name > self.names[-1])
                self.names.append(name)
                self.births.append(one.created_ms)

    def finish(self) -> None:
        """All topics were given to fill(), each once."""
        if not self._ordered:
            order = sorted(range(len(self.names)), key=self.names.__getitem__)
            self.births = [self.births[at] for at in order]
            self.names = [self.names[at] for at in order]
            self._ordered = True

    def born(self) -> dict[str, int]:
        """{name: creation time in milliseconds}."""
        return dict(zip(self.names, self.births, strict=True))

    def changed(self, topic: TopicName, facts: TopicFacts | None) -> None:
        """A topic of the namespace changed; None: it was deleted."""
        name = facts.name if facts is not None and facts.name else str(topic)
        born = facts.created_ms if facts is not None and self.filter.passes(topic.local, facts.properties) else None
        at = bisect_left(self.names, name)
        before = self.births[at] if at < len(self.names) and self.names[at] == name else None
        if born == before:
            return
        if before is not None:
            del self.names[at], self.births[at]
            self._note(name, None, -_digest(name, before))
        if born is not None:
            self.names.insert(at, name)
            self.births.insert(at, born)
            self._note(name, born, _digest(name, born))
        for listener in list(self.listeners):
            listener.list_changed()

    def _note(self, name: str, born: int | None, digest: int) -> None:
        self._sum = (self._sum + digest) % _HASHES
        self._kept.append((name, born))
        self.changes += 1


_HASHES = 1 << 128


def _digest(name: str, born: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{name} {born}".encode(), digest_size=16).digest(), "little")


class TopicLists:
    """The lists of one broker. Loop thread only."""

    def __init__(
        self, resources: ScalableTopicResources, pace: Pace | None = None, memory: AsyncDualMemoryLimiter | None = None
    ) -> None:
        """`pace`: for reading namespaces and making lists. `memory`: their limit; None: no limit."""
        self._resources = resources
        self.pace = pace or Pace()
        self.memory = memory
        self._namespaces: dict[str, _Namespace] = {}
        self._tasks = Supervisor("topic lists")

    @property
    def namespaces(self) -> int:
        """The number of namespaces that are followed."""
        return len(self._namespaces)

    async def open(self, namespace: str, topics: TopicFilter) -> TopicList:
        """The present list. To keep it current, add a listener to `listeners` at once, and call leave() later.

        Raises InvalidArgumentError, AlreadyClosedError, TooManyRequestsError.
        """
        tenant, name = parse_namespace(namespace)
        known = self._namespaces.get(namespace)
        if known is None:
            known = self._namespaces[namespace] = _Namespace(self, self._resources.metadata, tenant, name)
            self._tasks.spawn(known.follow(), f"topics of {namespace}")
        known.looked_at += 1
        try:
            await known.ready()
            return await known.list(topics)
        finally:
            known.looked_at -= 1
            self._rest(namespace, known)

    def leave(self, namespace: str, topics: TopicList, listener: TopicListListener) -> None:
        """Remove a listener."""
        topics.listeners.discard(listener)
        known = self._namespaces.get(namespace)
        if known is not None:
            self._rest(namespace, known)

    def _rest(self, namespace: str, known: _Namespace) -> None:
        """Drop a namespace without readers after a while; at once, if it has no topics."""
        if known.unused and known.timer is None:
            pause = 0 if known.empty else LINGER_S
            known.timer = asyncio.get_running_loop().call_later(pause, self._rested, namespace, known)

    def _rested(self, namespace: str, known: _Namespace) -> None:
        known.timer = None
        if known.unused and self._namespaces.get(namespace) is known:
            del self._namespaces[namespace]
            known.stop()

    async def close(self) -> None:
        """End all watches. Idempotent."""
        namespaces, self._namespaces = self._namespaces, {}
        for known in namespaces.values():
            known.stop()
        await self._tasks.close()


class _Namespace:
    """The topics of one namespace, and the lists made of them."""

    def __init__(self, lists: TopicLists, metadata: MetadataStore, tenant: str, name: str) -> None:
        self._metadata = metadata
        self._pace, self._memory = lists.pace, lists.memory
        self._unreadable: MemoryLimitError | None = None  # no memory was available to read it
        self._prefix = f"{keys.encode(tenant)}/{keys.encode(name)}/"
        self._facts: dict[TopicName, TopicFacts] = {}
        self._lists: dict[TopicFilter, TopicList] = {}
        self._making: dict[TopicFilter, asyncio.Future[None]] = {}
        self._asked: Counter[TopicFilter] = Counter()  # requests that are opening a list
        self._changing: dict[TopicFilter, dict[TopicName, None]] = {}  # topics that changed while a list is being made
        self._known = asyncio.Event()  # a whole snapshot was read
        self._stopped = False
        self._watch: Watch | None = None
        self.looked_at = 0  # requests that are opening a list
        self.timer: asyncio.TimerHandle | None = None

    async def ready(self) -> None:
        """Wait until all topics were read. Raises AlreadyClosedError, MemoryLimitError."""
        if not self._known.is_set():
            await self._known.wait()
            await self._pace.turn()  # many requests may have waited
        if self._unreadable is not None:
            raise type(self._unreadable)(str(self._unreadable))
        if self._stopped:
            raise AlreadyClosedError("the broker is closing")

    @property
    def unused(self) -> bool:
        """Whether no list has readers."""
        return not self.looked_at and not any(made.listeners for made in self._lists.values())

    @property
    def empty(self) -> bool:
        """Whether it has no topics: clients can name any number of such namespaces."""
        return not self._facts or self._unreadable is not None

    async def list(self, topics: TopicFilter) -> TopicList:
        """The list of that filter. Some lists without followers are kept: clients read them page by page."""
        self._asked[topics] += 1
        try:
            while (found := self._lists.get(topics)) is None:
                await shielded(self._make_once(topics))
                await self._pace.turn()  # many requests may have waited
            return found
        finally:
            self._asked[topics] -= 1
            if not self._asked[topics]:
                del self._asked[topics]

    def _make_once(self, topics: TopicFilter) -> asyncio.Future[None]:
        made = self._making.get(topics)
        if made is None:
            made = self._making[topics] = asyncio.ensure_future(self._make(topics))
            # Its requests may have been cancelled.
            made.add_done_callback(lambda done: done.cancelled() or done.exception())
        return made

    async def _make(self, topics: TopicFilter) -> None:
        """Make a list in steps, with other work in between. Topics that changed meanwhile are corrected at the end."""
        try:
            self._check_room()
            async with permit_of(self._memory, LIST_SIZE + LISTED_NAME_SIZE * len(self._facts)):
                made, names = TopicList(topics), list(self._facts)
                changed = self._changing[topics] = {}
                for start in range(0, len(names), _MADE_AT_ONCE):
                    await self._pace.turn()
                    some = names[start : start + _MADE_AT_ONCE]
                    made.fill({name: self._facts[name] for name in some if name in self._facts})
                made.finish()
                for topic in changed:
                    made.changed(topic, self._facts.get(topic))
                self._lists[topics] = made
        finally:
            self._changing.pop(topics, None)
            del self._making[topics]

    def _check_room(self) -> None:
        """Drop lists without followers when there are many. Raises TooManyRequestsError when that does not suffice."""
        if len(self._lists) >= _LISTS_KEPT:
            self._lists = {f: made for f, made in self._lists.items() if made.listeners or f in self._asked}
        if len(self._lists) >= _LISTS_MAX:
            raise TooManyRequestsError(
                f"{_LISTS_MAX} lists of this namespace are followed; use a filter of one of them"
            )
        names = sum(len(made.names) for made in self._lists.values())
        if self._lists and names + len(self._facts) > LISTED_NAMES_MAX:
            raise TooManyRequestsError(
                f"the followed lists of this namespace have {names} names; another list may exceed the limit"
                f" of {LISTED_NAMES_MAX}: use a filter that is followed already, or try again later"
            )

    def stop(self) -> None:
        """End the watch, and wake waiting requests."""
        self._stopped = True
        self._known.set()
        if self._watch is not None:
            self._watch.close()
        if self.timer is not None:
            self.timer.cancel()

    async def follow(self) -> None:
        """Read the store's watch as long as the namespace has readers."""
        while not self._stopped:
            try:
                await self._follow_once()
                return  # the store was closed
            except AlreadyClosedError:
                return
            except MemoryLimitError as e:
                if not self._known.is_set():  # waiting requests get the error; the next one begins anew
                    self._unreadable = e
                    self.stop()
                    return
                await asyncio.sleep(_RESTART_S)
            except EngineError as e:
                log.warning("the watch of the topics of %s failed, restarting it: %s", self._prefix, e)
                await asyncio.sleep(_RESTART_S)

    async def _follow_once(self) -> None:
        shown: set[TopicName] | None = set()
        again = bool(self._facts)
        watch = self._metadata.watch_index(INDEX_TOPICS, self._prefix, keys.prefix_end(self._prefix))
        self._watch = watch
        try:
            async with Growing(self._memory) as room:
                async for event in watch:
                    if shown is not None and len(shown) % _READ_AT_ONCE == 0:
                        await self._pace.turn()
                    if self._stopped:
                        return
                    if event.kind is not EventKind.SNAPSHOT_END:
                        topic = topic_of_key(event.key)
                        if shown is not None:
                            shown.add(topic)
                            await room.grow(READ_TOPIC_SIZE + (0 if event.record is None else len(event.record.value)))
                        self._changed(topic, event)
                    elif shown is not None:
                        if again:  # topics of an earlier watch that this snapshot does not show are gone
                            for topic in [t for t in self._facts if t not in shown]:
                                self._set(topic, None)
                        shown = None
                        room.release()
                        self._known.set()
        finally:
            watch.close()

    def _changed(self, topic: TopicName, event: Event) -> None:
        try:
            self._set(topic, None if event.record is None else _facts_of(topic, event.record.value))
        except EngineError as e:
            log.error("the record %s is damaged and ignored: %s", event.key, e)

    def _set(self, topic: TopicName, facts: TopicFacts | None) -> None:
        if self._facts.get(topic) == facts:
            return
        if facts is None:
            self._facts.pop(topic, None)
        else:
            self._facts[topic] = facts
        for made in self._lists.values():
            made.changed(topic, facts)
        for changed in self._changing.values():
            changed[topic] = None


def _facts_of(topic: TopicName, value: bytes) -> TopicFacts | None:
    """None while it is being deleted: it is gone for all but its leader. Raises CorruptionError."""
    deleting, created_ms, properties = SegmentLayout.facts_in(value)
    return None if deleting else TopicFacts(created_ms, properties, str(topic))


async def list_topics(
    resources: ScalableTopicResources, namespace: str, properties: Mapping[str, str] | None = None
) -> list[str]:
    """The names "topic://…" of a "tenant/namespace" in the store now, sorted; only those that have all these
    properties.

    Raises InvalidArgumentError.
    """
    found = await resources.list_topics(*parse_namespace(namespace))
    leaving = await resources.leaving(*parse_namespace(namespace))
    wanted = (properties or {}).items()
    return [
        str(name)
        for name, value in found
        if name not in leaving and (not wanted or wanted <= SegmentLayout.properties_in(value).items())
    ]
