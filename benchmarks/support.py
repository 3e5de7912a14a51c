"""What the benchmarks share: sizes, samples, a directory on disk, and statistics over repetitions."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import shutil
import statistics
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

TINY = bool(os.environ.get("ENGINE_BENCH_TINY"))
MIB = 1024 * 1024
ROUNDS = 1 if TINY else int(os.environ.get("ENGINE_BENCH_ROUNDS", "5"))
KEY_BYTES = 8
KEYS = 10_000  # different ones
POOL = 1024  # different values
RUN_S_MAX = 600.0
TOUCHED_SHARE = 0.8  # of the memory that is free

Rows = list[tuple[bytes, bytes]]


def sized(full: int, tiny: int) -> int:
    """`full`, or `tiny` where every benchmark runs once only to show that it runs."""
    return tiny if TINY else full


def rows(count: int, size: int) -> Rows:
    """(key, value) of `count` messages: keys of 8 bytes, incompressible values of `size` bytes."""
    rng = random.Random(7)
    names = [b"k%07d" % i for i in range(KEYS)]
    values = [rng.randbytes(size) for _ in range(min(POOL, count))]
    return [(key, values[i % POOL]) for i, key in enumerate(rng.choices(names, k=count))]


def byte_count(count: int, size: int) -> int:
    """Bytes of the keys and values of `count` messages."""
    return count * (size + KEY_BYTES)


@contextlib.contextmanager
def directory() -> Iterator[str]:
    """A folder for data, gone afterwards. ENGINE_BENCH_DIR says where; /tmp is in memory on some machines."""
    path = tempfile.mkdtemp(prefix="bench-", dir=os.environ.get("ENGINE_BENCH_DIR"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def touch_free_memory() -> None:
    """Use most of the free memory once, and give it back; not where everything is tiny.

    A virtual machine gets a page from its host when the page is first used: writing there is several times slower.
    """
    if TINY:
        return
    free = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if "MemFree" in line)
    size = int(free * 1024 * TOUCHED_SHARE)
    with mmap.mmap(-1, size) as memory:
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on uvloop, as the broker does, for ten minutes at most."""
    import asyncio

    import uvloop

    return uvloop.run(asyncio.wait_for(main, RUN_S_MAX))


def median(measure: Callable[[], float], rounds: int = ROUNDS) -> float:
    """Median of several runs."""
    return statistics.median(measure() for _ in range(rounds))


def median_ratio(ours: Callable[[], float], reference: Callable[[], float], rounds: int = ROUNDS) -> float:
    """Median of ours / reference, measured in turn: absolute numbers drift, and both drift together."""
    return statistics.median(ours() / reference() for _ in range(rounds))


def percentile(values: list[float], share: float) -> float:
    """The value at `share` (0 to 1) of all, by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


if __name__ == "__main__":
    touch_free_memory()  # before `make bench`: asv begins a process for each benchmark, which all share it
