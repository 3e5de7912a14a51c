"""`Stored`: the samples of segments and subscriptions that are not open, from the inventory.

At most `metrics_segments_max` closed segments have series of their own. The others are summed up: one series for each
namespace, with empty labels for topic, segment and subscription. So a sum over a namespace, or over all, is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from engine.broker.hosting.inventory import StoredSegment
from engine.broker.metrics.exposition import Labels, Sample
from engine.broker.metrics.labels import segment_labels, subscription_labels

if TYPE_CHECKING:
    from engine.broker.hosting.open_segments import OpenSegments
    from engine.broker.segment.hosted import HostedSegment


class Stored:
    """What one scrape lists. Samples are lists: those of open segments, which are handed in, and what is added."""

    def __init__(self, segments: OpenSegments, most: int, owner: str) -> None:
        """`most`: closed segments to be listed. `owner`: the URL of this broker."""
        inventory = segments.inventory
        hosted = list(segments)
        closed = list(islice((record for record in inventory if segments.peek(record.name) is None), most))
        opened = [record for record in (inventory.get(one.name) for one in hosted) if record is not None]
        self._closed: list[tuple[Labels, StoredSegment]] = [(segment_labels(one.name), one) for one in closed]
        self._rest = inventory.rest([*closed, *opened])
        self._unopened = [(one.name, inventory.unopened(one)) for one in hosted]
        self._owner = owner

    def of(self, samples: list[Sample], field: str | None, *, rest: bool = False) -> list[Sample]:
        """With a field of StoredSegment; None: 0. `rest`: and with the sums of what is not listed, by namespace."""
        samples += [(labels, 0 if field is None else getattr(one, field)) for labels, one in self._closed]
        if rest and field is not None:
            samples += [(_others(name), getattr(totals, field)) for name, totals in self._rest.items()]
        return samples

    def owners(self, each: Callable[[Callable[[HostedSegment], float]], list[Sample]]) -> list[Sample]:
        """1 for each segment, with its owner among the labels."""
        samples = self.of(each(lambda hosted: 1), None)
        return [({**labels, "owner": self._owner}, 1) for labels, _ in samples]

    def unlisted(self) -> list[Sample]:
        """How many segments are only in sums, by namespace."""
        return [({"namespace": name}, totals.segments) for name, totals in self._rest.items()]

    def backlogs(self, samples: list[Sample]) -> list[Sample]:
        """With those of subscriptions that are not open, and the sums of what is not listed."""
        samples += self._readers()
        samples += [({**_others(name), "subscription": ""}, totals.backlog) for name, totals in self._rest.items()]
        return samples

    def no_consumers(self, samples: list[Sample]) -> list[Sample]:
        """With 0 for subscriptions that are not open."""
        samples += [(labels, 0) for labels, _ in self._readers()]
        return samples

    def _readers(self) -> Iterator[Sample]:
        for name, backlogs in self._unopened:
            for subscription, count in backlogs:
                yield subscription_labels(name, subscription), count
        for labels, one in self._closed:
            for subscription, count in one.backlogs:
                yield {**labels, "subscription": subscription}, count


def _others(namespace: str) -> dict[str, str]:
    return {"namespace": namespace, "topic": "", "segment": ""}
