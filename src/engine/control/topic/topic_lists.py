"""`TopicLists`: the topics of namespaces as the metadata store has them, kept current for whoever watches them here.

One watch of the store serves a namespace, however many sessions look at it; those that ask for the same share one
list. A namespace that nobody looks at is forgotten after a while.
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
_LISTS_MAX = 4_096  # of one namespace; each is told of each change
_MADE_AT_ONCE = 100  # names: a step that hardly anybody notices
_READ_AT_ONCE = 25  # records, which have to be parsed
_lists = itertools.count(1)
LISTED_NAMES_MAX = 1_000_000  # in the lists of one namespace together; one list is made in any case


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What a list goes by. `created_ms` tells a topic from a later one of its name."""

    created_ms: int
    properties: Mapping[str, str]
    name: str = ""  # "topic://…", one for all lists


class TopicListListener(Protocol):
    """Follows a TopicList. Must neither block nor raise; calls run on the loop."""

    def list_changed(self) -> None:
        """Something has left or come; `since()` says what."""


Change = tuple[str, int | None]  # a name, and when the topic was created, milliseconds; None: it has left


class TopicList:
    """The topics of one namespace that pass one filter. Loop thread only.

    `names`: "topic://…", sorted; `births`: when each was created, milliseconds. The texts and numbers are those of
    TopicFacts, so that one more list of a namespace takes two references for a name. A follower of the list keeps
    nothing but how many `changes` it has seen: the last TOPIC_CHANGES_KEPT of them are here, once for all. `ident` is
    no other list's.
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
        self._ordered = True  # whether the names that fill() was given came in order

    @property
    def hash(self) -> str:
        """Of the names, each with the time it was created: two lists of one hash are the same."""
        return f"{self._sum:032x}"

    def since(self, position: int, most: int) -> list[Change] | None:
        """What changed after the first `position` changes, in order, up to `most`; None when it is forgotten.

        A topic that is deleted and made anew leaves and comes.
        """
        behind = self.changes - position
        if behind > len(self._kept):
            return None
        start = len(self._kept) - behind
        return [self._kept[at] for at in range(start, min(start + most, len(self._kept)))] if behind else []

    def fill(self, facts: Mapping[TopicName, TopicFacts]) -> None:
        """Some of the topics there are, before anybody follows it; finish() comes after the last."""
        for topic, one in facts.items():
            if self.filter.passes(topic.local, one.properties):
                name = one.name or str(topic)
                self._sum = (self._sum + _digest(name, one.created_ms)) % _HASHES
                self._ordered = self._ordered and (not self.names or name > self.names[-1])
                self.names.append(name)
                self.births.append(one.created_ms)

    def finish(self) -> None:
        """All were given to fill(), each once."""
        if not self._ordered:
            order = sorted(range(len(self.names)), key=self.names.__getitem__)
            self.births = [self.births[at] for at in order]
            self.names = [self.names[at] for at in order]
            self._ordered = True

    def born(self) -> dict[str, int]:
        """When each was created, by its name."""
        return dict(zip(self.names, self.births, strict=True))

    def changed(self, topic: TopicName, facts: TopicFacts | None) -> None:
        """How a topic of the namespace is now; None: it is gone."""
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
    """Loop thread only."""

    def __init__(
        self, resources: ScalableTopicResources, pace: Pace | None = None, memory: AsyncDualMemoryLimiter | None = None
    ) -> None:
        """`pace`: of reading a namespace and making lists of it. `memory`: what both may take; None: no limit."""
        self._resources = resources
        self.pace = pace or Pace()
        self.memory = memory
        self._namespaces: dict[str, _Namespace] = {}
        self._tasks = Supervisor("topic lists")

    @property
    def namespaces(self) -> int:
        """How many are followed."""
        return len(self._namespaces)

    async def open(self, namespace: str, topics: TopicFilter) -> TopicList:
        """The list as it is now. Who wants it to stay current joins its `listeners` at once, and calls leave() later.

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
        """The listener hears no more."""
        topics.listeners.discard(listener)
        known = self._namespaces.get(namespace)
        if known is not None:
            self._rest(namespace, known)

    def _rest(self, namespace: str, known: _Namespace) -> None:
        """Let a namespace go that nobody looks at for a while; at once, if there is nothing to know of it."""
        if known.unused and known.timer is None:
            pause = 0 if known.empty else LINGER_S
            known.timer = asyncio.get_running_loop().call_later(pause, self._rested, namespace, known)

    def _rested(self, namespace: str, known: _Namespace) -> None:
        known.timer = None
        if known.unused and self._namespaces.get(namespace) is known:
            del self._namespaces[namespace]
            known.stop()

    async def close(self) -> None:
        """Follow no more. Idempotent."""
        namespaces, self._namespaces = self._namespaces, {}
        for known in namespaces.values():
            known.stop()
        await self._tasks.close()


class _Namespace:
    """What is known of one namespace, and the lists that are made of it."""

    def __init__(self, lists: TopicLists, metadata: MetadataStore, tenant: str, name: str) -> None:
        self._metadata = metadata
        self._pace, self._memory = lists.pace, lists.memory
        self._unreadable: MemoryLimitError | None = None  # there was no memory to read it
        self._prefix = f"{keys.encode(tenant)}/{keys.encode(name)}/"
        self._facts: dict[TopicName, TopicFacts] = {}
        self._lists: dict[TopicFilter, TopicList] = {}
        self._making: dict[TopicFilter, asyncio.Future[None]] = {}
        self._asked: Counter[TopicFilter] = Counter()  # by whom a list is being opened
        self._changing: dict[TopicFilter, dict[TopicName, None]] = {}  # topics that changed while a list is made
        self._known = asyncio.Event()  # a whole snapshot was read
        self._stopped = False
        self._watch: Watch | None = None
        self.looked_at = 0  # by whoever is opening a list
        self.timer: asyncio.TimerHandle | None = None

    async def ready(self) -> None:
        """All there is was read. Raises AlreadyClosedError, MemoryLimitError."""
        if not self._known.is_set():
            await self._known.wait()
            await self._pace.turn()  # many have waited
        if self._unreadable is not None:
            raise type(self._unreadable)(str(self._unreadable))
        if self._stopped:
            raise AlreadyClosedError("the broker is closing")

    @property
    def unused(self) -> bool:
        """Whether nobody looks at any list."""
        return not self.looked_at and not any(made.listeners for made in self._lists.values())

    @property
    def empty(self) -> bool:
        """Whether it has no topics: anybody can name such namespaces, as many as he likes."""
        return not self._facts or self._unreadable is not None

    async def list(self, topics: TopicFilter) -> TopicList:
        """The one list of that filter. Of those that nobody follows a few are kept: they are read page by page."""
        self._asked[topics] += 1
        try:
            while (found := self._lists.get(topics)) is None:
                await asyncio.shield(self._make_once(topics))
                await self._pace.turn()  # many have waited
            return found
        finally:
            self._asked[topics] -= 1
            if not self._asked[topics]:
                del self._asked[topics]

    def _make_once(self, topics: TopicFilter) -> asyncio.Future[None]:
        made = self._making.get(topics)
        if made is None:
            made = self._making[topics] = asyncio.ensure_future(self._make(topics))
            made.add_done_callback(lambda done: done.cancelled() or done.exception())  # who asked may have gone
        return made

    async def _make(self, topics: TopicFilter) -> None:
        """Make a list in steps: others are served meanwhile. What changes meanwhile is put right at the end."""
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
        """Let go of lists that nobody follows when they are many. Raises TooManyRequestsError when others are."""
        if len(self._lists) >= _LISTS_KEPT:
            self._lists = {f: made for f, made in self._lists.items() if made.listeners or f in self._asked}
        if len(self._lists) >= _LISTS_MAX:
            raise TooManyRequestsError(
                f"{_LISTS_MAX} lists of this namespace are followed; use a filter of one of them"
            )
        names = sum(len(made.names) for made in self._lists.values())
        if self._lists and names + len(self._facts) > LISTED_NAMES_MAX:
            raise TooManyRequestsError(
                f"the lists of this namespace that others follow have {names} names; one more may be too much"
                f" (at most {LISTED_NAMES_MAX}): use a filter that somebody follows, or try again later"
            )

    def stop(self) -> None:
        """End it, and wake who waits."""
        self._stopped = True
        self._known.set()
        if self._watch is not None:
            self._watch.close()
        if self.timer is not None:
            self.timer.cancel()

    async def follow(self) -> None:
        """Read the store's watch as long as anybody may ask."""
        while not self._stopped:
            try:
                await self._follow_once()
                return  # the store was closed
            except AlreadyClosedError:
                return
            except MemoryLimitError as e:
                if not self._known.is_set():  # who asks is told; who asks next begins anew
                    self._unreadable = e
                    self.stop()
                    return
                await asyncio.sleep(_RESTART_S)
            except EngineError as e:
                log.warning("watch of the topics of %s broke off, starting it again: %s", self._prefix, e)
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
                        if again:  # what an earlier watch has shown and this one does not is gone
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
    """None: it is being deleted, which is gone for everybody but its leader. Raises CorruptionError."""
    deleting, created_ms, properties = SegmentLayout.facts_in(value)
    return None if deleting else TopicFacts(created_ms, properties, str(topic))


async def list_topics(
    resources: ScalableTopicResources, namespace: str, properties: Mapping[str, str] | None = None
) -> list[str]:
    """The names "topic://…" of a "tenant/namespace" as the store has them now, sorted; only those that have all these
    properties. Raises InvalidArgumentError.
    """
    found = await resources.list_topics(*parse_namespace(namespace))
    leaving = await resources.leaving(*parse_namespace(namespace))
    wanted = (properties or {}).items()
    return [
        str(name)
        for name, value in found
        if name not in leaving and (not wanted or wanted <= SegmentLayout.properties_in(value).items())
    ]
