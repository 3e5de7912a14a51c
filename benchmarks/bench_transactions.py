"""P15: transactions of 100 messages over four segments, beside the same groups without; commits; 10,000 open ones."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import bench_metadata
import transaction_rates
from processes import server
from support import median, percentile, rows, sized

COUNT = sized(100_000, 300)
COMMITS = sized(1000, 5)


class _Served:
    timeout = 900

    def setup(self, *_: Any) -> None:
        """A server for each measure."""
        self.processes = contextlib.ExitStack()
        self.broker = self.processes.enter_context(server())
        self.sample = rows(COUNT, 100)

    def teardown(self, *_: Any) -> None:
        self.processes.close()


class Groups(_Served):
    """P15: rates in messages per second, by how many groups are on their way at a time."""

    params: ClassVar = [1, transaction_rates.AT_ONCE]
    param_names: ClassVar = ["at once"]

    def rate(self, at_once: int, transactional: bool) -> float:
        sample = self.sample if at_once > 1 else self.sample[: max(len(self.sample) // 2, transaction_rates.GROUP)]
        use = lambda client: transaction_rates.group_rate(client, sample, at_once, transactional)  # noqa: E731
        return float(transaction_rates.over(self.broker.url, use))

    def track_rate(self, at_once: int) -> float:
        """Messages per second in transactions of a hundred."""
        return median(lambda: self.rate(at_once, True))

    def track_plain_ratio(self, at_once: int) -> float:
        """Over the same groups without a transaction; P15 asks for 0.5."""
        return median(lambda: self.rate(at_once, True) / self.rate(at_once, False))

    track_rate.unit = "messages/s"  # type: ignore[attr-defined]
    track_plain_ratio.unit = "ratio"  # type: ignore[attr-defined]


class Commit(_Served):
    """A commit by itself, over loopback."""

    def p50(self) -> float:
        """Seconds."""
        waits = transaction_rates.over(
            self.broker.url, lambda client: transaction_rates.commit_seconds(client, COMMITS)
        )
        return percentile(waits, 0.5)

    def track_p50_ms(self) -> float:
        return self.p50() * 1e3

    def track_metadata_ratio(self) -> float:
        """Over one metadata commit of the same run; 2 is asked for."""
        return self.p50() / bench_metadata.single()

    track_p50_ms.unit = "ms"  # type: ignore[attr-defined]
    track_metadata_ratio.unit = "ratio"  # type: ignore[attr-defined]


class ManyOpen(_Served):
    """10,000 open transactions."""

    def figures(self) -> dict[str, float]:
        found: dict[str, float] = transaction_rates.over(
            self.broker.url, lambda client: transaction_rates.many_open(client, self.broker, self.sample)
        )
        return found

    def track_bytes(self) -> float:
        """Resident memory of the server, for each."""
        return self.figures()["open transaction bytes"]

    def track_plain_ratio(self) -> float:
        """Publishing without a transaction to another topic, over the same with none open."""
        figures = self.figures()
        return figures["plain, many open"] / figures["plain, none open"]

    track_bytes.unit = "bytes"  # type: ignore[attr-defined]
    track_plain_ratio.unit = "ratio"  # type: ignore[attr-defined]
