"""`Finding`: the result of one check with its remedy; `run_checks` runs checks side by side, each with a deadline."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import EngineError


class State(enum.IntEnum):
    """How bad it is; the worst of all is the exit code."""

    GOOD = 0
    WARNING = 1
    PROBLEM = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """`check`: its name, as `disk.free`. `remedy`: one sentence; "" for what is good, and only for that."""

    check: str
    state: State
    found: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {"check": self.check, "state": self.state.name.lower(), "found": self.found, "remedy": self.remedy}


Check = Callable[[], Iterable[Finding]]


def good(check: str, found: str) -> Finding:
    return Finding(check, State.GOOD, found)


def warning(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, State.WARNING, found, remedy)


def problem(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, State.PROBLEM, found, remedy)


def graded(check: str, state: State, found: str, remedy: str) -> Finding:
    """With the remedy only where it is not good."""
    return Finding(check, state, found, remedy if state else "")


def run_checks(checks: Mapping[str, Check], timeout: float) -> list[Finding]:
    """The findings in the order of the checks; `timeout`: seconds for all of them, which run at the same time.

    A check that has not ended by then, such as one that waits for a disk or a name server, is left behind on its
    daemon thread with what it has found so far, and a problem says so.
    """
    runs = {name: _Run(name, check) for name, check in checks.items()}
    deadline = time.monotonic() + timeout
    return [finding for run in runs.values() for finding in run.until(deadline, timeout)]


class _Run:
    def __init__(self, name: str, check: Check) -> None:
        self._name, self._check = name, check
        self._found: list[Finding] = []
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=f"doctor-{name}", daemon=True).start()

    def until(self, deadline: float, timeout: float) -> Iterator[Finding]:
        """What was found by then."""
        ended = self._ended.wait(max(deadline - time.monotonic(), 0))
        yield from tuple(self._found)
        if not ended:
            text = f"no result within {timeout:g} s"
            yield problem(self._name, text, "Look at what it waits for, or allow more with --timeout.")

    def _run(self) -> None:
        try:
            for finding in self._check():
                self._found.append(finding)
        except (EngineError, OSError, ValueError) as e:
            text = " ".join(str(e).split()) or type(e).__name__
            self._found.append(problem(self._name, f"cannot be checked: {text}", "Mend what the error names."))
        finally:
            self._ended.set()
