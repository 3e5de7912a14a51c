"""How workers share the suite (tests/kit/schedule.py) when one of them is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.kit.programs import environment

CONFTEST = """
from tests.kit.schedule import ByUnit

def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False
    return ByUnit(config, log)
"""
LOST = """
import os, signal
import pytest

@pytest.mark.parametrize("number", range(6))
def test_one(number):
    if number == LAST:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_test_that_takes_its_worker_with_it_fails_once_and_the_others_are_run(tmp_path: Path) -> None:
    """One test is left of a unit, and none of another."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number in (4, 5):
        (tmp_path / f"test_{number}.py").write_text(LOST.replace("LAST", str(number)))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "--dist", "loadfile", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", "no:engine.pytest_plugin", str(tmp_path)],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    last = done.stdout.splitlines()[-1]
    assert "2 failed, 10 passed" in last, done.stdout
