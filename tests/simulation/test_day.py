"""A day of traffic through the real control plane: segments follow load, nothing flips, the DAG stays small."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

import pytest

from engine.model.autoscale import AutoScalePolicy
from engine.model.layout import SegmentLayout
from engine.model.reshape import merge_segments, rebucket_segment, split_segment
from engine.testing import day as days
from engine.testing.day import DAY_S, HOUR_S, Day, changes, flips, simulate

UNTIL_MORNING = 1.25  # a day, and the idle night that follows it
SEEDS = [0, 1]
HASTY = {"split_cooldown": 0.0, "merge_cooldown": 0.0, "merge_window": 0.0}
CLOSE = {"split_msg_rate_in_threshold": 2_000.0, "merge_msg_rate_in_threshold": 1_999.0}


@cache
def lived(seed: int) -> Day:
    return simulate(UNTIL_MORNING, seed)


def hot(at_s: float) -> bool:
    """Whether one key alone is more than a segment's threshold: no split can help."""
    start, minutes, _ = days._HOT_KEY
    return start <= at_s % DAY_S / HOUR_S < start + minutes / 60 + 0.05


@pytest.mark.parametrize("seed", SEEDS)
def test_segments_follow_load(seed: int) -> None:
    """A segment is above its threshold for some minutes at most, one for each split that a burst calls for."""
    day, above = lived(seed), 0
    for minute in day.minutes:
        over = minute.worst > day.policy.split_msg_rate_in_threshold and not hot(minute.at_s)
        above = above + 1 if over else 0
        assert above <= 12, f"{minute.at_s / HOUR_S:.2f} h: {minute.worst:.0f}/s in one segment for {above} min"
    most = max(minute.segments for minute in day.minutes)
    assert 8 <= most <= 32
    assert min(minute.segments for minute in day.minutes) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_flips(seed: int) -> None:
    """What was split is not merged, and what was merged is not split, within half an hour."""
    assert flips(lived(seed), 1_800.0) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_changes_are_few_and_one_at_a_time(seed: int) -> None:
    day = lived(seed)
    seen = list(changes(day))
    assert day.failures == 0
    assert day.splits + day.merges <= 70
    assert [kind for _, kind, _, _ in seen].count("split") == day.splits
    splits = [at_s for at_s, kind, _, _ in seen if kind == "split"]
    merges = [at_s for at_s, kind, _, _ in seen if kind == "merge"]
    assert min(b - a for a, b in itertools.pairwise(splits)) >= 50  # seen to within 10 s
    assert min(b - a for a, b in itertools.pairwise(merges)) >= 290
    assert day.reports <= 1_500  # of some 80,000 looks at a segment


@pytest.mark.parametrize("seed", SEEDS)
def test_the_dag_is_bounded_and_pruned_in_the_end(seed: int) -> None:
    day = lived(seed)
    assert max(minute.known for minute in day.minutes) <= 64
    assert max(minute.depth for minute in day.minutes) <= day.policy.max_dag_depth
    last = day.minutes[-1]
    assert (last.segments, last.known, last.buckets) == (1, 1, 8)


def test_a_hot_key_ends_in_a_segment_of_its_own_and_not_in_a_storm() -> None:
    day = lived(0)
    start, minutes, _ = days._HOT_KEY
    during = [kind for at_s, kind, _, _ in changes(day) if start <= at_s / HOUR_S < start + minutes / 60]
    assert 1 <= during.count("split") <= 16  # the ring has 16 bits
    assert max(minute.segments for minute in day.minutes) < day.policy.max_segments


def test_the_same_seed_gives_the_same_day() -> None:
    first, second = simulate(0.5, 1), simulate(0.5, 1)
    assert first.layouts == second.layouts
    assert first.minutes == second.minutes
    assert first.minutes != lived(0).minutes[: len(first.minutes)]


@pytest.mark.parametrize("hasty", [HASTY, HASTY | CLOSE])
def test_not_even_without_cooldowns_there_is_a_storm(hasty: dict[str, float]) -> None:
    """The other guards alone: load that must have settled, what a merge would make, the most segments."""
    day = simulate(UNTIL_MORNING, 0, AutoScalePolicy(**hasty))  # type: ignore[arg-type]
    assert flips(day, 600.0) == []
    assert day.splits + day.merges <= 400
    assert max(minute.segments for minute in day.minutes) <= day.policy.max_segments
    assert day.minutes[-1].segments == 1


def test_flips_are_seen() -> None:
    """The detector itself: of a split and a merge one after the other, and of what only looks like it."""

    def seen(*layouts: SegmentLayout) -> list[int]:
        return flips(Day(layouts=[(float(i), layout) for i, layout in enumerate(layouts)]), 60.0)

    one = SegmentLayout.create(now_ms=0)
    two = split_segment(one, 0, 1_000)
    assert seen(one, two, merge_segments(two, 1, 2, 2_000)) == [3]
    assert seen(one, two, merge_segments(two, 1, 2, 70_000)) == []
    assert seen(one, two, split_segment(two, 1, 2_000)) == []
    assert seen(one, two, rebucket_segment(two, 1, 9, 2_000)) == []
    pair = SegmentLayout.create(2, now_ms=0)
    merged = merge_segments(pair, 0, 1, 1_000)
    assert seen(pair, merged, split_segment(merged, 2, 2_000)) == [3, 4]


def test_the_command_says_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    days.main(["--days", "0.1"])
    assert "in the DAG" in capsys.readouterr().out


def test_a_day_can_be_drawn(tmp_path: Path) -> None:
    day = simulate(0.05)
    for name in ("one.svg", "two.svg"):
        days.plot(day, tmp_path / "images" / name)
    one, two = ((tmp_path / "images" / name).read_text() for name in ("one.svg", "two.svg"))
    assert "active segments" in one
    assert one == two  # drawn anew, it does not change
