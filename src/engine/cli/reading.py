"""How the demo reads: stream consumers that share a topic, and a checkpoint consumer that reads everything."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError, TimeoutError

if TYPE_CHECKING:
    from engine.embedded import Engine

BATCH_MESSAGES = 50_000
POLL_S = 0.2
PATIENCE_S = 30.0  # without a single message


class Tally:
    """What came altogether, in the order in which it came; ends all readers at once, in success or failure. Any thread.

    `tables` are Arrow tables, each with the number of its reader.
    """

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.last = time.perf_counter()
        self.pause = 0.0  # the longest time in which nothing came, once something had
        self.error: BaseException | None = None
        self.tables: list[tuple[int, Any]] = []
        self._count = 0
        self._lock = threading.Lock()

    def add(self, reader: int, table: Any) -> None:
        with self._lock:
            now = time.perf_counter()
            if self.tables:
                self.pause = max(self.pause, now - self.last)
            self.tables.append((reader, table))
            self._count += len(table)
            self.last = now

    @property
    def done(self) -> bool:
        """Whether readers should stop. Raises TimeoutError when nothing came for too long."""
        if self.error or self._count >= self.wanted:
            return True
        if time.perf_counter() - self.last > PATIENCE_S:
            raise TimeoutError(f"{self._count:,} of {self.wanted:,} messages came, and no more for {PATIENCE_S:g} s")
        return False

    def part(self, reader: int) -> Any:
        """Everything that one reader received, as one table. Raises EngineError when it was nothing."""
        import pyarrow as pa

        tables = [table for number, table in self.tables if number == reader]
        if not tables:
            raise EngineError("a consumer received nothing at all; each should have had its share")
        return pa.concat_tables(tables)

    def everything(self) -> Any:
        """All of it as one table, as it came."""
        import pyarrow as pa

        return pa.concat_tables([table for _, table in self.tables])


@contextmanager
def readers(engine: Engine, topic: str, subscription: str, names: Sequence[str], tally: Tally) -> Iterator[None]:
    """One thread and one stream consumer per name read into the tally; at the end it is full, or an error is raised.

    All consumers join before the first message is taken.
    """
    with ExitStack() as stack:
        consumers = [
            stack.enter_context(engine.stream_consumer(topic, subscription, name=name, initial_position="earliest"))
            for name in names
        ]

        def work(index: int) -> None:
            try:
                drain(consumers[index], index, tally, consumers[index].acknowledge_cumulative)
            except BaseException as e:  # whatever it is, the other reader must not wait for us
                tally.error = e

        threads = [threading.Thread(target=work, args=(i,), name=name) for i, name in enumerate(names)]
        for thread in threads:
            thread.start()
        try:
            yield
        except BaseException as e:
            tally.error = e
            raise
        finally:
            for thread in threads:
                thread.join()
        if tally.error:
            raise tally.error


def read_shared(
    engine: Engine, topic: str, subscription: str, names: Sequence[str], wanted: int
) -> tuple[list[Any], float]:
    """Read with one stream consumer per name; (an Arrow table for each, seconds altogether).

    No segment changes hands meanwhile. The time the consumers take to join counts: messages come ahead meanwhile.
    """
    tally = Tally(wanted)
    start = tally.last
    with readers(engine, topic, subscription, names, tally):
        pass
    return [tally.part(reader) for reader in range(len(names))], tally.last - start


def read_all(engine: Engine, topic: str, wanted: int) -> tuple[Any, float]:
    """Read with a checkpoint consumer from the earliest message; (an Arrow table, seconds)."""
    from engine.model.positions import Checkpoint

    tally = Tally(wanted)
    start = tally.last
    with engine.checkpoint_consumer(topic, start=Checkpoint.earliest()) as consumer:
        drain(consumer, 0, tally, lambda batch: None)
    return tally.part(0), tally.last - start


def drain(consumer: Any, reader: int, tally: Tally, acknowledge: Callable[[Any], object]) -> None:
    """Batches into the tally, until it is full.

    A batch is in the tally before it is acknowledged, hence before any consumer receives later messages of its keys,
    from this or another segment: the tally's order is the order of each key.
    """
    while not tally.done:
        batch = consumer.receive_batch(max_messages=BATCH_MESSAGES, timeout=POLL_S)
        if len(batch):
            tally.add(reader, batch.to_arrow())
            acknowledge(batch)
