"""A process that shares a data directory, and may be killed at any moment: it sends, reads, acknowledges, and writes
down what it did and saw.

Arguments: the directory, its own name, the file of its history, a seed, how many seconds a consumer lives at most. It
ends in order when its input ends.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import engine
from engine.aio.uv import run
from engine.clock import SystemClock
from engine.testing.history import History
from engine.testing.workload import QueueReader, Reader, Sender, StreamReader

TOPIC = "orders"
IDLE_S = 1.0


def reader_of(
    kind: type[Reader], history: History, opened: engine.AsyncEngine, name: str, rng: random.Random, life_s: float
) -> Reader:
    """A reader whose clients are the engine's handle, each with connections of its own."""

    def client() -> engine.AsyncClient:
        return engine.AsyncClient(opened.service_url, connector=opened._hold.connector())  # type: ignore[attr-defined]

    reader = kind(history, client, f"{kind.kind}-{name}", TOPIC, f"sub-{kind.kind}", random.Random(rng.random()))
    reader.life_s_max, reader.idle_s = life_s, IDLE_S
    return reader


async def main(directory: str, name: str, file: str, seed: str, life_s: str) -> None:
    """Until the input ends."""
    rng = random.Random(f"{seed} {name}")
    with Path(file).open("w", buffering=1) as out:  # noqa: ASYNC230 - a line at a time
        history = History(SystemClock().monotonic, out.write)
        async with engine.open_async(directory) as opened:
            print("open", flush=True)
            sender = Sender(history, opened, f"producer-{name}", TOPIC, random.Random(rng.random()))
            sender.pause_s_max = 0.05
            kinds = (StreamReader, QueueReader)
            readers = [reader_of(kind, history, opened, name, rng, float(life_s)) for kind in kinds]
            working = [asyncio.create_task(sender.run(100_000))]
            working += [asyncio.create_task(reader.run()) for reader in readers]
            await asyncio.to_thread(sys.stdin.read)
            for actor in (sender, *readers):
                actor.stop()
            await asyncio.gather(*working)


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
