"""The gaps in a segment: offsets that the broker gave up, since their messages may be lost (docs/guarantees.md).

There is no message at these offsets, so a reader skips them; each gap is logged once per consumer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from engine._native.consume.receiving import Skipped

log = logging.getLogger("engine.client")


class SegmentGaps(Skipped):
    """Runs [start, stop) of one segment, as its owner sent them with its answers to SUBSCRIBE."""

    __slots__ = ()

    def add(self, runs: Sequence[Sequence[int]], segment: str, subscription: str | None) -> int:
        """Add the gaps that the owner knows at or above the reader's position; how many of them are new."""
        known = len(self.runs)
        for start, stop in runs:
            if (start, stop) not in self.runs:
                self.runs.append((start, stop))
                self.runs.sort()  # one may begin where another ends: the owner found more to be lost
                log.warning(
                    "%s: messages from offset %d on were lost before they were synced, or there were none; "
                    "%s continues at offset %d",
                    segment, start, "the reader" if subscription is None else repr(subscription), stop,
                )  # fmt: skip
        return len(self.runs) - known
