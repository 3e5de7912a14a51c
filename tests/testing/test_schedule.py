"""A worker that dies in a test fails that test; what it had left is run, and the run ends."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.kit.programs import program

CONFTEST = """
import sys
sys.path.insert(0, {root!r})

def pytest_xdist_make_scheduler(config, log):
    from tests.kit.schedule import ByUnit
    return ByUnit(config, log)
"""
TESTS = """
import os, pathlib, pytest, time

@pytest.mark.parametrize("n", range(4))
def test_one(n):
    if {crashes} and n == 1:
        os._exit(3)
"""


@pytest.mark.parametrize("crashing", [3, 5])
def test_a_worker_that_dies(tmp_path: Path, crashing: int):
    (tmp_path / "conftest.py").write_text(CONFTEST.format(root=str(Path(__file__).parents[2])))
    for n in range(6):
        (tmp_path / f"test_{n}.py").write_text(TESTS.format(crashes=n == crashing))
    arguments = program("pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--dist", "loadfile")
    done = subprocess.run([*arguments, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert "1 failed, 23 passed" in done.stdout, done.stdout[-4000:]
    assert f"test_{crashing}.py::test_one[1]" in done.stdout
