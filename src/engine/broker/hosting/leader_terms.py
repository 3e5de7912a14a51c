"""`LeaderTerms`: refuses the requests of deposed leaders (L1)."""

from __future__ import annotations

from collections import OrderedDict

from engine.errors import FencedError
from engine.metadata import keys
from engine.metadata.store import MetadataStore
from engine.model.names import TopicName

_TOPICS_MAX = 10_000  # whose terms are cached


class LeaderTerms:
    """The largest confirmed term per topic. A leader's term is the version of the topic's controller record."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._seen: OrderedDict[TopicName, int] = OrderedDict()  # the largest term that was confirmed, by last use

    async def confirm(self, topic: TopicName, term: int) -> None:
        """Raise FencedError unless the store confirms that this is the term of the present leader."""
        self.check(topic, term)
        record = await self._metadata.newest.get(keys.controller(topic))
        if record is None or record.stat.version != term:
            present = "there is no leader" if record is None else f"{record.stat.version}"
            raise FencedError(f"a leader of {topic} must have the present term ({present}), got term {term}")
        self._seen[topic] = max(term, self._seen.get(topic, 0))
        self._seen.move_to_end(topic)
        if len(self._seen) > _TOPICS_MAX:  # confirm() reads the store for an evicted one
            self._seen.popitem(last=False)

    def check(self, topic: TopicName, term: int) -> None:
        """confirm() from the cache, without awaiting: for right before the effect, after other awaits."""
        if term < self._seen.get(topic, 0):
            raise FencedError(f"a leader of {topic} must have the present term ({self._seen[topic]}), got term {term}")
