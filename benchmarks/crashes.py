"""A data directory as a killed process leaves it, and the time until it takes a message again (P13).

Run as a script it is the process that gets killed: it fills a directory, prints a line, and waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from processes import Child
from support import MIB, directory, rows, run
from workloads import publish_columns

import engine

TOPIC = "crashed"
VALUE_BYTES = 1024
WRITTEN = re.compile(r"written: (\d+) MiB")
MIB_PER_S_MIN = 20  # a writer slower than this is given up


async def fill(path: str, mib: int, tail_mib: int) -> None:
    """Publish `mib` at least to one topic, and then until the last file holds `tail_mib`; wait for the end."""
    step_mib = max(1, min(4, tail_mib))
    sample = rows(step_mib * MIB // VALUE_BYTES, VALUE_BYTES)
    written = 0
    async with engine.open_async(path) as opened:
        await opened.admin.create_topic(TOPIC)
        while written < mib or not 0 <= tail_bytes(path) - tail_mib * MIB < 2 * step_mib * MIB:
            await publish_columns(opened, TOPIC, sample)
            written += step_mib
        print("written:", written, "MiB", flush=True)
        await asyncio.sleep(3600)


@contextlib.contextmanager
def crashed_directory(mib: int, tail_mib: int) -> Iterator[str]:
    """A directory of at least `mib` MiB, `tail_mib` of it not sealed, whose writer was ended by SIGKILL."""
    with directory() as path:
        command = [sys.executable, __file__, path, str(mib), str(tail_mib)]
        Child(command, WRITTEN, ready_s_max=60 + (mib + 256) / MIB_PER_S_MIN).kill()
        yield path


def tail_bytes(path: str) -> int:
    """Bytes in the last file of the one segment's log, named by their first offsets: no more has to be read."""
    files = sorted(Path(path).rglob("*.log"), key=lambda file: int(file.stem))
    return files[-1].stat().st_size if files else 0


async def first_publish_seconds(path: str) -> float:
    """Seconds from before the open to the first acknowledgement."""
    started = time.perf_counter()
    async with engine.open_async(path) as opened, await opened.producer(TOPIC) as producer:
        await producer.send(b"first", key=b"k")
        return time.perf_counter() - started


def open_seconds(mib: int, tail_mib: int) -> float:
    """The same, of a new crashed directory. The code is loaded before, on an empty one."""
    with crashed_directory(mib, tail_mib) as path, directory() as empty:
        run(first_publish_seconds(empty))
        return run(first_publish_seconds(path))


if __name__ == "__main__":
    run(fill(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
