"""`engine demo --cluster`: flights stream through three brokers, and one of them is lost with its disk in the middle.

What is read in the end is checked against the source: every flight once, each aircraft's in order. Consumers that were
reading meanwhile may get a flight again whose acknowledgement was not saved, and lose none.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.cli.demo_servers import Cluster, running_cluster
from engine.cli.flights import Flights, row_numbers
from engine.cli.verify import Check, check_flights
from engine.errors import TimeoutError

if TYPE_CHECKING:
    from engine.sync import Client

SEGMENTS = 6
CHUNK_ROWS = 1_000
SUBSCRIPTION = "live"
CONSUMERS = ("live-1", "live-2")
POLL_S = 0.2
PATIENCE_S = 90.0  # without a new flight
SEND_TIMEOUT_S = 90.0
Say = Callable[[str], object]


class Seen:
    """Which flights came, over all consumers. Any thread."""

    def __init__(self, count: int) -> None:
        self._rows = np.zeros(count, dtype=bool)
        self._lock = threading.Lock()
        self.again = 0
        self.last = time.perf_counter()
        self.pause = 0.0  # the longest time without a new flight, once some had come
        self.error: BaseException | None = None

    def add(self, rows: Any) -> None:
        with self._lock:
            new = int((~self._rows[rows]).sum())
            self.again += len(rows) - new
            if new:
                now = time.perf_counter()
                self.pause = max(self.pause, now - self.last if self._rows.any() else 0.0)
                self.last = now
                self._rows[rows] = True

    @property
    def done(self) -> bool:
        """Whether consumers should stop. Raises TimeoutError when nothing new came for too long."""
        with self._lock:
            missing = int((~self._rows).sum())
        if self.error is not None or not missing:
            return True
        if time.perf_counter() - self.last > PATIENCE_S:
            raise TimeoutError(f"{missing:,} flights did not come within {PATIENCE_S:g} s")
        return False


def run_cluster(folder: Path, topic: str, flights: Flights, say: Say, seen: Seen | None = None) -> list[Check]:
    """The whole story; what was found. `seen`: of as many flights, to be filled, where the caller looks at it."""
    seen = seen or Seen(len(flights))
    with running_cluster(folder) as cluster:
        say(f"{len(cluster.brokers)} brokers, etcd and SeaweedFS run on this machine: {cluster.url}")
        from engine.sync import Client

        with Client(cluster.url) as client:
            client.admin.create_topic(topic, segments=SEGMENTS)
            client.admin.set_auto_scale_policy(topic, {"enabled": False})
            with consumers(client, topic, seen):
                started = time.perf_counter()
                send(client, topic, flights, lambda: lose_a_broker(client, cluster, topic, say))
                say(f"sent {len(flights):,} flights in {time.perf_counter() - started:.1f} s, all of them stored")
            say(f"the longest time without a new flight: {seen.pause:.1f} s; {seen.again:,} came again")
            everything = read_everything(client, topic)
            lost = [Check("the consumers got every flight", seen.done, f"{len(flights):,} flights")]
            return [*check_flights(flights, [everything]), *lost]


def lose_a_broker(client: Client, cluster: Cluster, topic: str, say: Say) -> None:
    """SIGKILL to the broker that has the most segments, and its directory is removed."""
    segments = client.admin.get_stats(topic)["segments"].values()
    owners = [segment["owner"] for segment in segments]
    victim = cluster.broker_at(max(set(owners), key=owners.count))
    victim.kill()
    shutil.rmtree(victim.folder)
    say(f"killed {victim.name}, which had {max(map(owners.count, owners))} of {len(owners)} segments, with its disk")


def send(client: Client, topic: str, flights: Flights, in_the_middle: Callable[[], None]) -> None:
    """All flights in their order, keyed by aircraft. Returns when all are stored."""
    import pyarrow.compute as pc

    firsts = range(0, len(flights), CHUNK_ROWS)
    middle = firsts[len(firsts) // 2]
    with client.producer(topic, send_timeout=SEND_TIMEOUT_S) as producer:
        for first in firsts:
            if first == middle:
                in_the_middle()
            keys, values = (column.slice(first, CHUNK_ROWS) for column in (flights.keys, flights.values))
            known = pc.is_valid(keys)
            producer.send_batch(values.filter(known), keys=keys.filter(known))
            producer.send_batch(values.filter(pc.invert(known)))
        producer.flush()


@contextmanager
def consumers(client: Client, topic: str, seen: Seen) -> Iterator[None]:
    """Stream consumers read until every flight has come."""
    with ExitStack() as stack:
        opened = [
            stack.enter_context(client.stream_consumer(topic, SUBSCRIPTION, name=name, initial_position="earliest"))
            for name in CONSUMERS
        ]

        def work(consumer: Any) -> None:
            try:
                while not seen.done:
                    batch = consumer.receive_batch(timeout=POLL_S)
                    if len(batch):
                        seen.add(row_numbers(batch.to_arrow()["value"].combine_chunks()))
                        consumer.acknowledge_cumulative(batch)
            except BaseException as e:
                seen.error = e

        threads = [threading.Thread(target=work, args=(one,), name=n) for one, n in zip(opened, CONSUMERS, strict=True)]
        for thread in threads:
            thread.start()
        try:
            yield
        except BaseException as e:
            seen.error = e
            raise
        finally:
            for thread in threads:
                thread.join()
        if seen.error is not None:
            raise seen.error


def read_everything(client: Client, topic: str) -> Any:
    """What the topic holds now, as an Arrow table, each segment to its end."""
    import pyarrow as pa

    with client.topic_view(topic) as view:
        segments = view.segments(exact=True).segments
    with client.range_reader(topic, {i: (s.first, s.end) for i, s in segments.items()}) as reader:
        return pa.concat_tables([batch.to_arrow() for batch in reader.batches()])


def first_of(flights: Flights, count: int) -> Flights:
    """Only the first so many."""
    keys, values = flights.keys.slice(0, count), flights.values.slice(0, count)
    return Flights(keys, values, flights.carriers.slice(0, count), flights.delays.slice(0, count), flights.names)
