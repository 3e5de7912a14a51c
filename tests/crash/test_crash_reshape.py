"""kill -9 at the durable calls of split, merge, undo, resumption and pruning: semantics 42 holds afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.crash.test_crash_sweep import KILL_AFTER, KILL_BEFORE, OTHERS, TEAR, WRITES, sweep

Driver = Callable[[dict[str, Any]], dict[str, Any]]

# Which layouts the crashes of a sweep leave behind.
OUTCOMES = {
    "split": {"old", "new"},
    "merge": {"old", "new"},
    "undo": {"old"},
    "resume": {"new"},
    "prune": {"new"},
}


def outcomes(driver: Driver, scenario: str, action: int, **how: Any) -> set[str]:
    """Sweep; the outcomes that there were."""
    seen: set[str] = set()

    def noting(case: dict[str, Any]) -> dict[str, Any]:
        result = driver(case)
        seen.add(result["outcome"])
        return result

    assert sweep(noting, scenario, action, **how) > 1
    return seen


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", OUTCOMES)
def test_42_a_crash_leaves_the_old_layout_or_the_new_one(driver: Driver, scenario: str) -> None:
    assert outcomes(driver, scenario, KILL_BEFORE, step=5) == OUTCOMES[scenario]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", OUTCOMES)
def test_42_so_does_a_torn_write(driver: Driver, scenario: str) -> None:
    assert outcomes(driver, scenario, TEAR, kinds=WRITES, step=7) <= OUTCOMES[scenario]


@pytest.mark.fuzz
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", OUTCOMES)
def test_42_a_crash_at_every_call(driver: Driver, scenario: str) -> None:
    assert outcomes(driver, scenario, KILL_BEFORE) == OUTCOMES[scenario]
    assert outcomes(driver, scenario, KILL_AFTER, kinds=OTHERS) <= OUTCOMES[scenario]
    assert outcomes(driver, scenario, TEAR, kinds=WRITES) <= OUTCOMES[scenario]
