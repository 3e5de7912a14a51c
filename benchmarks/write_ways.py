"""Ways to write a log's large commits: through the page cache, the same and dropped behind, started early, past it.

    python benchmarks/write_ways.py [--mib 512] [--turns 5] [--groups 256,1024,4096] [--window 64]

Each way writes `--mib` in groups (KiB), each followed by fdatasync, into a new file; ways in turn. Shown: MB/s, and
processor milliseconds of a MiB (mostly the kernel's), each also as the median of its ratios to "cached" of the same
turn, and how much of the file is in the page cache afterwards (mincore). Free memory is touched first.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from support import MIB, TINY, directory, touch_free_memory

KIB = 1024
ALIGNED = 4096
SYNC_FILE_RANGE_WRITE = 2
UNALIGNED = 40  # how far behind a page's start groups begin: those of a log begin anywhere


class Figures(NamedTuple):
    mb_s: float
    cpu_ms: float  # of a MiB
    resident: float  # share of the file that is in the page cache


class Way(NamedTuple):
    flags: int
    starts: bool  # the write-out of a group is started one group before its sync
    drops: bool  # what lies `window` behind is dropped


WAYS = {
    "cached": Way(0, False, False),
    "dropped": Way(0, False, True),
    "started": Way(0, True, False),
    "started, dropped": Way(0, True, True),
    "direct": Way(getattr(os, "O_DIRECT", 0), False, False),
}
libc = ctypes.CDLL(None, use_errno=True)
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


def resident_share(path: str) -> float:
    """Of the pages of a file."""
    size = os.path.getsize(path)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        states = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        if libc.mincore(address, size, states):
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(state & 1 for state in states.raw) / len(states)


def write_file(path: str, way: Way, total: int, group: int, window: int) -> Figures:
    """Write and sync `total` bytes, a group at a time."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | way.flags, 0o600)
    source = os.urandom(group)
    aligned = mmap.mmap(-1, group + ALIGNED)  # begins at a page, as O_DIRECT needs it
    at, shift = 0, 0 if way.flags else UNALIGNED
    began, used = time.perf_counter(), time.process_time()
    while at < total:
        if way.flags:  # a log has to gather the group in aligned memory, the last part of the one before included
            aligned[:group] = source
            os.pwritev(fd, [memoryview(aligned)[:group]], at)
        else:
            os.pwritev(fd, [source], at + shift)
        if way.starts:
            libc.sync_file_range(fd, at, group, SYNC_FILE_RANGE_WRITE)
        at += group
        os.fdatasync(fd)
        if way.drops and at > window:
            os.posix_fadvise(fd, 0, at - window, os.POSIX_FADV_DONTNEED)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    os.close(fd)
    return Figures(total / seconds / 1e6, used * 1e3 / (total / MIB), resident_share(path))


def measure(total: int, group: int, window: int, turns: int) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {name: [] for name in WAYS}
    names = list(WAYS)
    for turn in range(turns):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            with directory() as folder:
                found[name].append(write_file(f"{folder}/log", WAYS[name], total, group, window))
    return found


def ratios(of: list[Figures], to: list[Figures], field: Callable[[Figures], float]) -> str:
    some = [field(a) / field(b) for a, b in zip(of, to, strict=True)]
    return f"{statistics.median(some):5.2f} ({min(some):.2f}-{max(some):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=1 if TINY else 512)
    parser.add_argument("--turns", type=int, default=1 if TINY else 5)
    parser.add_argument("--groups", default="256,1024,4096", help="KiB")
    parser.add_argument("--window", type=int, default=64, help="MiB that stay in the page cache")
    chosen = parser.parse_args()
    touch_free_memory()
    for group in map(int, chosen.groups.split(",")):
        found = measure(chosen.mib * MIB, group * KIB, chosen.window * MIB, chosen.turns)
        for name, figures in found.items():
            medians = [statistics.median(column) for column in zip(*figures, strict=True)]
            speed = ratios(figures, found["cached"], lambda one: one.mb_s)
            work = ratios(figures, found["cached"], lambda one: one.cpu_ms)
            print(f"{group:6} KiB  {name:18} {medians[0]:7.0f} MB/s {speed}   {medians[1]:6.3f} ms/MiB {work}"
                  f"   {medians[2]:4.0%} in the cache", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
