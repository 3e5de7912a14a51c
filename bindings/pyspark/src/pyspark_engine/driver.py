"""What a streaming query keeps in its driver: one client, a view of each topic, and what was known last."""

from __future__ import annotations

import asyncio
import select
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import engine
from pyspark_engine.connection import connect_async
from pyspark_engine.options import ReadOptions, Topics
from pyspark_engine.planning import named_topics

TOPICS_S = 1.0  # between two looks at which topics a namespace has
TIMERS_S = 1.0  # between two looks at what is due: a sign of life for a broker, a new topic

Facts = dict[str, engine.TopicSegments]
T = TypeVar("T")


class View:
    """A topic's view for code that does not await."""

    def __init__(self, driver: Driver, view: engine.AsyncTopicView) -> None:
        self._driver = driver
        self._view = view

    def resolve(self, place: engine.Checkpoint) -> engine.Checkpoint:
        return self._driver.run(self._view.resolve(place))


class Driver:
    """Follows the topics of a query. Used by one thread.

    Spark asks every few milliseconds while there is nothing to do, in a thread that does nothing else. So the client's
    event loop runs in that thread, whenever it is asked: no other thread has to be woken for an answer.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(selector)
        self._ready = select.poll()  # whether anything has arrived, without the loop
        self._ready.register(selector.fileno(), select.POLLIN)
        self._due = 0.0  # when the loop is to be run though nothing has come
        self._quiet = False  # the last answer still holds: no request is needed
        self._client = self.run(connect_async(options.connection))
        self._views: dict[str, engine.AsyncTopicView] = {}
        self._listed_at = -TOPICS_S
        self.known: Facts = {}

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(coroutine)

    def facts(self, *, exact: bool = False) -> Facts:
        """How far each topic reaches: `known` from then on, the very object of the last time if nothing has changed.

        Owners that were asked twice in vain report changes by themselves from then on.
        """
        if self._quiet and not exact and time.monotonic() < self._due and not self._ready.poll(0):
            return self.known  # all that could have changed it comes through a socket
        self._hear()
        if exact or not self._is_unchanged():
            self.run(self._facts(exact))
        self._quiet = self._is_unchanged()
        return self.known

    def _hear(self) -> None:
        """Take in what has come meanwhile, and wait for nothing."""
        self._due = time.monotonic() + TIMERS_S
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()

    def _is_unchanged(self) -> bool:
        return bool(self.known) and not self._is_search_due() and all(v.unchanged for v in self._views.values())

    def _is_search_due(self) -> bool:
        return self._options.topics.namespace is not None and time.monotonic() >= self._listed_at + TOPICS_S

    async def _facts(self, exact: bool) -> None:
        await self._search_topics(exact)
        found = {topic: await self._facts_of(topic, view, exact) for topic, view in self._views.items()}
        if found.keys() != self.known.keys() or any(facts is not self.known[t] for t, facts in found.items()):
            self.known = found

    async def _facts_of(self, topic: str, view: engine.AsyncTopicView, exact: bool) -> engine.TopicSegments:
        known = self.known.get(topic)
        if known is not None and view.unchanged and not exact:
            return known
        found = await view.segments(exact=exact)
        if found is known:
            view.listen()
        return found

    async def _search_topics(self, exact: bool) -> None:
        if self._views and not self._is_search_due() and not (exact and self._options.topics.namespace is not None):
            return
        self._listed_at = time.monotonic()
        topics = await self._topics(self._options.topics)
        for topic in self._views.keys() - set(topics):
            await self._views.pop(topic).close()
        for topic in topics:
            if topic not in self._views:
                self._views[topic] = await self._client.topic_view(topic)

    async def _topics(self, wanted: Topics) -> list[str]:
        if wanted.namespace is None:
            return named_topics(wanted)
        properties = dict(wanted.properties) or None
        return await self._client.list_topics(wanted.namespace, pattern=wanted.pattern, properties=properties)

    def view(self, topic: str) -> View:
        """Of one of the topics."""
        return View(self, self._views[topic])

    def close(self) -> None:
        """End the client and all it follows. Idempotent."""
        if not self._loop.is_closed():
            self.run(self._client.close())
            self._loop.close()
