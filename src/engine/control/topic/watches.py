"""`TopicWatches`: forwards changes in the metadata store to the listeners on this broker (PIP-468).

Where the broker has the store to itself, two watches serve all topics, and a topic without listeners costs nothing.
Where brokers share a store, each follows only the topics with listeners or a controller here, by two watches each: what
it receives does not grow with the topics of the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from engine.aio.tasks import Supervisor
from engine.control.base.ports import TopicListener, TopicView
from engine.control.base.topic_records import (
    INDEX_CONTROLLERS,
    INDEX_TOPICS,
    LeaderRecord,
    ScalableTopicResources,
    TopicRecord,
    index_key,
    topic_of_key,
)
from engine.errors import EngineError, NotFoundError
from engine.metadata import keys
from engine.metadata.following import follow
from engine.metadata.store import Event, EventKind, Record
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName

if TYPE_CHECKING:
    from engine.metadata.selection import Selection

log = logging.getLogger(__name__)

TopicSeen = Callable[[str, TopicRecord], None]
LeaderSeen = Callable[[str, LeaderRecord | None], None]


class _Watched:
    """One topic with listeners: its newest facts, and its watches."""

    __slots__ = ("announced", "leader_url", "leader_version", "listeners", "record", "topic", "version")

    def __init__(self, topic: TopicName, leader_url: str) -> None:
        self.topic = topic
        self.record: TopicRecord | None = None
        self.version = -1  # of the newest event of the topic's record, deletions included
        self.leader_url = leader_url
        self.leader_version = -1
        self.listeners: dict[_Watch, None] = {}
        self.announced: TopicView | None = None

    def view(self) -> TopicView | None:
        if self.record is None:
            return None
        return TopicView(self.topic, self.record.layout, self.leader_url)


class _Watch:
    """One listener's watch; ports.TopicWatch."""

    __slots__ = ("_last", "_listener", "_started", "_watched", "_watches")

    def __init__(self, watches: TopicWatches, watched: _Watched, listener: TopicListener) -> None:
        self._watches = watches
        self._watched = watched
        self._listener: TopicListener | None = listener
        self._last: TopicView | None = None
        self._started = False

    @property
    def view(self) -> TopicView:
        """The newest view; of a deleted topic, the last one. Raises NotFoundError when there never was one."""
        self._last = self._watched.view() or self._last
        if self._last is None:
            raise NotFoundError(f"{self._watched.topic} does not exist")
        return self._last

    def start(self) -> None:
        """Call the listener from now on, for views after the present one, which the caller has."""
        self._last = self._watched.view()
        self._started = True

    def close(self) -> None:
        """End the watch. Idempotent."""
        self._listener = None
        self._watches.forget(self._watched, self)

    def notify(self, view: TopicView | None) -> None:
        """None: the topic was deleted; nothing follows."""
        self._last = view or self._last
        listener = self._listener if self._started else None
        if view is None:
            self.close()
            if listener is not None:
                listener.topic_deleted()
        elif listener is not None:
            listener.topic_changed(view)


class TopicWatches:
    """Loop thread only. Topics are keyed by their record.

    `led`: the topics with a controller here. `topic_seen` is called for these, `leader_seen` for all topics that are
    followed. `leaders_shown`: all present leaders were reported; a leader that is gone may never have been. `selects`:
    only topics with listeners are followed, and those that follow() names; else all.
    """

    def __init__(
        self,
        resources: ScalableTopicResources,
        broker_url: str,
        *,
        led: Callable[[], Collection[str]],
        topic_seen: TopicSeen,
        leader_seen: LeaderSeen,
        leaders_shown: Callable[[], None],
        selects: bool = False,
    ) -> None:
        self._resources = resources
        self._broker_url = broker_url
        self._led = led
        self._topic_seen = topic_seen
        self._leader_seen = leader_seen
        self._leaders_shown = leaders_shown
        self._watched: dict[str, _Watched] = {}
        self._tasks = Supervisor("topic watches")
        store = resources.metadata
        self._selected: tuple[Selection[TopicName], ...] = ()
        if selects:
            from engine.metadata.selection import Selection

            self._selected = (
                Selection(store, INDEX_TOPICS, _only, self._topic_event, self._known_topic, self._tasks),
                Selection(store, INDEX_CONTROLLERS, _only, self._leader_event, self._known_leader, self._tasks),
            )

    def start(self) -> None:
        """Begin to follow the store."""
        if self._selected:
            self._leaders_shown()
            return
        self._follow(INDEX_TOPICS, self._topic_event, lambda: self._watched.keys())
        self._follow(INDEX_CONTROLLERS, self._leader_event, self._leaders)

    async def close(self) -> None:
        """End all watches; listeners are not called any more. Idempotent."""
        await self._tasks.close()
        self._watched.clear()

    async def watch(self, topic: TopicName, listener: TopicListener) -> _Watch:
        """A watch with its first view. Raises NotFoundError."""
        key = keys.topic(topic)
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(topic, self._broker_url)
            self.follow(topic)
        watch = _Watch(self, watched, listener)
        watched.listeners[watch] = None  # before the reads, so that no change is missed
        try:
            await self._refresh(watched)
        except BaseException:
            watch.close()
            raise
        if watched.record is None or watch not in watched.listeners:
            watch.close()
            raise NotFoundError(f"{topic} does not exist")
        watch.start()
        return watch

    async def _refresh(self, watched: _Watched) -> None:
        leader = await self._resources.known_leader(watched.topic)
        record = await self._resources.known_topic(watched.topic)
        if leader is not None and leader.term > watched.leader_version:
            watched.leader_version, watched.leader_url = leader.term, leader.url
        if record is not None and record.version > watched.version:
            self._apply(watched, record, record.version)

    def forget(self, watched: _Watched, watch: _Watch) -> None:
        """Remove a listener, and the topic with its last one."""
        watched.listeners.pop(watch, None)
        key = keys.topic(watched.topic)
        if not watched.listeners and self._watched.get(key) is watched:
            del self._watched[key]
            self.leave(watched.topic)

    def follow(self, topic: TopicName) -> None:
        """Report what becomes of a topic, until leave()."""
        for selection in self._selected:
            selection.add(topic)

    def leave(self, topic: TopicName) -> None:
        """Undo one follow()."""
        for selection in self._selected:
            selection.drop(topic)

    def cached(self, topic: TopicName) -> TopicRecord | None:
        """A watched topic's newest record seen here."""
        watched = self._watched.get(keys.topic(topic))
        return None if watched is None else watched.record

    # What the store says.

    def _follow(self, index: str, heard: Callable[[Event], None], known: Callable[[], Collection[str]]) -> None:
        store = self._resources.metadata
        self._tasks.spawn(
            follow(store, lambda: store.watch_index(index, "", keys.LAST), heard, known, what=index), index
        )

    def _known_topic(self, topic: TopicName) -> Collection[str]:
        key = keys.topic(topic)
        watched = self._watched.get(key)
        return [key] if watched is not None and watched.record is not None else []

    def _known_leader(self, topic: TopicName) -> Collection[str]:
        key = keys.topic(topic)
        watched = self._watched.get(key)
        known = watched is not None and watched.leader_version >= 0
        return [keys.controller(topic)] if known or key in self._led() else []

    def _leaders(self) -> Collection[str]:
        """The keys of leaders' records that matter here."""
        return [keys.controller(topic_of_key(key)) for key in {*self._watched, *self._led()}]

    def _topic_event(self, event: Event) -> None:
        watched = self._watched.get(event.key)
        if watched is None and event.key not in self._led():
            return  # also the end of a snapshot
        record = None if event.record is None else _parse(event.record)
        if event.record is not None and record is None:
            return
        if record is not None:
            self._topic_seen(event.key, record)
        if watched is not None and event.version > watched.version:
            self._apply(watched, record, event.version)

    def _apply(self, watched: _Watched, record: TopicRecord | None, version: int) -> None:
        before, watched.version = watched.record, version
        gone = record is None or record.layout.deleting or _born_again(before, record)
        watched.record = None if gone else record
        if gone and before is not None:
            watched.announced = None
            for watch in list(watched.listeners):
                watch.notify(None)
        else:
            self._notify(watched)

    def _leader_event(self, event: Event) -> None:
        if event.kind is EventKind.SNAPSHOT_END:
            if not self._selected:
                self._leaders_shown()
            return
        key = event.key.rpartition("/")[0]
        leader = None if event.record is None else _leader(event.record)
        self._leader_seen(key, leader)
        watched = self._watched.get(key)
        if watched is not None and event.version > watched.leader_version:
            watched.leader_version = event.version
            watched.leader_url = self._broker_url if leader is None else leader.url
            self._notify(watched)

    def _notify(self, watched: _Watched) -> None:
        view, announced = watched.view(), watched.announced
        if view is None:
            return
        watched.announced = view
        same = (
            announced is not None
            and announced.layout.epoch == view.layout.epoch
            and announced.controller_url == view.controller_url
        )
        if announced is not None and not same:
            for watch in list(watched.listeners):
                watch.notify(view)


def _only(topic: TopicName) -> tuple[str, str]:
    """The range of an index that holds this topic alone."""
    key = index_key(topic)
    return key, f"{key}\0"


def _parse(record: Record) -> TopicRecord | None:
    try:
        return TopicRecord(SegmentLayout.from_json(record.value), record.stat.version)
    except EngineError as e:
        log.error("the record %s is damaged and ignored: %s", record.key, e)
        return None


def _leader(record: Record) -> LeaderRecord:
    return LeaderRecord(record.value.decode(), record.stat.version, record.stat.session)


def _born_again(before: TopicRecord | None, after: TopicRecord) -> bool:
    """Whether the topic was deleted and created anew between two events, which may collapse (semantics 37)."""
    if before is None:
        return False
    old, new = before.layout, after.layout
    return new.epoch < old.epoch or new.created_at_ms != old.created_at_ms
