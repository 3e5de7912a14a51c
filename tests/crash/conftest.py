"""The shim, compiled once, and the driver that runs under it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
REPO = HERE.parent.parent
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
    path = f"{REPO / 'src'}:{HERE}:{HERE.parent / 'storage'}"
    environment = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": path}
    command = [sys.executable, str(HERE / "driver.py"), str(shim), str(tmp_path / "data")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
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
