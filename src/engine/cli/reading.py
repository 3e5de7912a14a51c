"""How the demo reads: two stream consumers that share a topic, and a checkpoint consumer that reads everything."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError, TimeoutError

if TYPE_CHECKING:
    from engine.embedded import Engine

BATCH_MESSAGES = 50_000
POLL_S = 0.2
PATIENCE_S = 30.0  # without a single message


class Tally:
    """How many messages came altogether; ends all readers at once, in success or failure. Any thread."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.last = time.perf_counter()
        self.error: BaseException | None = None
        self._count = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """So many more came, now."""
        with self._lock:
            self._count += count
            self.last = time.perf_counter()

    @property
    def done(self) -> bool:
        """Whether readers should stop. Raises TimeoutError when nothing came for too long."""
        if self.error or self._count >= self.wanted:
            return True
        if time.perf_counter() - self.last > PATIENCE_S:
            raise TimeoutError(f"{self._count:,} of {self.wanted:,} messages came, and no more for {PATIENCE_S:g} s")
        return False


def read_shared(
    engine: Engine, topic: str, subscription: str, names: Sequence[str], wanted: int
) -> tuple[list[Any], float]:
    """Read with one thread and one stream consumer per name; (an Arrow table for each, seconds altogether).

    All consumers join before the first message is taken, so that no segment changes hands in between. The time they
    take to join counts: messages come ahead meanwhile.
    """
    tally = Tally(wanted)
    start = tally.last
    parts: list[Any] = [None] * len(names)
    with ExitStack() as stack:
        consumers = [
            stack.enter_context(engine.stream_consumer(topic, subscription, name=name, initial_position="earliest"))
            for name in names
        ]

        def work(index: int) -> None:
            try:
                parts[index] = drain(consumers[index], tally, consumers[index].acknowledge_cumulative)
            except BaseException as e:  # whatever it is, the other reader must not wait for us
                tally.error = e

        threads = [threading.Thread(target=work, args=(i,), name=name) for i, name in enumerate(names)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if tally.error:
            raise tally.error
        return parts, tally.last - start


def read_all(engine: Engine, topic: str, wanted: int) -> tuple[Any, float]:
    """Read with a checkpoint consumer from the earliest message; (an Arrow table, seconds)."""
    from engine.model.positions import Checkpoint

    tally = Tally(wanted)
    start = tally.last
    with engine.checkpoint_consumer(topic, start=Checkpoint.earliest()) as consumer:
        return drain(consumer, tally, lambda batch: None), tally.last - start


def drain(consumer: Any, tally: Tally, acknowledge: Callable[[Any], object]) -> Any:
    """Batches as one Arrow table, until the tally is full."""
    import pyarrow as pa

    tables = []
    while not tally.done:
        batch = consumer.receive_batch(max_messages=BATCH_MESSAGES, timeout=POLL_S)
        if len(batch):
            tables.append(batch.to_arrow())
            acknowledge(batch)
            tally.add(len(batch))
    if not tables:
        raise EngineError("a consumer received nothing at all; each should have had its share")
    return pa.concat_tables(tables)
