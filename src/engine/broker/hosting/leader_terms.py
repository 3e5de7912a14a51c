"""`LeaderTerms`: refuses what a leader asks for whose time is over (L1)."""

from __future__ import annotations

from collections import OrderedDict

from engine.errors import FencedError
from engine.metadata import keys
from engine.metadata.store import MetadataStore
from engine.model.names import TopicName

_TOPICS_MAX = 10_000  # whose terms are remembered


class LeaderTerms:
    """Loop thread only. A leader's term is the version of the topic's controller record."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._seen: OrderedDict[TopicName, int] = OrderedDict()  # the largest term that was confirmed, by last use

    async def confirm(self, topic: TopicName, term: int) -> None:
        """Raise FencedError unless the store says that this is the term of the present leader."""
        self.check(topic, term)
        record = await self._metadata.get(keys.controller(topic))
        if record is None or record.stat.version != term:
            present = "nobody leads" if record is None else f"the present term is {record.stat.version}"
            raise FencedError(f"a leader of {topic} with the term {term} asks; {present}")
        self._seen[topic] = max(term, self._seen.get(topic, 0))
        self._seen.move_to_end(topic)
        if len(self._seen) > _TOPICS_MAX:  # of one that is forgotten, confirm() asks the store anyhow
            self._seen.popitem(last=False)

    def check(self, topic: TopicName, term: int) -> None:
        """The same by what is known, at once: right before the deed, when something was awaited since confirm()."""
        if term < self._seen.get(topic, 0):
            raise FencedError(f"a leader of {topic} with the term {term} asks; {self._seen[topic]} was seen")
