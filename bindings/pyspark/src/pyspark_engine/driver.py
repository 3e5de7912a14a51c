"""What a streaming query keeps in its driver: one client, a view of each topic, and what was known last."""

from __future__ import annotations

import time

import engine
from pyspark_engine.connection import connect
from pyspark_engine.options import ReadOptions
from pyspark_engine.planning import find_topics

TOPICS_S = 1.0  # between two looks at which topics a namespace has
FEW = 16  # so many active segments are asked every time
CALM = 10  # asking more of them may take one part in so many of the time: answers are that much older then
CALM_S_MAX = 0.1


class Driver:
    """Follows the topics of a query. Used by one thread."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._client = connect(options.connection)
        self._views: dict[str, engine.TopicView] = {}
        self._listed_at = -TOPICS_S
        self._known: dict[str, engine.TopicSegments] = {}
        self._fresh_until = 0.0

    def facts(self, *, exact: bool = False) -> dict[str, engine.TopicSegments]:
        """How far each topic reaches. `exact`: nothing from memory.

        Spark asks every few milliseconds while there is nothing to do. One round trip to the owners of the active
        segments answers; where there are many, the answer serves for a while.
        """
        begun = time.monotonic()
        if not exact and begun < self._fresh_until:
            return self._known
        self._look_for_topics(begun, exact)
        self._known = {topic: view.segments(exact=exact) for topic, view in self._views.items()}
        now = time.monotonic()
        asked = sum(not s.settled for facts in self._known.values() for s in facts.segments.values())
        self._fresh_until = now + min(CALM * (now - begun), CALM_S_MAX) if asked > FEW else 0.0
        return self._known

    def _look_for_topics(self, now: float, exact: bool) -> None:
        named = self._options.topics.namespace is None
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
