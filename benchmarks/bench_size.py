"""P12: what size costs. The same work beside more segments, connections and topics; memory of what lies idle.

P12 asks for at most 20 % less at equal total work, and 20 kB resident for an idle topic or connection.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, ClassVar

from crowds import (
    add_topics,
    rate_among_connections,
    rate_of_client,
    resident_per_connection,
    resident_per_consumer,
    resident_per_new_topic,
    resident_per_opened_topic,
)
from processes import Server, server
from support import ROUNDS, TINY, median, median_ratio, rows, run, sized

COUNT = sized(1_000_000, 300)
SEGMENTS = [1, 4] if TINY else [1, 4, 16, 64]
CONNECTIONS = [1, 5] if TINY else [1, 100, 1000]
CONSUMERS = sized(10_000, 8)
TOPICS = [1, 8] if TINY else [1, 1000, 10_000]


class _Sized:
    """A server, and the messages."""

    timeout = 900
    server: Server

    def setup(self, *_: Any) -> None:
        self.processes = contextlib.ExitStack()
        self.server = self.processes.enter_context(server())
        self.sample = rows(COUNT, 100)

    def teardown(self, *_: Any) -> None:
        self.processes.close()


class Segments(_Sized):
    """P12: one producer over more segments; every message goes by its key."""

    params: ClassVar = SEGMENTS
    param_names: ClassVar = ["segments"]

    def rate(self, segments: int) -> float:
        return run(rate_of_client(self.server.url, self.sample, segments=segments))

    def track_rate(self, segments: int) -> float:
        return median(lambda: self.rate(segments))

    def track_ratio_to_one(self, segments: int) -> float:
        """Over the rate with one segment; P12 asks for 0.8."""
        return median_ratio(lambda: self.rate(segments), lambda: self.rate(1))

    track_rate.unit = "messages/s"  # type: ignore[attr-defined]
    track_ratio_to_one.unit = "ratio"  # type: ignore[attr-defined]


class Connections(_Sized):
    """P12: one producer beside idle connections."""

    params: ClassVar = CONNECTIONS
    param_names: ClassVar = ["connections"]

    def rate(self, connections: int) -> float:
        return rate_among_connections(self.server.url, connections, self.sample)

    def track_rate(self, connections: int) -> float:
        return median(lambda: self.rate(connections))

    def track_ratio_to_one(self, connections: int) -> float:
        """Over the rate with no other connection; P12 asks for 0.8."""
        return median_ratio(lambda: self.rate(connections), lambda: self.rate(1))

    track_rate.unit = "messages/s"  # type: ignore[attr-defined]
    track_ratio_to_one.unit = "ratio"  # type: ignore[attr-defined]


class Topics(_Sized):
    """P12: one producer in a broker with idle topics, some of which were written to."""

    params: ClassVar = TOPICS
    param_names: ClassVar = ["topics"]

    def setup(self, topics: int) -> None:
        """And the topics; and a second server without them."""
        super().setup()
        self.plain = self.processes.enter_context(server())
        run(add_topics(self.server.url, topics - 1))

    def rate(self, of: Server) -> float:
        return run(rate_of_client(of.url, self.sample))

    def track_rate(self, topics: int) -> float:
        return median(lambda: self.rate(self.server))

    def track_ratio_to_one(self, topics: int) -> float:
        """Over the rate of a server without the others; P12 asks for 0.8."""
        return median_ratio(lambda: self.rate(self.server), lambda: self.rate(self.plain), ROUNDS)

    track_rate.unit = "messages/s"  # type: ignore[attr-defined]
    track_ratio_to_one.unit = "ratio"  # type: ignore[attr-defined]


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
                found[case] = resident_per_consumer(fresh, case[0], CONSUMERS, case[1])
        return found

    setup_cache.timeout = 900  # type: ignore[attr-defined]

    def track_broker(self, found: dict[tuple[str, int], tuple[float, float]], kind: str, connections: int) -> float:
        """Bytes of the server for each."""
        return found[kind, connections][0]

    def track_client(self, found: dict[tuple[str, int], tuple[float, float]], kind: str, connections: int) -> float:
        """Bytes of the process that made them, for each."""
        return found[kind, connections][1]
