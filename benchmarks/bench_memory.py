"""What a crowd can do to a broker: 1,000 clients that list and watch 100,000 topics, 1,000 slow consumers; half deaf.

Resident memory has to stay within the configured limits and a constant, every reader gets the whole list or a
typed error, and others' messages are acknowledged within twice the time of before.
"""

from __future__ import annotations

from typing import ClassVar

import list_memory
import listeners
from support import TINY, run


class _Crowd:
    """Found once, in one run."""

    timeout = 1800
    kind = ""

    def setup_cache(self) -> dict[str, float]:
        return listeners.scenario(self.kind)

    def track_resident_growth(self, found: dict[str, float]) -> float:
        """The most that was resident beside the crowd, less what was before it."""
        return found["resident_growth"]

    def track_publish_p50_ratio(self, found: dict[str, float]) -> float:
        """Of the time to an acknowledgement beside the crowd, to that before; median."""
        return found["p50_ratio"]

    def track_publish_p99_ratio(self, found: dict[str, float]) -> float:
        """The same of the 99th percentile."""
        return found["p99_ratio"]

    def track_publish_p50_ratio_computing(self, found: dict[str, float]) -> float:
        """The same median to that beside a process that only computes: without what the machine is short of."""
        return found["p50_ratio_computing"]

    def track_processor_seconds(self, found: dict[str, float]) -> float:
        """Of the broker, for the crowd."""
        return found["processor_s"]

    def track_answered(self, found: dict[str, float]) -> float:
        """The share of readers that were answered and not refused."""
        return found["answered"] / (found["answered"] + found["refused"])

    track_resident_growth.unit = "bytes"  # type: ignore[attr-defined]
    track_publish_p50_ratio.unit = "ratio"  # type: ignore[attr-defined]
    track_publish_p99_ratio.unit = "ratio"  # type: ignore[attr-defined]
    track_publish_p50_ratio_computing.unit = "ratio"  # type: ignore[attr-defined]
    track_processor_seconds.unit = "seconds"  # type: ignore[attr-defined]
    track_answered.unit = "ratio"  # type: ignore[attr-defined]


class Listing(_Crowd):
    """Clients that list and watch a namespace at once."""

    kind = "list"


class SlowConsumers(_Crowd):
    """Consumers of topics with a backlog."""

    kind = "consume"


class TopicLists:
    """Lists with four filters, of a namespace that was not read before."""

    params: ClassVar = [200] if TINY else [20_000]
    param_names: ClassVar = ["topics"]
    unit = "bytes"

    def track_beside_permits(self, topics: int) -> float:
        """The most that was allocated at any moment without a permit of `topic_list_heap`."""
        return run(list_memory.bytes_beside_permits(topics))[0]

    def track_kept(self, topics: int) -> float:
        """What stays allocated for the namespace and its lists, as long as they are followed."""
        return run(list_memory.bytes_beside_permits(topics))[1]
