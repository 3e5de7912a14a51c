"""The figures of a split under load are there on a machine, too, that leaves the benchmark little time."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import math
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tidy.test_benchmarks import BENCHMARKS

BETWEEN_S = 0.02  # times that a message may be sent, twice what lies between the begin of the load and the split


class Producer:
    """One that has room at long intervals, and whose acknowledgements take longer than what is measured."""

    acknowledged = 0

    def send_nowait(self, value: bytes, *, key: bytes) -> None:
        self.acknowledged += 1

    async def writable(self) -> None:
        await asyncio.sleep(BETWEEN_S)

    async def send(self, value: bytes, *, key: bytes) -> None:
        await asyncio.sleep(10 * BETWEEN_S)

    async def flush(self) -> None:
        """Nothing is left."""

    def statistics(self) -> Any:
        return SimpleNamespace(messages_acknowledged=self.acknowledged)


class Client:
    """Makes this producer, and splits at once."""

    def __init__(self) -> None:
        self.admin = self

    async def producer(self, topic: str) -> Any:
        return contextlib.nullcontext(Producer())

    async def split_segment(self, topic: str, segment: int) -> None:
        """Done."""


async def test_messages_sent_before_and_after_a_split_are_timed_however_slow_the_machine_is(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    reshapes: Any = importlib.import_module("reshapes")

    @contextlib.asynccontextmanager
    async def new_topic(client: Any) -> AsyncIterator[str]:
        yield "t"

    for name, value in {
        "new_topic": new_topic,
        "BEFORE_S": BETWEEN_S / 2,
        "AFTER_S": BETWEEN_S / 2,
        "WAITS_S": BETWEEN_S / 4,
        "WAITED_S": BETWEEN_S / 20,
        "PROBE_EVERY": 2,
    }.items():
        monkeypatch.setattr(reshapes, name, value)

    split = await reshapes.split_under_load(Client(), [(b"k", b"v")])

    assert split.usual_waits
    assert split.waits
    assert all(0 < wait < math.inf for wait in split.usual_waits + split.waits)


def test_each_stage_of_a_split_is_told(tmp_path: Path) -> None:
    program = [sys.executable, str(BENCHMARKS / "split_stages.py")]
    environment = {**os.environ, "ENGINE_BENCH_TINY": "1"}
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert first == "1 splits, milliseconds: median, 90th percentile"
    times = [float(line.split()[0]) for line in lines]
    assert len(times) == 10
    assert times[-1] == pytest.approx(sum(times[:-1]), abs=1.0)
