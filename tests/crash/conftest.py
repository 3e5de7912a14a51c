"""The shim, compiled once, and the driver that runs under it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.programs import ROOT, environment, program

HERE = Path(__file__).parent
USUAL_BUILD = str(ROOT / "src")  # that of `make debug` wants a library loaded before the shim
Driver = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim as a shared object."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    target = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", target, HERE / "shim.c", "-ldl"], check=True
    )
    return target


@pytest.fixture
def driver(shim: Path, tmp_path: Path) -> Iterator[Driver]:
    """Runs one case; see driver.py."""
    command = program("tests.crash.driver", shim, tmp_path / "data")
    under_shim = environment(LD_PRELOAD=str(shim), PYTHONPATH=USUAL_BUILD)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=under_shim, text=True)
    assert process.stdin is not None
    assert process.stdout is not None

    def run(case: dict[str, Any]) -> dict[str, Any]:
        process.stdin.write(json.dumps(case) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, "the driver died"
        return json.loads(line)

    yield run
    process.stdin.close()
    process.wait(timeout=30)
    process.stdout.close()
