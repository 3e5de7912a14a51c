"""P14: a split under full load, on a real server.

Asked for: it adds less than 20 ms to the p99 from sending to the acknowledgement, and the rate is back within a second.
"""

from __future__ import annotations

import statistics
from typing import Any

from bench_serve import with_client
from processes import server
from reshapes import Split, split_under_load
from support import ROUNDS, percentile, rows, sized

SPLITS = sized(4 * ROUNDS, 1)


def splits_of(url: str, count: int = SPLITS) -> list[Split]:
    """So many, each of a topic of its own."""
    sample = rows(sized(100_000, 300), 100)

    async def use(client: Any) -> list[Split]:
        return [await split_under_load(client, sample) for _ in range(count)]

    found: list[Split] = with_client(url, use)
    return found


def _waits(split: Split) -> list[float]:
    return split.waits


def _usual_waits(split: Split) -> list[float]:
    return split.usual_waits


class SplitUnderLoad:
    """P14: one producer at full speed into one segment, which is split. Its figures are of the same splits."""

    timeout = 900

    def setup_cache(self) -> dict[str, float]:
        with server() as broker:
            splits = splits_of(broker.url)
        waits, usual = ([wait for s in splits for wait in of(s)] for of in (_waits, _usual_waits))
        return {
            "pause p99": percentile([split.pause for split in splits], 0.99),
            "added p99": percentile(waits, 0.99) - percentile(usual, 0.99),
            "rate after": statistics.median(split.rate_after / max(split.rate_before, 1.0) for split in splits),
        }

    setup_cache.timeout = 900  # type: ignore[attr-defined]

    def track_pause_p99_ms(self, figures: dict[str, float]) -> float:
        """The longest time without an acknowledgement, of the worst splits."""
        return figures["pause p99"] * 1e3

    def track_added_p99_ms(self, figures: dict[str, float]) -> float:
        """What a split adds to the p99 from sending to the acknowledgement; P14 asks for 20 at most."""
        return figures["added p99"] * 1e3

    def track_rate_after_ratio(self, figures: dict[str, float]) -> float:
        """The rate from one second after the split on, over the one before it."""
        return figures["rate after"]

    track_pause_p99_ms.unit = track_added_p99_ms.unit = "ms"  # type: ignore[attr-defined]
    track_rate_after_ratio.unit = "ratio"  # type: ignore[attr-defined]
