"""A layout that is made from what files say of segments is the one that was lost, or one that lacks nothing of it."""

from __future__ import annotations

import random

import pytest

from engine.errors import CorruptionError
from engine.model.hashrange import HashRange
from engine.model.layout import SegmentLayout
from engine.model.rebuild import FoundSegment, rebuild
from engine.model.reshape import merge_segments, prune_segment, rebucket_segment, split_segment


def grown(rng: random.Random, steps: int, start: int) -> SegmentLayout:
    """A topic with a history."""
    layout = SegmentLayout.create(start, now_ms=1_000, buckets_total=4 * start)
    for step in range(steps):
        now_ms = 2_000 + step
        active = layout.active
        kind = rng.choice(["split", "merge", "rebucket", "prune"])
        if kind == "merge" and len(active) > 1:
            at = rng.randrange(len(active) - 1)
            layout = merge_segments(layout, active[at].segment_id, active[at + 1].segment_id, now_ms)
        elif kind == "prune":
            roots = [s.segment_id for s in layout.segments.values() if not s.active and not s.parent_ids]
            layout = prune_segment(layout, roots[0]) if roots else layout
        elif kind == "rebucket":
            chosen = rng.choice(active)
            layout = rebucket_segment(layout, chosen.segment_id, chosen.bucket_count % 7 + 1, now_ms)
        else:
            layout = split_segment(layout, rng.choice(active).segment_id, now_ms)
    return layout


def found_of(layout: SegmentLayout, empty: frozenset[int] = frozenset()) -> list[FoundSegment]:
    return [
        FoundSegment(s.segment_id, s.hash_range, not s.active, s.segment_id not in empty, s.created_at_ms, "os")
        for s in layout.segments.values()
    ]


def shape(layout: SegmentLayout) -> dict[int, tuple[object, ...]]:
    return {i: (s.hash_range, s.state, s.parent_ids, s.child_ids) for i, s in layout.segments.items()}


@pytest.mark.parametrize("seed", range(200))
def test_what_is_found_whole_is_what_was_lost(seed: int) -> None:
    rng = random.Random(seed)
    layout = grown(rng, rng.randrange(12), rng.choice([1, 2, 3, 4]))
    found = found_of(layout)
    rng.shuffle(found)
    made = rebuild(found, known=None, now_ms=9_000)
    assert shape(made) == shape(layout)
    assert made.durability == "os"
    assert made.epoch > layout.epoch
    assert made.next_segment_id > max(layout.segments)
    assert SegmentLayout.from_json(made.to_json()) == made
    for info in made.segments.values():
        assert all(made.segments[p].sealed_at_epoch <= info.created_at_epoch for p in info.parent_ids)
        assert info.active or info.sealed_at_ms >= info.created_at_ms


@pytest.mark.parametrize("seed", range(200))
def test_what_is_found_in_part_has_all_its_messages_and_a_whole_ring(seed: int) -> None:
    """Active segments that never got a message have no files, and retention has taken some away."""
    rng = random.Random(seed)
    layout = grown(rng, rng.randrange(12), rng.choice([1, 2, 4]))
    found = [f for f in found_of(layout) if rng.random() < 0.7]
    made = rebuild(found, known=None, now_ms=9_000)
    assert {f.segment_id for f in found} <= made.segments.keys()
    for f in found:
        assert made.segments[f.segment_id].active is not f.sealed
    for i in made.segments.keys() - {f.segment_id for f in found}:
        assert made.segments[i].active
        assert i > max((f.segment_id for f in found), default=-1)
    SegmentLayout.from_json(made.to_json())


def test_children_of_a_change_that_was_not_finished_are_left_out() -> None:
    whole, lower, upper = HashRange(0, 0xFFFF), HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)
    root = FoundSegment(0, whole, False, True, 1)
    made = rebuild([root, FoundSegment(1, lower, False, False, 2), FoundSegment(2, upper, False, False, 2)],
                   known=None, now_ms=3)  # fmt: skip
    assert list(made.segments) == [0]
    assert made.next_segment_id == 3  # no id is used twice


def test_a_leftover_that_is_older_than_what_has_messages_is_left_out() -> None:
    lower, upper = HashRange(0, 0x7FFF), HashRange(0x8000, 0xFFFF)
    found = [
        FoundSegment(0, HashRange(0, 0xFFFF), True, True, 1),
        FoundSegment(1, lower, False, False, 2),
        FoundSegment(2, upper, False, False, 2),
        FoundSegment(3, lower, False, True, 3),
        FoundSegment(4, upper, False, True, 3),
    ]
    assert list(rebuild(found, known=None, now_ms=4).segments) == [0, 3, 4]


def test_a_sealed_end_gets_an_heir() -> None:
    made = rebuild([FoundSegment(7, HashRange(0, 0xFFFF), True, True, 1)], known=None, now_ms=3)
    assert shape(made)[7][3] == (8,)
    assert shape(made)[8][2] == (7,)


def test_two_that_cannot_both_be_active_are_named() -> None:
    whole = HashRange(0, 0xFFFF)
    with pytest.raises(CorruptionError, match="segments 0 and 3 overlap"):
        rebuild([FoundSegment(0, whole, False, True, 1), FoundSegment(3, whole, False, True, 2)], known=None, now_ms=3)


def test_an_older_record_goes_on_saying_what_files_do_not() -> None:
    old = SegmentLayout.create(1, now_ms=1, buckets_total=3, key_hash="murmur3", durability="interval",
                               properties={"a": "b"})  # fmt: skip
    new = split_segment(old, 0, 2)
    made = rebuild(found_of(new), known=old, now_ms=3)
    assert shape(made) == shape(new)
    assert (made.key_hash, made.durability, made.properties) == ("murmur3", "interval", {"a": "b"})
    assert made.segments[0].bucket_ends == old.segments[0].bucket_ends
    assert made.segments[1].bucket_count == 1
    assert made.epoch > new.epoch
