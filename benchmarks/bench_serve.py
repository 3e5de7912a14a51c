"""A real `engine serve` on 127.0.0.1, the public client here: bars P3 to P8, each beside a ceiling of the same run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import loopback
from ceilings import file_read_seconds, file_write_seconds, synced_groups_rate, writev_seconds
from processes import FarEnd, Server, far_end, server
from support import ROUNDS, TINY, byte_count, median, median_ratio, percentile, rows, run, sized
from workloads import CONSUME, PUBLISH, consume_rate, publish_rate, publishers_rate, warm, warmed_delays

import engine

COUNT = {100: sized(500_000, 300), 1024: sized(250_000, 200)}
RATE = 2000  # messages a second where the delay is measured
DELAYS = sized(4000, 40)
PUBLISH_S = 0.05 if TINY else 1.5


def with_client(url: str, use: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """What `use` returns for a client of its own, warmed up."""

    async def main() -> Any:
        async with engine.AsyncClient(url) as client:
            if not TINY:
                await warm(client)
            return await use(client)

    return run(main())


class _Served:
    """A server, and the far end of loopback TCP, for each measure."""

    timeout = 600
    server: Server
    far: FarEnd

    def setup(self, *_: Any) -> None:
        self.processes = contextlib.ExitStack()
        self.server = self.processes.enter_context(server())
        self.far = self.processes.enter_context(far_end())

    def teardown(self, *_: Any) -> None:
        self.processes.close()

    def client(self, use: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """What `use` returns."""
        return with_client(self.server.url, use)


class Publish(_Served):
    """P3 (100 B) and P4 (1 KiB): published over loopback, acknowledged when synced."""

    params: ClassVar = (list(PUBLISH), list(COUNT))
    param_names: ClassVar = ["way", "value size"]

    def setup(self, way: str, size: int) -> None:
        super().setup()
        self.sample = rows(COUNT[size], size)

    def rate(self, way: str) -> float:
        return float(self.client(lambda client: publish_rate(client, way, self.sample)))

    def track_rate(self, way: str, size: int) -> float:
        return median(lambda: self.rate(way))

    def track_writev_ratio(self, way: str, size: int) -> float:
        """Over writev + fdatasync of the same bytes; P4 asks for 0.6."""
        total = byte_count(len(self.sample), size)
        return median_ratio(lambda: self.rate(way), lambda: len(self.sample) / writev_seconds(total))

    def track_file_loop_ratio(self, way: str, size: int) -> float:
        """Over a Python loop that writes the same records to a buffered file, unsynced."""
        return median_ratio(lambda: self.rate(way), lambda: len(self.sample) / file_write_seconds(self.sample))

    track_rate.unit = "messages/s"  # type: ignore[attr-defined]
    track_writev_ratio.unit = track_file_loop_ratio.unit = "ratio"  # type: ignore[attr-defined]


class Consume(_Served):
    """P5 (each Message) and P6 (Arrow columns): read over loopback from the start, acknowledged batch by batch."""

    params: ClassVar = (list(CONSUME), list(COUNT))
    param_names: ClassVar = ["as", "value size"]

    def setup(self, way: str, size: int) -> None:
        super().setup()
        self.sample = rows(COUNT[size], size)

    def rate(self, way: str) -> float:
        return float(self.client(lambda client: consume_rate(client, way, self.sample)))

    def track_rate(self, way: str, size: int) -> float:
        return median(lambda: self.rate(way))

    def track_tcp_ratio(self, way: str, size: int) -> float:
        """Over the same bytes through loopback TCP in 64 KiB frames; P6 asks for 0.5 at 1 KiB."""
        total = byte_count(len(self.sample), size)
        return median_ratio(
            lambda: self.rate(way), lambda: len(self.sample) / run(loopback.pull_seconds(self.far.port, total))
        )

    def track_file_loop_ratio(self, way: str, size: int) -> float:
        """Over a Python loop that reads the same records from a file in the page cache."""
        return median_ratio(lambda: self.rate(way), lambda: len(self.sample) / file_read_seconds(self.sample))

    track_rate.unit = "messages/s"  # type: ignore[attr-defined]
    track_tcp_ratio.unit = track_file_loop_ratio.unit = "ratio"  # type: ignore[attr-defined]


class Delay(_Served):
    """P7: publish to receive at 2,000 messages a second, 100 B, from when each was due."""

    params: ClassVar = [0.5, 0.99]
    param_names: ClassVar = ["percentile"]

    def ours(self, share: float) -> float:
        return percentile(self.client(lambda client: warmed_delays(client, RATE, DELAYS, 100)), share) * 1e3

    def echo(self, share: float) -> float:
        """The same for an echo over loopback TCP."""
        return percentile(run(loopback.echo_latencies(self.far.port, RATE, DELAYS, 100)), share) * 1e3

    def track_ms(self, share: float) -> float:
        return median(lambda: self.ours(share))

    def track_tcp_ratio(self, share: float) -> float:
        """Over an echo through loopback TCP at the same rate; P7 asks for at most 2 at the 99th."""
        return median_ratio(lambda: self.ours(share), lambda: self.echo(share))

    track_ms.unit = "ms"  # type: ignore[attr-defined]
    track_tcp_ratio.unit = "ratio"  # type: ignore[attr-defined]


class Publishers(_Served):
    """P8: 64 publishers, each with one synced message of 100 B outstanding."""

    def setup(self) -> None:
        super().setup()
        self.sample = rows(10_000, 100)

    def rate(self) -> float:
        return float(self.client(lambda client: publishers_rate(client, self.sample, PUBLISH_S)))

    def track_rate(self) -> float:
        return median(self.rate, ROUNDS)

    def track_synced_file_ratio(self) -> float:
        """Over a Python loop that syncs a file after every 64 records."""
        return median_ratio(self.rate, lambda: synced_groups_rate(self.sample, PUBLISH_S))

    track_rate.unit = "messages/s"  # type: ignore[attr-defined]
    track_synced_file_ratio.unit = "ratio"  # type: ignore[attr-defined]
