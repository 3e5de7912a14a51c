"""The layout as a tree: who stands under whom, each segment in full once, columns under each other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cli.dag import backlog_text, only_active, print_layout, segment_backlogs, walk
from engine.cli.topics import change_text

WHOLE = (0, 0xFFFF)


def layout(*segments: tuple[int, tuple[int, int], Sequence[int]]) -> dict[str, Any]:
    """Metadata of (id, range, parents); children and states follow."""
    children: dict[int, list[int]] = {i: [] for i, _, _ in segments}
    for i, _, parents in segments:
        for parent in parents:
            children.setdefault(parent, []).append(i)
    found = {
        str(i): {
            "segmentId": i,
            "hashRange": {"start": span[0], "end": span[1]},
            "state": "SEALED" if children[i] else "ACTIVE",
            "parentIds": [p for p in parents if any(p == other for other, _, _ in segments)],
            "childIds": children[i],
            "bucketBoundaries": [0xFFFF],
        }
        for i, span, parents in segments
    }
    return {"segments": found}


SPLIT_AND_MERGED = layout(
    (0, WHOLE, []), (1, (0, 0x7FFF), [0]), (2, (0x8000, 0xFFFF), [0]), (3, WHOLE, [1, 2]), (4, WHOLE, [3])
)


def drawn(capfd: pytest.CaptureFixture[str], metadata: dict[str, Any], stats: dict[str, Any] | None = None) -> str:
    print_layout("a topic", metadata, stats)
    return capfd.readouterr().out


def test_a_tree_of_one(capfd: pytest.CaptureFixture[str]):
    assert drawn(capfd, layout((0, WHOLE, []))).splitlines() == ["a topic", "└── 0  0000-ffff  ACTIVE  1 bucket"]


def test_a_merged_segment_stands_under_one_parent_and_is_named_under_the_other(capfd: pytest.CaptureFixture[str]):
    assert drawn(capfd, SPLIT_AND_MERGED).splitlines() == [
        "a topic",
        "└── 0  0000-ffff              SEALED  1 bucket",
        "    ├── 1  0000-7fff          SEALED  1 bucket",
        "    │   └── 3  0000-ffff      SEALED  1 bucket  merged, also from 2",
        "    │       └── 4  0000-ffff  ACTIVE  1 bucket",
        "    └── 2  8000-ffff          SEALED  1 bucket",
        "        └── 3  (merged: see above)",
    ]


def test_a_deep_tree_has_one_line_for_each(capfd: pytest.CaptureFixture[str]):
    chain = layout((0, WHOLE, []), *((i, WHOLE, [i - 1]) for i in range(1, 300)))
    lines = drawn(capfd, chain).splitlines()
    assert [re.findall(r"\d+", line)[0] for line in lines[1:-1]] == [str(i) for i in range(300)]
    assert len({line.index("1 bucket") for line in lines[1:-1]}) == 1
    assert max(map(len, lines)) < 80
    assert lines[-1] == "(the 292 oldest segments are not indented; --active shows only what is active)"


def test_old_generations_are_not_indented_and_say_what_they_come_from(capfd: pytest.CaptureFixture[str]):
    halves = [(0, 0x7FFF), (0x8000, 0xFFFF)]
    rounds = [(0, WHOLE, [])]
    for n in range(60):
        first = 3 * n + 1
        rounds += [(first, halves[0], [first - 1]), (first + 1, halves[1], [first - 1])]
        rounds.append((first + 2, WHOLE, [first, first + 1]))
    lines = drawn(capfd, layout(*rounds)).splitlines()
    assert max(map(len, lines)) < 100
    assert [line.split()[1] for line in lines[1:5]] == ["0", "1", "2", "3"]
    assert lines[4].endswith("SEALED  1 bucket  from 1, 2")
    drawn_in_full = [line for line in lines[1:-1] if "see above" not in line]
    assert len(drawn_in_full) == len(rounds)


def test_only_what_is_active(capfd: pytest.CaptureFixture[str]):
    split = layout((0, WHOLE, []), (2, (0x8000, 0xFFFF), [0]), (1, (0, 0x7FFF), [0]))
    assert drawn(capfd, only_active(split)).splitlines() == [
        "a topic",
        "├── 1  0000-7fff  ACTIVE  1 bucket",
        "└── 2  8000-ffff  ACTIVE  1 bucket",
    ]


def test_what_is_in_the_segments(capfd: pytest.CaptureFixture[str]):
    stats = {
        "segments": {"0": {"firstOffset": 10, "nextOffset": 1510}, "1": {"firstOffset": 0, "nextOffset": 7}},
        "subscriptions": {"billing": {"segmentBacklog": {"0": 0, "1": 3}}, "audit": {"segmentBacklog": {"1": 1200}}},
    }
    lines = drawn(capfd, layout((0, WHOLE, []), (1, WHOLE, [0])), stats).splitlines()
    assert lines[1].endswith("SEALED  1 bucket  1,500 messages")
    assert lines[2].endswith("ACTIVE  1 bucket      7 messages  backlog audit 1,200, billing 3")
    stats["segments"]["1"]["nextOffset"] = 1
    assert "  1 message  backlog" in drawn(capfd, layout((0, WHOLE, []), (1, WHOLE, [0])), stats)
    assert lines[1].index("SEALED") == lines[2].index("ACTIVE")


def test_where_retention_took_the_oldest_their_children_are_roots(capfd: pytest.CaptureFixture[str]):
    lines = drawn(capfd, layout((2, (0x8000, 0xFFFF), [0]), (1, (0, 0x7FFF), [0]))).splitlines()
    assert [re.findall(r"\d+  ", line)[0].strip() for line in lines[1:]] == ["1", "2"]


def test_backlogs_that_do_not_fit_are_counted():
    assert backlog_text({}) == ""
    assert backlog_text({"a": 1, "b": 5, "c": 3, "d": 4, "e": 2}) == "backlog b 5, d 4, c 3, 2 more"
    assert segment_backlogs({"subscriptions": {"s": {"segmentBacklog": {"0": 0}}}}) == {}


@given(st.lists(st.integers(0, 10), max_size=30))
def test_every_segment_is_drawn_in_full_once_under_a_parent_of_it(steps: list[int]):
    segments: dict[int, dict[str, Any]] = {}

    def add(parents: list[int], start: int) -> None:
        i = len(segments)
        segments[i] = {"parentIds": parents, "childIds": [], "hashRange": {"start": start, "end": start}}
        for parent in parents:
            segments[parent]["childIds"].append(i)

    add([], 0)
    for step in steps:
        free = [i for i, s in segments.items() if not s["childIds"]]
        if step % 2 and len(free) > 1:
            add(free[step % (len(free) - 1) :][:2], step)
        else:
            parent = free[step % len(free)]
            add([parent], step)
            add([parent], step + 1)
    lines = list(walk(segments))
    assert sorted(i for i, _, again, _ in lines if not again) == sorted(segments)
    path: list[int] = []
    for i, depth, _, _ in lines:
        del path[depth - 1 :]
        assert not path or path[-1] in segments[i]["parentIds"]
        path.append(i)
    assert sum(1 for _ in lines) == sum(max(1, len(s["parentIds"])) for s in segments.values())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": "delete", "phase": "records"}, "delete, phase 'records'"),
        ({"kind": "split", "phase": "children", "details": {"parents": [2]}}, "split of 2, phase 'children'"),
        ({"kind": "merge", "phase": "undo", "details": {"parents": [1, 2]}}, "merge of 1 and 2, phase 'undo'"),
    ],
)
def test_a_change_that_is_under_way(change: dict[str, Any], text: str):
    assert change_text(change) == text
