"""`TopicLists`: the topics of namespaces as the metadata store has them, kept current for whoever watches them here.

One watch of the store serves a namespace, however many sessions look at it; those that ask for the same share one
list. A namespace that nobody looks at is forgotten after a while.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from engine.aio.bag import Bag
from engine.aio.tasks import Supervisor
from engine.control.resources import INDEX_TOPICS, ScalableTopicResources, topic_of_key
from engine.errors import AlreadyClosedError, EngineError
from engine.metadata import keys
from engine.metadata.store import Event, EventKind, Watch
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName, parse_namespace
from engine.model.topic_filter import TopicFilter

log = logging.getLogger(__name__)

LINGER_S = 60.0
_RESTART_S = 1.0
_LISTS_KEPT = 16


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What a list goes by. `created_ms` tells a topic from a later one of its name."""

    created_ms: int
    properties: Mapping[str, str]


class TopicListListener(Protocol):
    """Follows a TopicList. Must neither block nor raise; calls run on the loop."""

    def topic_left(self, name: str) -> None:
        """It is not in the list any more."""

    def topic_came(self, name: str) -> None:
        """It is in the list now. A topic that is deleted and made anew leaves and comes."""


class TopicList:
    """The topics of one namespace that pass one filter. Loop thread only.

    `names`: "topic://…", sorted. `born`: {name: when it was created, milliseconds}.
    """

    def __init__(self, topics: TopicFilter, facts: Mapping[TopicName, TopicFacts]) -> None:
        self.filter = topics
        passing = {str(n): f.created_ms for n, f in facts.items() if topics.passes(n.local, f.properties)}
        self.names = sorted(passing)
        self.born = passing
        self.listeners: Bag[TopicListListener] = Bag()
        self._hash: str | None = None

    @property
    def hash(self) -> str:
        """Of the sorted names, each with the time it was created: two lists of one hash are the same."""
        if self._hash is None:
            text = "\n".join([f"{name} {self.born[name]}" for name in self.names])
            self._hash = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return self._hash

    def changed(self, topic: TopicName, facts: TopicFacts | None) -> None:
        """How a topic of the namespace is now; None: it is gone."""
        name = str(topic)
        born = facts.created_ms if facts is not None and self.filter.passes(topic.local, facts.properties) else None
        before = self.born.get(name)
        if born == before:
            return
        self._hash = None
        if before is not None:
            del self.born[name]
            del self.names[bisect_left(self.names, name)]
            for listener in list(self.listeners):
                listener.topic_left(name)
        if born is not None:
            self.born[name] = born
            insort(self.names, name)
            for listener in list(self.listeners):
                listener.topic_came(name)


class TopicLists:
    """Loop thread only."""

    def __init__(self, resources: ScalableTopicResources) -> None:
        self._resources = resources
        self._namespaces: dict[str, _Namespace] = {}
        self._tasks = Supervisor("topic lists")

    async def open(self, namespace: str, topics: TopicFilter) -> TopicList:
        """The list as it is now. Who wants it to stay current joins its `listeners` at once, and calls leave() later.

        Raises InvalidArgumentError, AlreadyClosedError.
        """
        tenant, name = parse_namespace(namespace)
        known = self._namespaces.get(namespace)
        if known is None:
            known = self._namespaces[namespace] = _Namespace(self._resources, tenant, name)
            self._tasks.spawn(known.follow(), f"topics of {namespace}")
        known.looked_at += 1
        try:
            await known.ready()
            return known.list(topics)
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
        """Let a namespace go that nobody looks at for a while."""
        if known.unused and known.timer is None:
            known.timer = asyncio.get_running_loop().call_later(LINGER_S, self._rested, namespace, known)

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

    def __init__(self, resources: ScalableTopicResources, tenant: str, name: str) -> None:
        self._metadata = resources.metadata
        self._prefix = f"{keys.encode(tenant)}/{keys.encode(name)}/"
        self._facts: dict[TopicName, TopicFacts] = {}
        self._lists: dict[TopicFilter, TopicList] = {}
        self._known = asyncio.Event()  # a whole snapshot was read
        self._stopped = False
        self._watch: Watch | None = None
        self.looked_at = 0  # by whoever is opening a list
        self.timer: asyncio.TimerHandle | None = None

    async def ready(self) -> None:
        """All there is was read. Raises AlreadyClosedError."""
        await self._known.wait()
        if self._stopped:
            raise AlreadyClosedError("the broker is closing")

    @property
    def unused(self) -> bool:
        """Whether nobody looks at any list."""
        return not self.looked_at and not any(made.listeners for made in self._lists.values())

    def list(self, topics: TopicFilter) -> TopicList:
        """The one list of that filter. Of those that nobody follows a few are kept: they are read page by page."""
        found = self._lists.get(topics)
        if found is None:
            if len(self._lists) >= _LISTS_KEPT:
                self._lists = {f: made for f, made in self._lists.items() if made.listeners}
            found = self._lists[topics] = TopicList(topics, self._facts)
        return found

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
            except EngineError as e:
                log.warning("watch of the topics of %s broke off, starting it again: %s", self._prefix, e)
                await asyncio.sleep(_RESTART_S)

    async def _follow_once(self) -> None:
        shown: set[TopicName] | None = set()
        watch = self._metadata.watch_index(INDEX_TOPICS, self._prefix, keys.prefix_end(self._prefix))
        self._watch = watch
        try:
            async for event in watch:
                if self._stopped:
                    return
                if event.kind is not EventKind.SNAPSHOT_END:
                    topic = topic_of_key(event.key)
                    if shown is not None:
                        shown.add(topic)
                    self._changed(topic, event)
                elif shown is not None:  # of a later watch: what it does not show is gone
                    for topic in [t for t in self._facts if t not in shown]:
                        self._set(topic, None)
                    shown = None
                    self._known.set()
        finally:
            watch.close()

    def _changed(self, topic: TopicName, event: Event) -> None:
        try:
            self._set(topic, None if event.record is None else _facts_of(event.record.value))
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


def _facts_of(value: bytes) -> TopicFacts | None:
    """None: it is being deleted, which is gone for everybody but its leader. Raises CorruptionError."""
    deleting, created_ms, properties = SegmentLayout.facts_in(value)
    return None if deleting else TopicFacts(created_ms, properties)


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
