"""Programs of the tests, in processes of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def program(module: str, *arguments: object) -> list[str]:
    """The command that runs a module of the tests, such as `tests.api.burst_program`, in `environment()`."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    """That of this process with these changes; Python finds the tests in it, behind what `PYTHONPATH` names."""
    changed = {**os.environ, **changes}
    found = [path for path in changed.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**changed, "PYTHONPATH": os.pathsep.join([*found, str(ROOT)])}
