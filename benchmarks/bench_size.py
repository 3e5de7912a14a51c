"""P12: what size costs. The same work beside more segments, connections and topics; memory of what lies idle.

P12 asks for at most 20 % less at equal total work, and 20 kB resident for an idle topic or connection.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from typing import ClassVar

from crowds import (
    add_topics,
    rate_among_connections,
    rate_of_client,
    resident_per_connection,
    resident_per_consumer,
    resident_per_new_topic,
    resident_per_opened_topic,
)
from processes import server
from support import ROUNDS, TINY, rows, run, sized

COUNT = sized(1_000_000, 300)
SEGMENTS = [1, 4] if TINY else [1, 4, 16, 64]
CONNECTIONS = [1, 5] if TINY else [1, 100, 1000]
CONSUMERS = sized(10_000, 8)
FEWER_CONSUMERS = sized(4_000, 8)  # of each case, where there are several
TOPICS = [1, 8] if TINY else [1, 1000, 10_000]


Figures = dict[int, tuple[float, float]]  # by the size: messages a second; the ratio to that of one, in turn


def beside_one(rate: Callable[[], float], rate_of_one: Callable[[], float]) -> tuple[float, float]:
    """Medians of the rate, and of its ratio to the other, over the same rounds."""
    pairs = [(rate(), rate_of_one()) for _ in range(ROUNDS)]
    return statistics.median(ours for ours, _ in pairs), statistics.median(ours / one for ours, one in pairs)


class _Sized:
    """What is measured once for both figures. P12 asks for 0.8 of the rate of one."""

    def track_rate(self, figures: Figures, size: int) -> float:
        return figures[size][0]

    def track_ratio_to_one(self, figures: Figures, size: int) -> float:
        return figures[size][1]

    track_rate.unit = "messages/s"  # type: ignore[attr-defined]
    track_ratio_to_one.unit = "ratio"  # type: ignore[attr-defined]


class Segments(_Sized):
    """P12: one producer over more segments; every message goes by its key."""

    params: ClassVar = SEGMENTS
    param_names: ClassVar = ["segments"]

    def setup_cache(self) -> Figures:
        sample = rows(COUNT, 100)
        with server() as broker:

            def rate(segments: int) -> float:
                return run(rate_of_client(broker.url, sample, segments=segments))

            return {size: beside_one(lambda size=size: rate(size), lambda: rate(1)) for size in SEGMENTS}

    setup_cache.timeout = 900  # type: ignore[attr-defined]


class Connections(_Sized):
    """P12: one producer beside idle connections."""

    params: ClassVar = CONNECTIONS
    param_names: ClassVar = ["connections"]

    def setup_cache(self) -> Figures:
        sample = rows(COUNT, 100)
        with server() as broker:

            def rate(connections: int) -> float:
                return rate_among_connections(broker.url, connections, sample)

            return {size: beside_one(lambda size=size: rate(size), lambda: rate(1)) for size in CONNECTIONS}

    setup_cache.timeout = 900  # type: ignore[attr-defined]


class Topics(_Sized):
    """P12: one producer in a broker with idle topics, some of which were written to, and in one without them."""

    params: ClassVar = TOPICS
    param_names: ClassVar = ["topics"]

    def setup_cache(self) -> Figures:
        sample, found = rows(COUNT, 100), {}
        for topics in TOPICS:
            with server() as crowded, server() as plain:
                run(add_topics(crowded.url, topics - 1))
                found[topics] = beside_one(
                    lambda: run(rate_of_client(crowded.url, sample)), lambda: run(rate_of_client(plain.url, sample))
                )
        return found

    setup_cache.timeout = 900  # type: ignore[attr-defined]


class IdleConnections:
    """P12: memory of idle connections; P12 asks for 20,000 bytes at most."""

    timeout = 900
    params: ClassVar = CONNECTIONS[1:]
    param_names: ClassVar = ["connections"]
    unit = "bytes"

    def track_resident(self, connections: int) -> float:
        """Bytes of the server for each."""
        with server() as fresh:
            return resident_per_connection(fresh, connections)


class IdleTopics:
    """P12: memory of idle topics; P12 asks for 20,000 bytes at most."""

    timeout = 900
    params: ClassVar = TOPICS[1:]
    param_names: ClassVar = ["topics"]
    unit = "bytes"

    def track_made(self, topics: int) -> float:
        """Bytes for each, of the server that made them."""
        with server() as fresh:
            return resident_per_new_topic(fresh, topics)

    def track_opened(self, topics: int) -> float:
        """Bytes for each, of the next server, that found them."""
        return resident_per_opened_topic(topics)


class IdleConsumers:
    """Memory of idle consumers, each of a subscription of its own, made by one process over some connections."""

    timeout = 900
    params: ClassVar = [["queue", "stream"], [1, 4] if TINY else [1, 1000]]
    param_names: ClassVar = ["kind", "connections"]
    unit = "bytes"

    def setup_cache(self) -> dict[tuple[str, int], tuple[float, float]]:
        """(of the server, of the process that made them) for each consumer, by the parameters."""
        found = {}
        for case in itertools.product(*self.params):
            with server() as fresh:
                found[case] = resident_per_consumer(fresh, case[0], FEWER_CONSUMERS, case[1])
        return found

    setup_cache.timeout = 900  # type: ignore[attr-defined]

    def track_broker(self, found: dict[tuple[str, int], tuple[float, float]], kind: str, connections: int) -> float:
        """Bytes of the server for each."""
        return found[kind, connections][0]

    def track_client(self, found: dict[tuple[str, int], tuple[float, float]], kind: str, connections: int) -> float:
        """Bytes of the process that made them, for each."""
        return found[kind, connections][1]
