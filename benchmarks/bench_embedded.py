"""Broker and client in this process: bars P8 and P9, beside LMDB and SQLite in the same run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from embedded_stores import STORES, publish_and_consume_rates
from embedded_stores import publishers_rate as store_publishers_rate
from support import TINY, directory, median, median_ratio, rows, run, sized
from workloads import CONSUME, PUBLISH, consume_rate, publish_rate, publishers_rate, warm

import engine

COUNT = sized(500_000, 300)
PUBLISH_S = 0.05 if TINY else 1.5
PUBLISHED, CONSUMED = 0, 1


def with_engine(use: Callable[[Any], Coroutine[Any, Any, float]], *, shared: bool = False) -> float:
    """What `use` returns for an engine over a directory of its own, warmed up."""

    async def main() -> float:
        with directory() as path:
            async with engine.open_async(path, shared=shared) as opened:
                if not TINY:
                    await warm(opened)
                return await use(opened)

    return run(main())


def require(store: str) -> None:
    """Raise NotImplementedError where the store cannot be used here."""
    with directory() as path:
        STORES[store](path).close()


class Publish:
    """P9, one half: published and synced, 100 B."""

    timeout = 600
    params: ClassVar = list(PUBLISH)
    param_names: ClassVar = ["way"]
    unit = "messages/s"

    def setup(self, way: str) -> None:
        self.sample = rows(COUNT, 100)

    def track_rate(self, way: str) -> float:
        return median(lambda: with_engine(lambda opened: publish_rate(opened, way, self.sample)))


class Consume:
    """P9, the other half: read from the start and acknowledged, 100 B."""

    timeout = 600
    params: ClassVar = list(CONSUME)
    param_names: ClassVar = ["as"]
    unit = "messages/s"

    def setup(self, way: str) -> None:
        self.sample = rows(COUNT, 100)

    def track_rate(self, way: str) -> float:
        return median(lambda: with_engine(lambda opened: consume_rate(opened, way, self.sample)))


class Publishers:
    """P8 embedded: 64 publishers, each with one synced message of 100 B outstanding."""

    timeout = 600
    unit = "messages/s"

    def setup(self) -> None:
        self.sample = rows(10_000, 100)

    def track_rate(self) -> float:
        return median(lambda: with_engine(lambda opened: publishers_rate(opened, self.sample, PUBLISH_S)))


class Shared:
    """What it costs an asynchronous program that a shared engine runs on a thread of its own: over one on its loop."""

    timeout = 600
    unit = "ratio"

    def setup(self) -> None:
        self.sample = rows(COUNT, 100)

    def _ratio(self, use: Callable[[Any], Coroutine[Any, Any, float]]) -> float:
        return median_ratio(lambda: with_engine(use, shared=True), lambda: with_engine(use))

    def track_publish(self) -> float:
        return self._ratio(lambda opened: publish_rate(opened, "send_nowait", self.sample))

    def track_consume(self) -> float:
        return self._ratio(lambda opened: consume_rate(opened, "messages", self.sample))

    def track_columns(self) -> float:
        return self._ratio(lambda opened: consume_rate(opened, "columns", self.sample))

    def track_publishers(self) -> float:
        return self._ratio(lambda opened: publishers_rate(opened, self.sample, PUBLISH_S))


class Beside:
    """P8 and P9 over LMDB and SQLite of the same run: P9 asks for 3 times LMDB, P8 for SQLite's rate.

    Skipped for LMDB where it is not installed.
    """

    timeout = 600
    params: ClassVar = list(STORES)
    param_names: ClassVar = ["store"]
    unit = "ratio"

    def setup(self, store: str) -> None:
        """The messages; and does the store run here?"""
        require(store)
        self.sample = rows(COUNT, 100)

    def track_publish_ratio(self, store: str) -> float:
        """Publishing by send_nowait over a put per record, a thousand a commit."""
        return median_ratio(
            lambda: with_engine(lambda opened: publish_rate(opened, "send_nowait", self.sample)),
            lambda: publish_and_consume_rates(store, self.sample)[PUBLISHED],
        )

    def track_consume_ratio(self, store: str) -> float:
        """Iterating messages over reading a thousand rows at a time."""
        return median_ratio(
            lambda: with_engine(lambda opened: consume_rate(opened, "messages", self.sample)),
            lambda: publish_and_consume_rates(store, self.sample)[CONSUMED],
        )

    def track_publishers_ratio(self, store: str) -> float:
        """64 publishers over 64 publishers that share commits."""
        return median_ratio(
            lambda: with_engine(lambda opened: publishers_rate(opened, self.sample, PUBLISH_S)),
            lambda: run(store_publishers_rate(store, self.sample, PUBLISH_S)),
        )


class Stores:
    """The rows of LMDB and SQLite themselves."""

    timeout = 600
    params: ClassVar = list(STORES)
    param_names: ClassVar = ["store"]
    unit = "messages/s"

    def setup(self, store: str) -> None:
        """The messages; and does the store run here?"""
        require(store)
        self.sample = rows(COUNT, 100)

    def track_publish(self, store: str) -> float:
        return median(lambda: publish_and_consume_rates(store, self.sample)[PUBLISHED])

    def track_consume(self, store: str) -> float:
        return median(lambda: publish_and_consume_rates(store, self.sample)[CONSUMED])

    def track_publishers(self, store: str) -> float:
        """Messages per second of 64 publishers."""
        return median(lambda: run(store_publishers_rate(store, self.sample, PUBLISH_S)))
