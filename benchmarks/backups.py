"""A backup, one that finds nothing new, a check and a restore, beside `cp -r` and sync: wall and processor time.

    python benchmarks/backups.py [GB] [--turns 3]
    python benchmarks/backups.py [GB] [--turns 5] --beside

Messages of 1,000 random bytes in one topic, of a directory that nothing has open. With --beside, what a backup costs a
producer that goes on: an engine with a producer sends by itself and beside `engine backup` to an empty place, in turns;
messages per second, and processor time of engine and producer for each. ENGINE_BENCH_DIR says where.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

from support import directory

import engine

if TYPE_CHECKING:
    from engine.sync import Producer

BATCH = 1_000


def fill(data: str, size: float) -> None:
    """Until so many bytes are in it."""
    values = [os.urandom(1_000) for _ in range(BATCH)]
    with engine.open(data) as opened, opened.producer("t") as producer:
        for _ in range(max(1, int(size) // (BATCH * 1_000))):
            producer.send_batch(values)
        producer.flush()


def measured(*command: str) -> str:
    """Of a process of its own and its children."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{time.monotonic() - began:6.2f} s, {taken:6.2f} s of processor time"


def sent(producer: Producer[bytes], values: list[bytes], until: Callable[[], bool]) -> tuple[float, float]:
    """(seconds, processor seconds of this process) for a million messages, sent and flushed a batch at a time."""
    count, began, before = 0, time.monotonic(), time.process_time()
    while not until():
        producer.send_batch(values)
        producer.flush()
        count += len(values)
    return (time.monotonic() - began) / count * 1e6, (time.process_time() - before) / count * 1e6


def beside(root: str, turns: int) -> None:
    """In each turn by itself and beside a backup, for as long as that took; then the medians of the ratios."""
    values = [os.urandom(1_000) for _ in range(BATCH)]
    ratios: tuple[list[float], list[float]] = ([], [])
    any_port = "127.0.0.1:0"
    with engine.open(f"{root}/data", listen=any_port, admin=any_port) as opened, opened.producer("t") as producer:
        for turn in range(turns):
            where = f"{root}/backup-{turn}"
            command = (sys.executable, "-m", "engine", "backup", "create", where, "--url", opened.service_url)
            began = time.monotonic()
            backup = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with_it = sent(producer, values, lambda b=backup: b.poll() is not None)  # type: ignore[misc]
            if backup.returncode:
                sys.exit(f"the backup ended with {backup.returncode}")
            ends = 2 * time.monotonic() - began
            alone = sent(producer, values, lambda at=ends: time.monotonic() > at)  # type: ignore[misc]
            for found, one, other in zip(ratios, with_it, alone, strict=True):
                found.append(one / other)
            for name, (wall, processor) in {"beside": with_it, "alone": alone}.items():
                print(f"{name:6} {wall:6.2f} s, {processor:6.2f} s of processor time for a million messages")
            shutil.rmtree(where)
    for name, found in zip(("time", "processor time"), ratios, strict=True):
        print(f"{name}: {statistics.median(found):.2f} times, {min(found):.2f} to {max(found):.2f}")


def main() -> None:
    """Fill, then each step in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("gb", type=float, nargs="?", default=2.0, help="bytes of messages, in GB (2)")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--beside", action="store_true", help="what a backup costs a producer")
    chosen = parser.parse_args()
    own = (sys.executable, "-m", "engine")
    with directory() as root:
        data, copy, backup, restored = (f"{root}/{name}" for name in ("data", "copy", "backup", "restored"))
        fill(data, chosen.gb * 1e9)
        if chosen.beside:
            beside(root, chosen.turns)
            return
        for _ in range(chosen.turns):
            for made in (copy, backup, restored):
                shutil.rmtree(made, ignore_errors=True)
            print("cp and sync  ", measured("sh", "-c", f"cp -r {data} {copy} && sync"))
            print("first backup ", measured(*own, "backup", "create", backup, "--data", data))
            print("nothing new  ", measured(*own, "backup", "create", backup, "--data", data))
            print("verify       ", measured(*own, "backup", "verify", backup))
            print("restore      ", measured(*own, "restore", backup, "--data", restored))


if __name__ == "__main__":
    main()
