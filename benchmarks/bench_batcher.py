"""Messages into sealed entries on one thread, without I/O: millions a second, beside the ceiling of plain Python.

The ceiling is a Python loop that writes length-prefixed records to a buffered file. It runs in turn with the batcher,
so that a ratio comes from one run. Run as a script to print the table that the performance page shows.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from ceilings import file_write_seconds

from engine._native.produce.batcher import Batcher

TINY = bool(os.environ.get("ENGINE_BENCH_TINY"))
SIZES = {"messages": 2_000 if TINY else 300_000, "rounds": 1 if TINY else 5}
POOL = 256
KEYS = 5_000
FOUR = [0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF]

Record = tuple[bytes, bytes]


def records(size: int) -> list[Record]:
    """(key, value) of every message; keys of eight bytes."""
    values = [os.urandom(size) for _ in range(POOL)]
    keys = [b"k%07d" % i for i in range(KEYS)]
    return [(keys[i * 7919 % KEYS], values[i % POOL]) for i in range(SIZES["messages"])]


def open_batcher(segments: int = 1, buckets: int = 4) -> Batcher:
    """A batcher whose sealed entries are taken, and dropped, as they come."""
    made = Batcher(b"benchmark", pending_bytes_max=1 << 40, on_sealed=lambda: made.take())
    ends = [(i + 1) * 0x10000 // buckets - 1 for i in range(buckets)]
    made.set_layout([i * 0x10000 // segments for i in range(segments)], range(segments), [ends] * segments)
    return made


def send_all(batcher: Batcher, rows: list[Record]) -> float:
    """Seconds for a plain Python loop of send_nowait."""
    send = batcher.send_nowait
    start = time.perf_counter()
    for key, value in rows:
        send(value, key=key)
    batcher.seal_all()
    return time.perf_counter() - start


def add_all(batcher: Batcher, values: Any, keys: Any) -> float:
    """Seconds for one bulk call."""
    start = time.perf_counter()
    taken = batcher.add_columns(values, keys)
    batcher.seal_all()
    assert taken == len(values)
    return time.perf_counter() - start


def millions(run: Callable[[], float], rounds: int | None = None) -> float:
    """Median of several runs, in millions of messages a second."""
    return SIZES["messages"] / 1e6 / statistics.median(run() for _ in range(rounds or SIZES["rounds"]))


class SendNowait:
    """One message a call."""

    params: ClassVar = [100, 1024]
    param_names = ("value size",)

    def setup(self, size: int) -> None:
        self.rows = records(size)

    def track_rate(self, _: int) -> float:
        return millions(lambda: send_all(open_batcher(), self.rows))

    def track_ceiling(self, _: int) -> float:
        return millions(lambda: file_write_seconds(self.rows))

    def track_ratio_to_ceiling(self, _: int) -> float:
        pairs = [(file_write_seconds(self.rows), send_all(open_batcher(), self.rows)) for _ in range(SIZES["rounds"])]
        return statistics.median(ceiling / ours for ceiling, ours in pairs)

    track_rate.unit = track_ceiling.unit = "M msg/s"  # type: ignore[attr-defined]


def columns_of(kind: str, size: int) -> tuple[Any, Any]:
    """The same messages as columns."""
    rows = records(size)
    values, keys = [value for _, value in rows], [key for key, _ in rows]
    if kind == "list":
        return values, keys
    if kind == "arrow":
        return pa.array(values, pa.binary()), pa.array(keys, pa.binary())
    return np.frombuffer(b"".join(values), np.uint8).reshape(-1, size), np.array(keys)


class AddColumns:
    """Many messages a call."""

    params: ClassVar = (["list", "numpy", "arrow"], [100, 1024])
    param_names = ("columns", "value size")
    unit = "M msg/s"

    def setup(self, kind: str, size: int) -> None:
        self.values, self.keys = columns_of(kind, size)

    def track_rate(self, *_: Any) -> float:
        return millions(lambda: add_all(open_batcher(), self.values, self.keys))


def send_keyless(send: Callable[..., None], rows: list[Record]) -> None:
    for _, value in rows:
        send(value)


def send_str_keys(send: Callable[..., None], rows: list[Record]) -> None:
    for _, value in rows:
        send(value, key="customer-7")


def send_event_times(send: Callable[..., None], rows: list[Record]) -> None:
    for at, (_, value) in enumerate(rows):
        send(value, event_time=at)


def send_properties(send: Callable[..., None], rows: list[Record]) -> None:
    properties = {"origin": "benchmark"}
    for _, value in rows:
        send(value, properties=properties)


def send_buffers(send: Callable[..., None], rows: list[Record]) -> None:
    value = bytearray(100)
    for _ in rows:
        send(value)


EXTRAS = {
    "keyless": send_keyless,
    "str key": send_str_keys,
    "event time": send_event_times,
    "properties": send_properties,
    "bytearray": send_buffers,
}


class Extras:
    """What the other arguments of a message cost, at 100 bytes."""

    params: ClassVar = list(EXTRAS)
    param_names = ("with",)
    unit = "M msg/s"

    def setup(self, _: str) -> None:
        self.rows = records(100)

    def track_rate(self, what: str) -> float:
        return millions(lambda: self.loop(EXTRAS[what]))

    def loop(self, run: Callable[..., None]) -> float:
        batcher = open_batcher()
        start = time.perf_counter()
        run(batcher.send_nowait, self.rows)
        batcher.seal_all()
        return time.perf_counter() - start


class Width:
    """The same messages over more segments and buckets: what is paid for the size of a topic."""

    params: ClassVar = (["send_nowait", "arrow"], [(1, 4), (4, 1), (16, 1), (64, 1), (64, 4), (1, 64), (1, 1024)])
    param_names = ("way", "segments, buckets")
    unit = "M msg/s"

    def setup(self, way: str, _: tuple[int, int]) -> None:
        self.rows = records(100)
        self.columns = columns_of("arrow", 100) if way == "arrow" else None

    def track_rate(self, _: str, width: tuple[int, int]) -> float:
        batcher = open_batcher(*width)
        if self.columns is None:
            return millions(lambda: send_all(batcher, self.rows))
        return millions(lambda: add_all(batcher, *self.columns))  # type: ignore[misc]


def main() -> None:
    for holder in (SendNowait, AddColumns, Extras, Width):
        nested = holder.params if isinstance(holder.params, tuple) else (holder.params,)
        combined: list[tuple[Any, ...]] = [()]
        for values in nested:
            combined = [(*one, value) for one in combined for value in values]
        for arguments in combined:
            subject: Any = holder()
            subject.setup(*arguments)
            found = {name: getattr(subject, name)(*arguments) for name in dir(subject) if name.startswith("track_")}
            print(holder.__name__, arguments, {name: round(value, 2) for name, value in found.items()}, flush=True)


if __name__ == "__main__":
    main()
