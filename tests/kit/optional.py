"""Servers that tests start, and that a machine may lack: a test that needs one fails with one sentence.

With OPTIONAL=skip in the environment (`make test OPTIONAL=skip`) it is left out, and the last line of the run counts
what was: never silently.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

import pytest

_LEFT_OUT = "left out for want of "


def lacking(what: str, package: str) -> NoReturn:
    """The test cannot run: `what` is missing, which `pip install package` brings, or the command that `package` is."""
    remedy = package if " install " in package else f"pip install {package}"
    if os.environ.get("OPTIONAL") == "skip":
        pytest.skip(f"{_LEFT_OUT}{what}: {remedy}")
    pytest.fail(f"{what} is missing: {remedy}, or leave these tests out by OPTIONAL=skip", pytrace=False)


def closing_line(reasons: Iterable[str]) -> str:
    """What was left out, of all reasons of skipped tests; "" for nothing."""
    counts = Counter(reason[reason.index(_LEFT_OUT) :] for reason in reasons if _LEFT_OUT in reason)
    return "; ".join(f"{count} tests {reason}" for reason, count in sorted(counts.items()))
