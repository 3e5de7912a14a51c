"""The groups of a segment on their way, as tables: which group takes an append, where each is, what a failure takes."""

from __future__ import annotations

import random

import pytest

from engine._native.serve.groups import Group
from engine.limits import LOG_FILE_MESSAGES_MAX, MIB
from engine.storage.commit.failures import Failure, worse
from engine.storage.commit.groups import GROUP_MAX, Groups
from engine.storage.file.logfile import SyncFailed
from tests.storage.commit_parts import plan

FILE_MAX = 64 * MIB


def groups_at(offset: int = 0, file_size_max: int = FILE_MAX) -> Groups:
    return Groups(plan(offset), offset, file_size_max)


def append(groups: Groups, size: int = 100, messages: int = 1) -> Group | None:
    """As the committer does it, without bytes."""
    group = groups.group_for(size, messages)
    if group is not None:
        group.size += size
        group.next_offset += messages
        groups.grown(group)
    return group


NEWEST_FIRST = "open", "queued", "ahead", "written", "covered", "handed"


def places(groups: Groups) -> dict[str, list[int]]:
    """The first offsets of the groups in each place that has some."""
    found = {
        "open": [groups.open] if groups.open else [],
        "queued": list(groups.queued),
        "ahead": [groups.ahead] if groups.ahead else [],
        "written": groups.written,
        "covered": groups.covered,
        "handed": groups.handed,
    }
    return {place: [g.first_offset for g in some] for place, some in found.items() if some}


def play(groups: Groups, script: str) -> None:
    """Do what each letter says."""
    for letter in script:
        match letter:
            case "a":  # an append that others join
                append(groups)
            case "A":  # one that fills its group
                append(groups, GROUP_MAX)
            case "P":
                groups.begin_primary(writes=True)
            case "S":
                groups.begin_primary(writes=False)
            case "p":
                groups.end_primary()
            case "b":  # the primary could not write its group, so what was before it is still to be synced
                groups.give_back(groups.end_primary()[:-1])
            case "H":
                groups.begin_ahead()
            case "h":
                groups.written.append(groups.end_ahead())
            case "w":
                groups.take_written()
            case "B":  # to a backing, what the primary job has written
                groups.handed += groups.end_primary()
            case "f":
                groups.go_on_in(plan(groups.next_offset))
            case _:
                raise AssertionError(letter)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("", {}),
        ("aaa", {"open": [0]}),
        ("Aa", {"queued": [0], "open": [1]}),
        ("AAa", {"queued": [0, 1], "open": [2]}),
        ("aP", {"covered": [0]}),
        ("aPaa", {"covered": [0], "open": [1]}),
        ("aPaap", {"open": [1]}),
        ("aPpaP", {"covered": [1]}),
        ("APAH", {"covered": [0], "ahead": [1]}),
        ("APAHAh", {"covered": [0], "written": [1], "open": [2]}),
        ("APAHAhH", {"covered": [0], "written": [1], "ahead": [2]}),
        ("APAHhAHhp", {"written": [1, 2]}),
        ("APAHhpS", {"covered": [1]}),
        ("APAHhpSAH", {"covered": [1], "ahead": [2]}),
        ("APAHhpaP", {"covered": [1, 2]}),  # a small group is written and synced together with what was before it
        ("APAHhpaPb", {"written": [1]}),
        ("APAHhpw", {}),
        ("AaPB", {"handed": [0], "open": [1]}),
        ("AaPBP", {"handed": [0], "covered": [1]}),
        ("AaPBPB", {"handed": [0, 1]}),
        ("af", {"queued": [0]}),
        ("afa", {"queued": [0], "open": [1]}),
    ],
)
def test_where_each_group_is(script: str, expected: dict[str, list[int]]) -> None:
    groups = groups_at()
    play(groups, script)
    assert places(groups) == expected
    newest = [expected[place][-1] for place in NEWEST_FIRST if place in expected]
    assert (groups.newest.first_offset if groups.newest else None) == (newest[0] if newest else None)


@pytest.mark.parametrize(
    ("script", "offset", "lost", "left"),
    [
        ("aaa", 0, [0], {}),
        ("AAa", 0, [0, 1, 2], {}),
        ("APAHhAa", 2, [2, 3], {"covered": [0], "written": [1]}),  # what is below the offset is still to be synced
        ("APAHhAa", 1, [1, 2, 3], {"covered": [0]}),
        ("afa", 1, [1], {}),
    ],
)
def test_a_failure_takes_all_from_its_offset_on(script: str, offset: int, lost: list[int], left: dict) -> None:
    groups = groups_at()
    play(groups, script)
    if script == "afa":
        groups.queued.pop(0)  # as if it had become durable
    assert [group.first_offset for group in groups.cut(offset, [])] == lost
    assert places(groups) == left
    assert groups.next_offset == offset, "the next append gets the offset of the first that failed"


def test_what_a_failed_job_held_is_lost_with_what_waits_and_each_once() -> None:
    groups = groups_at()
    play(groups, "APAHAa")
    failed, ahead = groups.end_primary(), groups.end_ahead()
    lost = groups.cut(0, [ahead, *failed, ahead])
    assert [group.first_offset for group in lost] == [0, 1, 2, 3]
    assert groups.newest is None


@pytest.mark.parametrize(
    ("size", "messages", "fits"),
    [
        (1000, 1, True),
        (FILE_MAX, 1, False),
        (FILE_MAX - 2000, 1, True),
        (1000, LOG_FILE_MESSAGES_MAX - 1, True),
        (1000, LOG_FILE_MESSAGES_MAX, False),
    ],
)
def test_an_append_that_would_overfill_the_file_needs_a_new_one(size: int, messages: int, fits: bool) -> None:
    groups = groups_at()
    append(groups, 1000)
    assert (groups.group_for(size, messages) is not None) == fits


def test_an_empty_file_takes_an_append_of_any_size() -> None:
    groups = groups_at(file_size_max=4096)
    large = append(groups, 10_000)
    assert large is not None
    assert large.position == large.file.opening.data_position
    assert append(groups) is None
    assert places(groups) == {"open": [0]}, "a refusal changes nothing"


def test_without_a_file_each_append_needs_one() -> None:
    groups = Groups(None, 5, FILE_MAX)
    assert groups.group_for(100, 1) is None
    groups.go_on_in(plan(5))
    group = append(groups)
    assert group is not None
    assert (group.first_offset, group.position) == (5, group.file.opening.data_position)


def test_groups_lie_back_to_back_in_their_file() -> None:
    groups = groups_at()
    first, second = append(groups, GROUP_MAX, 3), append(groups, 200, 2)
    assert first is not None
    assert second is not None
    assert (second.position, second.first_offset) == (first.end_position, 3)
    groups.cut(3, [])
    groups.go_on_in(second.file, second.position)
    again = append(groups, 50)
    assert again is not None
    assert (again.position, again.first_offset) == (second.position, 3), "cut off, and written over"


def test_no_group_is_lost_or_doubled_and_offsets_rise_along_the_way() -> None:
    """Any order of events that the committer may bring about; each group is in one place, and the newest is known."""
    for seed in range(50):
        rng, groups, sent, durable = random.Random(seed), groups_at(file_size_max=1 << 40), 0, 0
        for _ in range(200):
            waits = groups.head is not None
            moves = ["a", "A", "f"]
            moves += ["P"] if waits and not groups.covered and not groups.ahead else []
            moves += ["S"] if groups.written and not groups.covered else []
            moves += ["H"] if waits and groups.covered and not groups.ahead else []
            moves += ["p"] if groups.covered else []
            moves += ["h"] if groups.ahead else []
            move = rng.choice(moves)
            if move == "p":
                assert groups.covered[0].first_offset == durable
                durable = groups.covered[-1].next_offset
            sent += move in "aA"
            play(groups, move)
            found = places(groups)
            order = [o for place in ("covered", "written", "ahead", "queued", "open") for o in found.get(place, [])]
            assert order == sorted(set(order)), f"seed {seed}"
            assert (groups.newest.next_offset if groups.newest else durable) == groups.next_offset == sent
            assert groups.unsynced_bytes == sum(g.size for g in [*groups.written, *groups.covered])


A, B = (Group(plan(0), 0, offset) for offset in (3, 8))
WRITE_A, WRITE_B, SYNC = OSError("a"), OSError("b"), SyncFailed(OSError("s"))


@pytest.mark.parametrize(
    ("one", "other", "error", "group"),
    [
        (Failure(WRITE_A, A, [A]), Failure(WRITE_B, B, [B]), WRITE_A, A),
        (Failure(WRITE_B, B, [B]), Failure(WRITE_A, A, [A]), WRITE_A, A),
        (Failure(WRITE_A, A, [A]), Failure(SYNC, None, [B]), SYNC, None),
        (Failure(SYNC, None, [B]), Failure(WRITE_A, A, [A]), SYNC, None),
    ],
)
def test_of_two_failures_the_one_that_undoes_more_is_handled(
    one: Failure, other: Failure, error: BaseException, group: Group | None
) -> None:
    both = worse(one, other)
    assert (both.error, both.group) == (error, group)
    assert both.lost == [A, B], "what either loses is lost, in order"
