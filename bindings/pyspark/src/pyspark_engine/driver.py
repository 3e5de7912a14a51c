"""What a streaming query keeps in its driver: one client, a view of each topic, and what was known last."""

from __future__ import annotations

import time

import engine
from pyspark_engine.connection import connect
from pyspark_engine.options import ReadOptions
from pyspark_engine.planning import find_topics

TOPICS_S = 1.0  # between two looks at which topics a namespace has

Facts = dict[str, engine.TopicSegments]


class Driver:
    """Follows the topics of a query. Used by one thread."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._client = connect(options.connection)
        self._views: dict[str, engine.TopicView] = {}
        self._listed_at = -TOPICS_S
        self.known: Facts = {}

    def facts(self, *, exact: bool = False) -> Facts:
        """How far each topic reaches: `known` from then on, the very object of the last time if nothing has changed.

        Spark asks every few milliseconds while there is nothing to do. One round trip to the owners of the active
        segments answers, so nothing is missed that was acknowledged before.
        """
        self._look_for_topics(exact)
        found = {topic: view.segments(exact=exact) for topic, view in self._views.items()}
        if found.keys() != self.known.keys() or any(facts is not self.known[t] for t, facts in found.items()):
            self.known = found
        return self.known

    def _look_for_topics(self, exact: bool) -> None:
        named, now = self._options.topics.namespace is None, time.monotonic()
        if self._views and (named or (not exact and now < self._listed_at + TOPICS_S)):
            return
        self._listed_at = now
        topics = find_topics(self._client, self._options.topics)
        for topic in self._views.keys() - set(topics):
            self._views.pop(topic).close()
        for topic in topics:
            if topic not in self._views:
                self._views[topic] = self._client.topic_view(topic)

    def view(self, topic: str) -> engine.TopicView:
        """Of one of the topics."""
        return self._views[topic]

    def close(self) -> None:
        """End the client and all it follows. Idempotent."""
        self._client.close()
