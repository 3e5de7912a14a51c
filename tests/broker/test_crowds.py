"""A crowd of which every second one reads nothing: a broker stays small, and who reads gets all there is.

The sizes of benchmarks/bench_memory.py, which this is a small form of, are ten times and more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.limits import MIB

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CLIENTS = 200
TOPICS = 3_000
CONSUMED = 10
READS_MAX = 16 * MIB
SLACK = 512 * MIB if "asan" in os.environ.get("LD_PRELOAD", "") else 0  # the sanitizer keeps what was freed
RUN = "import json, listeners as l; l.QUIET_S = 0.5"


def run_crowd(kind: str, topics: int) -> dict[str, float]:
    """In processes of their own: what is looked at is what they keep resident."""
    script = f"{RUN}; print(json.dumps(l.scenario({kind!r}, {CLIENTS}, {topics})))"
    environment = {**os.environ, "ENGINE_READS_IN_FLIGHT_MAX": str(READS_MAX), "ENGINE_BENCH_PAUSE_S": "0.1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=BENCHMARKS,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("kind", "topics", "most"),
    [
        # Parts that are kept, a frame for each of the deaf, what is known of each topic and of each connection.
        ("list", TOPICS, 16 * MIB + CLIENTS // 2 * 65_536 + TOPICS * 1_000 + CLIENTS * 20_000 + 20 * MIB),
        # The cache, which holds all there is; then blocks of 64 KiB, and those from before it was full.
        ("consume", CONSUMED, 40 * MIB + READS_MAX + CLIENTS // 2 * MIB),
    ],
)
def test_half_of_a_crowd_reads_nothing(kind, topics, most):
    found = run_crowd(kind, topics)
    assert (found["answered"], found["refused"], found["deaf"]) == (CLIENTS // 2, 0, CLIENTS // 2)
    assert found["resident_growth"] < most + SLACK
