"""kill -9 at every durable call of append, roll, seal, recovery and deletion: D1 to D6 hold afterwards."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

Driver = Callable[[dict[str, Any]], dict[str, Any]]

KILL_BEFORE, KILL_AFTER, TEAR, FAIL_ONCE, FAIL_FROM, SHORT, SHORT_THEN_FAIL = range(1, 8)
WRITES, SYNCS, OTHERS = 1, 2, 4


def sweep(driver: Driver, scenario: str, action: int, *, step: int = 1, kinds: int = 7, error: int = 0) -> int:
    """Strike at call 1, 1 + step, … until the scenario ends before; how many cases that was."""
    n, cases = 1, 0
    while True:
        case: dict[str, Any] = {"scenario": scenario, "n": n, "action": action, "error": error, "kinds": kinds}
        result = driver(case)
        assert result["problem"] is None, f"{case}\n{result['problem']}"
        if not result["struck"]:
            return cases
        cases += 1
        n += step


@pytest.mark.parametrize("scenario", ["append", "roll", "seal", "recover", "delete", "expire", "relaxed"])
def test_d1_to_d6_kill_before_every_durable_call(driver: Driver, scenario: str) -> None:
    assert sweep(driver, scenario, KILL_BEFORE) > 15


@pytest.mark.parametrize("scenario", ["append", "roll", "seal", "recover", "delete"])
def test_d1_to_d6_kill_after_every_write_torn_or_whole(driver: Driver, scenario: str) -> None:
    assert sweep(driver, scenario, TEAR, kinds=WRITES) > 10
    assert sweep(driver, scenario, KILL_AFTER, kinds=OTHERS) >= 3


def test_c1_kill_at_every_durable_call_of_saving_a_cursor(driver: Driver) -> None:
    assert sweep(driver, "cursor", KILL_BEFORE) > 15
    assert sweep(driver, "cursor", TEAR, kinds=WRITES, step=3) > 3


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_d1_to_d6_a_write_fails_whole_or_short(driver: Driver, error: int) -> None:
    """What fails is sent again: nothing acknowledged is lost, nothing is stored twice, the log goes on."""
    assert sweep(driver, "stubborn", FAIL_ONCE, kinds=WRITES, error=error) > 10
    assert sweep(driver, "stubborn", SHORT_THEN_FAIL, kinds=WRITES, error=error) > 10


def test_short_writes_are_continued(driver: Driver) -> None:
    assert sweep(driver, "stubborn", SHORT, kinds=WRITES) > 10


def test_d1_to_d6_a_sync_fails_and_is_not_retried(driver: Driver) -> None:
    assert sweep(driver, "stubborn", FAIL_ONCE, kinds=SYNCS, error=errno.EIO) > 10


def test_d1_to_d6_any_other_call_fails(driver: Driver) -> None:
    assert sweep(driver, "stubborn", FAIL_ONCE, kinds=OTHERS, error=errno.EIO) > 3


@pytest.mark.parametrize("scenario", ["append", "roll", "seal", "recover"])
def test_d1_to_d6_the_disk_fails_for_good(driver: Driver, scenario: str) -> None:
    sweep(driver, scenario, FAIL_FROM, step=5, error=errno.EIO)
    sweep(driver, scenario, FAIL_FROM, step=5, error=errno.ENOSPC, kinds=WRITES)


@pytest.mark.fuzz
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("action", [KILL_BEFORE, KILL_AFTER, TEAR, FAIL_ONCE, FAIL_FROM, SHORT, SHORT_THEN_FAIL])
@pytest.mark.parametrize("scenario", ["append", "roll", "seal", "recover", "delete", "relaxed", "stubborn"])
def test_every_action_at_every_call(driver: Driver, scenario: str, action: int) -> None:
    for error in (errno.EIO, errno.ENOSPC):
        sweep(driver, scenario, action, error=error)
