"""The demo's live part: flights stream through a topic that splits from 1 to 4 segments and merges back to 2."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.cli.flights import Flights
from engine.cli.reading import PATIENCE_S, Tally, readers
from engine.cli.verify import Check, check_flights
from engine.errors import TimeoutError

if TYPE_CHECKING:
    from engine.embedded import Engine

CHANGES = ("split", "split", "split", "merge", "merge")
CHUNK_ROWS = 2_000
CHUNKS_PER_S = 60
PACE = CHUNK_ROWS * CHUNKS_PER_S  # flights a second, where the machine can
SUBSCRIPTION = "live"
CONSUMERS = ("live-1", "live-2")


class Stream:
    """One producer on a thread, chunk by chunk; it runs ahead so little that every change happens under load."""

    def __init__(self, engine: Engine, topic: str, flights: Flights) -> None:
        self.sent = 0
        self.error: BaseException | None = None
        self._engine, self._topic, self._flights = engine, topic, flights
        self._changes = 0  # that are done
        self._moved = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="live-producer")

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait until everything is durable. Raises what went wrong."""
        self._thread.join()
        if self.error:
            raise self.error

    def wait_for_turn(self, change: int) -> int:
        """Wait until the stream has come so far that the next change is due; the flights sent by then."""
        due = len(self._flights) * (change + 1) // (len(CHANGES) + 2)
        with self._moved:
            if not self._moved.wait_for(lambda: self.sent >= due or self.error, PATIENCE_S):
                raise TimeoutError(f"only {self.sent:,} flights were sent within {PATIENCE_S:g} s")
        return self.sent

    def give_up(self, error: BaseException) -> None:
        """There will be no more changes."""
        with self._moved:
            self.error = self.error or error
            self._moved.notify_all()

    def change_done(self) -> None:
        """The stream may go on past the place where the next change is due."""
        with self._moved:
            self._changes += 1
            self._moved.notify_all()

    def _run(self) -> None:
        try:
            with self._engine.producer(self._topic) as producer:
                for first in range(0, len(self._flights), CHUNK_ROWS):
                    started = time.perf_counter()
                    self._send(producer, first)
                    self._step(min(first + CHUNK_ROWS, len(self._flights)))
                    time.sleep(max(0.0, 1 / CHUNKS_PER_S - (time.perf_counter() - started)))
                producer.flush()
        except BaseException as e:
            self.give_up(e)

    def _send(self, producer: Any, first: int) -> None:
        """Some rows in their order; those without a key, which need none, behind the others."""
        import pyarrow.compute as pc

        keys, values = (c.slice(first, CHUNK_ROWS) for c in (self._flights.keys, self._flights.values))
        known = pc.is_valid(keys)
        producer.send_batch(values.filter(known), keys=keys.filter(known))
        producer.send_batch(values.filter(pc.invert(known)))

    def _step(self, sent: int) -> None:
        """So many were sent. The last seventh waits for the last change."""
        with self._moved:
            self.sent = sent
            self._moved.notify_all()
            due = sent * (len(CHANGES) + 2) // len(self._flights) - 1
            self._moved.wait_for(lambda: self._changes >= min(due, len(CHANGES)) or self.error, PATIENCE_S)


def stream_live(engine: Engine, topic: str, flights: Flights, say: Any) -> tuple[Tally, float]:
    """Send all flights, change the topic meanwhile, read with two consumers; (what came, seconds)."""
    engine.admin.create_topic(topic)
    engine.admin.set_auto_scale_policy(topic, {"enabled": False})  # each change when it is its turn
    tally = Tally(len(flights))
    start = tally.last
    stream = Stream(engine, topic, flights)
    with readers(engine, topic, SUBSCRIPTION, CONSUMERS, tally):
        stream.start()
        try:
            for number, kind in enumerate(CHANGES):
                sent = stream.wait_for_turn(number)
                took, text = change(engine, topic, kind)
                stream.change_done()
                say(f"  after {sent:,} flights: {text} ({took * 1000:.0f} ms)")
        except BaseException as e:
            stream.give_up(e)
            raise
        finally:
            stream.join()
    return tally, tally.last - start


def change(engine: Engine, topic: str, kind: str) -> tuple[float, str]:
    """One split or merge; (seconds, what has come of it)."""
    active = active_segments(engine.admin.get_metadata(topic))
    started = time.perf_counter()
    if kind == "split":
        ids = [widest(active)]
        metadata = engine.admin.split_segment(topic, *ids)
    else:
        ids = narrowest_pair(active)
        metadata = engine.admin.merge_segments(topic, *ids)
    took = time.perf_counter() - started
    children = metadata["segments"][str(ids[0])]["childIds"]
    return took, f"{kind} of {' and '.join(map(str, ids))} into {' and '.join(map(str, children))}"


def active_segments(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """By their place on the ring."""
    active = [s for s in metadata["segments"].values() if s["state"] == "ACTIVE"]
    return sorted(active, key=lambda s: int(s["hashRange"]["start"]))


def widest(active: list[dict[str, Any]]) -> int:
    """The id of the segment with the widest range; of several the first."""
    return int(max(active, key=width)["segmentId"])


def narrowest_pair(active: list[dict[str, Any]]) -> list[int]:
    """The ids of the two neighbours with the narrowest range together; of several the first."""
    pair = min(itertools.pairwise(active), key=lambda pair: width(pair[0]) + width(pair[1]))
    return [int(s["segmentId"]) for s in pair]


def width(segment: dict[str, Any]) -> int:
    """How many hash values it owns."""
    return int(segment["hashRange"]["end"]) - int(segment["hashRange"]["start"]) + 1


def check_live(flights: Flights, tally: Tally, metadata: Mapping[str, Any]) -> list[Check]:
    """The content, the order over all segments and consumers, and the shape in the end."""
    active, segments = active_segments(metadata), metadata["segments"]
    shape = len(active) == 2 and len(segments) == 9 and metadata["epoch"] == len(CHANGES)
    shares = [sum(len(table) for number, table in tally.tables if number == reader) for reader in range(len(CONSUMERS))]
    return [
        *check_flights(flights, [tally.everything()]),
        Check("both consumers had their share", all(shares), " and ".join(f"{n:,} messages" for n in shares)),
        Check("from 1 to 4 and back to 2", shape, f"{len(active)} active of {len(segments)} segments"),
    ]
