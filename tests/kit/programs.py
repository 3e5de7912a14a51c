"""Programs of the tests, in processes of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
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


def prepared(statements: str, command: Sequence[str]) -> list[str]:
    """The command that runs some statements of Python and then becomes `command`, with what they did to its process.

    In place of `preexec_fn`, which runs in a fork of this process: its threads, such as gRPC's, are not there.
    """
    return [sys.executable, "-c", f"{statements}\nimport os, sys\nos.execv(sys.argv[1], sys.argv[1:])", *command]
