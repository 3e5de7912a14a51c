"""What `engine cluster check` makes of what it has found: what is well, what is to be looked at, what has failed."""

from __future__ import annotations

from typing import Any

import pytest

from engine.broker.upkeep.cluster_check import FAILED, OK, WARNING, _agreement, _history, _of_member
from engine.metadata.etcd.inspection import Contents, Member

QUOTA = 1_000_000_000


def states(**facts: Any) -> dict[str, tuple[str, str]]:
    """Of a sound member with these facts, by the last word of what was looked at."""
    member = Member("a:2379", version="3.6.0", **{"quota_bytes": QUOTA, **facts})
    return {one.what.removeprefix("etcd a:2379").strip(): (one.state, one.text) for one in _of_member(member)}


def test_a_member_with_an_alarm_or_that_does_not_answer_has_failed() -> None:
    assert states()[""] == (OK, "3.6.0, member")
    assert states(leads=True, alarms=("NOSPACE",))[""] == (FAILED, "3.6.0, leader, NOSPACE")
    assert states(fault="it does not answer") == {"": (FAILED, "it does not answer")}


@pytest.mark.parametrize(
    ("used", "quota", "state", "text"),
    [
        (800_000_000, QUOTA, OK, "800.0 MB, 80% of its quota of 1000 MB"),
        (810_000_000, QUOTA, WARNING, "810.0 MB, 81% of its quota of 1000 MB"),
        (1_000, None, WARNING, "0.0 MB; it does not tell its quota (/metrics)"),
    ],
)
def test_space_is_told_against_the_quota(used: int, quota: int | None, state: str, text: str) -> None:
    assert states(database_bytes=used, quota_bytes=quota)["space"] == (state, text)


@pytest.mark.parametrize(("ahead", "state"), [(0.4, OK), (-1.9, OK), (2.5, WARNING), (-2.5, WARNING)])
def test_a_clock_may_be_off_by_what_is_not_known_of_it(ahead: float, state: str) -> None:
    assert states(ahead_s=ahead)["clock"] == (state, f"{ahead:+.1f} s, to a second")
    assert "clock" not in states(ahead_s=None)


def test_members_that_differ_have_failed_and_those_that_cannot_be_compared_are_to_be_looked_at() -> None:
    assert _agreement(Contents(7)).state == OK
    differing = _agreement(Contents(7, differing="a:1 has 0000000a, b:1 has 0000000b"))
    assert differing.state == FAILED
    assert "at revision 7: a:1 has 0000000a, b:1 has 0000000b; replace" in differing.text
    unknown = _agreement(Contents(0, unknown="permission denied"))
    assert (unknown.state, unknown.text) == (WARNING, "they could not be compared: permission denied")


class Store:
    """A store whose history is as old as that."""

    def __init__(self, age: float | None) -> None:
        self._age = age

    async def history_s(self, compacted: int) -> float | None:
        return self._age


@pytest.mark.parametrize(
    ("compacted", "age", "state", "text"),
    [
        (7, 600.0, OK, "the oldest revision is 7, about 600 s old"),
        (7, 3_700.0, WARNING, "the oldest revision is 7, about 3700 s old"),
        (7, None, OK, "the oldest revision is 7; no broker had written by then"),
        (0, None, OK, "was never compacted"),
        (None, None, WARNING, "no member tells up to where it is compacted (/metrics)"),
    ],
)
async def test_the_age_of_the_oldest_revision_is_told(
    compacted: int | None, age: float | None, state: str, text: str
) -> None:
    store: Any = Store(age)
    found = await _history(store, compacted)
    assert (found.what, found.state, found.text) == ("etcd history", state, text)
