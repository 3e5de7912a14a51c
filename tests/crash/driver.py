"""Runs under the shim: forks a child per case, lets the shim strike, and checks what the child left behind.

usage: LD_PRELOAD=shim.so python -m tests.crash.driver shim.so directory < cases

A case is one JSON object in a line: {"scenario", "n", "action", "error", "kinds"}.
One JSON object per case comes out: {"case", "struck", "problem", "outcome"}.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import struct
import sys
import traceback
from typing import Any

from tests.crash import reshape_scenarios
from tests.crash.crash_scenarios import History, check, check_cursors, reporter, run_child


def run_case(shim: ctypes.CDLL, root: str, case: dict[str, Any]) -> tuple[bool, History]:
    """(whether the shim struck, what the child reported)."""
    shutil.rmtree(root, ignore_errors=True)
    os.mkdir(root)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 3
        try:
            os.close(reader)
            act(shim, root, case, writer)
            status = 2 if shim.shim_count() >= case["n"] else 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 3:
        raise AssertionError("the scenario raised; see stderr")
    return not (os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0), History(_lines(data))


def act(shim: ctypes.CDLL, root: str, case: dict[str, Any], writer: int) -> None:
    """Run the scenario in this process; the shim counts from its start, or from where it says so itself."""

    def arm() -> None:
        shim.shim_arm(case["n"], case["action"], case.get("error", 0), case.get("kinds", 7))

    reshape = reshape_scenarios.SCENARIOS.get(case["scenario"])
    if reshape is not None:
        asyncio.run(reshape(root, reporter(writer), arm))
    else:
        arm()
        run_child(case["scenario"], root, writer, 0)


async def check_case(root: str, scenario: str, history: History) -> str | None:
    """Raise AssertionError when what the child left behind is not right; which of the right outcomes it is."""
    if scenario in reshape_scenarios.SCENARIOS:
        return await reshape_scenarios.check(root, scenario, history)
    await (check_cursors if scenario == "cursor" else check)(root, history)
    return None


def _lines(data: bytes) -> list[list[Any]]:
    lines, at = [], 0
    while at + 4 <= len(data):
        size = struct.unpack_from("<I", data, at)[0]
        lines.append(json.loads(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return lines


def main() -> None:
    """Cases in, results out."""
    shim = ctypes.CDLL(sys.argv[1])
    for line in sys.stdin:
        case = json.loads(line)
        struck, problem, outcome = False, None, None
        try:
            struck, history = run_case(shim, sys.argv[2], case)
            outcome = asyncio.run(check_case(sys.argv[2], case["scenario"], history))
        except Exception as e:
            problem = "".join(traceback.format_exception(e))
        print(json.dumps({"case": case, "struck": struck, "problem": problem, "outcome": outcome}), flush=True)


main()
