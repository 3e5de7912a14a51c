"""Planning a change, keeping it in the topic's record, committing it: after any sequence the ring is tiled (G1, G2)."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import engine.model.layout
from engine.errors import CorruptionError, InvalidArgumentError
from engine.limits import BUCKETS_PER_SEGMENT_MAX, HASH_RING_SIZE, SEGMENTS_PER_TOPIC_MAX
from engine.model.layout import PendingChange, SegmentLayout, check_size
from engine.model.reshape import (
    KINDS,
    Reshape,
    children_of,
    commit,
    merge_segments,
    plan_merge,
    plan_rebucket,
    plan_split,
    prune_segment,
    rebucket_segment,
    reserve,
    split_segment,
)
from engine.model.segment import SegmentState


def through_the_store(layout: SegmentLayout) -> SegmentLayout:
    """As the next leader finds it."""
    again = SegmentLayout.from_metadata(json.loads(json.dumps(layout.to_metadata())))
    assert again == layout == SegmentLayout.from_json(layout.to_json())
    return again


def a_plan(layout: SegmentLayout, draw: Any) -> Reshape:
    chosen = draw(st.integers(0, len(layout.active) - 1))
    segment = layout.active[chosen]
    kind = draw(st.sampled_from(sorted(KINDS)))
    if kind == "merge" and chosen + 1 < len(layout.active):
        pair = [segment.segment_id, layout.active[chosen + 1].segment_id]
        return plan_merge(layout, *draw(st.permutations(pair)))
    if kind == "rebucket" or segment.hash_range.width == 1:
        return plan_rebucket(layout, segment.segment_id, 1 + segment.bucket_count % BUCKETS_PER_SEGMENT_MAX)
    return plan_split(layout, segment.segment_id)


@st.composite
def pasts(draw: Any) -> list[SegmentLayout]:
    """Versions of one topic, oldest first: changes that were committed, undone, and prunes, each read back."""
    versions = [SegmentLayout.create(draw(st.integers(1, 5)), now_ms=1_000, buckets_total=draw(st.integers(1, 64)))]
    for step in range(draw(st.integers(1, 8))):
        layout = versions[-1]
        roots = [i for i, s in layout.segments.items() if not s.active and not s.parent_ids]
        if roots and draw(st.booleans()):
            versions.append(through_the_store(prune_segment(layout, draw(st.sampled_from(roots)))))
            continue
        begun = through_the_store(reserve(layout, a_plan(layout, draw), "children"))
        assert begun.change is not None
        if draw(st.booleans()):
            committed = commit(begun, Reshape.of(begun.change), 1_000 + step)
            versions.append(through_the_store(committed))
        else:
            versions.append(through_the_store(replace(begun, change=None)))
    return versions


@given(pasts())
def test_g1_active_ranges_tile_the_ring_after_any_sequence(versions: list[SegmentLayout]) -> None:
    for layout in versions:
        ranges = [s.hash_range for s in layout.active]
        assert ranges[0].start == 0
        assert ranges[-1].end == HASH_RING_SIZE - 1
        assert all(a.end + 1 == b.start for a, b in itertools.pairwise(ranges))
        assert all(layout.find_active_segment(r.start).hash_range == r for r in ranges)


@given(pasts())
def test_g2_versions_grow_by_one_and_segments_only_go_from_active_to_sealed_to_gone(
    versions: list[SegmentLayout],
) -> None:
    gone: set[int] = set()
    for before, after in itertools.pairwise(versions):
        undone = before.segments == after.segments
        assert after.epoch == before.epoch + (not undone)
        gone |= before.segments.keys() - after.segments.keys()
        assert not gone & after.segments.keys()
        for segment_id, segment in before.segments.items():
            now = after.segments.get(segment_id)
            if now is None or not segment.active:
                assert segment.state is SegmentState.SEALED
                assert now is None or now.state is SegmentState.SEALED
            if now is not None:
                assert (now.hash_range, now.bucket_ends) == (segment.hash_range, segment.bucket_ends)


@given(pasts())
def test_semantics_3_ids_are_never_used_again_not_even_those_of_changes_that_were_undone(
    versions: list[SegmentLayout],
) -> None:
    for before, after in itertools.pairwise(versions):
        assert all(i >= before.next_segment_id for i in after.segments.keys() - before.segments.keys())
        assert after.next_segment_id >= before.next_segment_id
        assert after.next_segment_id > max(after.segments)


@given(pasts())
def test_children_cover_what_their_parents_covered(versions: list[SegmentLayout]) -> None:
    layout = versions[-1]
    for segment in layout.segments.values():
        for child in layout.children(segment.segment_id):
            assert segment in layout.parents(child.segment_id)
            assert child.hash_range.start <= segment.hash_range.end
            assert segment.hash_range.start <= child.hash_range.end
            assert child.created_at_ms == segment.sealed_at_ms
            assert child.created_at_epoch == segment.sealed_at_epoch


@given(pasts())
def test_semantics_6_merge_depth_is_that_of_the_deepest_path(versions: list[SegmentLayout]) -> None:
    layout = versions[-1]

    def depth(segment_id: int) -> int:
        parents = layout.segment(segment_id).parent_ids
        return max(map(depth, parents), default=0) + (len(parents) > 1)

    assert all(layout.merge_depth(i) == depth(i) for i in layout.segments)


@given(st.data())
def test_a_plan_changes_nothing_and_its_commit_is_what_it_said(data: st.DataObject) -> None:
    layout = SegmentLayout.create(3, now_ms=5, buckets_total=8, properties={"a": "b"})
    plan = a_plan(layout, data.draw)
    begun = reserve(layout, plan, "children")
    assert begun.change is not None
    assert (begun.epoch, begun.segments, begun.active) == (layout.epoch, layout.segments, layout.active)
    assert Reshape.of(begun.change) == plan
    assert children_of(begun.change) == plan.children
    after = commit(begun, plan, 77)
    assert after.change is None
    assert [s.segment_id for s in after.active if s.parent_ids] == [c.segment_id for c in plan.children]
    assert [after.segment(i).sealed_at_ms for i in plan.parent_ids] == [77] * len(plan.parent_ids)
    assert after.properties == {"a": "b"}


def test_a_clock_that_went_back_seals_nobody_before_his_birth() -> None:
    layout = split_segment(SegmentLayout.create(1, now_ms=1_000), 0, 10)
    assert layout.segment(0).sealed_at_ms == layout.segment(1).created_at_ms == 1_000


def test_the_same_wish_is_recognised_whatever_the_ids() -> None:
    layout = SegmentLayout.create(2, now_ms=0, buckets_total=8)
    plan = plan_split(layout, 0)
    later = reserve(layout, plan, "children")
    assert plan_split(later, 0).children != plan.children
    assert plan_split(later, 0).same_as(plan)
    assert not plan_split(later, 1).same_as(plan)
    assert not plan_rebucket(later, 0, 2).same_as(plan_rebucket(layout, 0, 3))
    assert plan_merge(later, 0, 1).same_as(plan_merge(layout, 1, 0))


def test_semantics_5_identical_segments_and_wrong_types_are_refused() -> None:
    layout = SegmentLayout.create(2, now_ms=0)
    text: Any = "0"
    with pytest.raises(InvalidArgumentError, match="must be two neighbours"):
        plan_merge(layout, 1, 1)
    for wrong in (text, True, None, [0]):
        with pytest.raises(InvalidArgumentError, match="must be an integer"):
            plan_split(layout, wrong)
    with pytest.raises(InvalidArgumentError, match=r"buckets must be .*, got '4'"):
        plan_rebucket(layout, 0, "4")  # type: ignore[arg-type]


def test_limits_of_a_topic_are_told_before_anything_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = SegmentLayout.create(SEGMENTS_PER_TOPIC_MAX, now_ms=0)
    with pytest.raises(InvalidArgumentError, match="at most 1024 active segments, got 1025"):
        plan_split(layout, 7)
    plan_merge(layout, 7, 8)
    with pytest.raises(InvalidArgumentError, match="fewer entry buckets"):
        SegmentLayout.create(SEGMENTS_PER_TOPIC_MAX, now_ms=0, buckets_total=SEGMENTS_PER_TOPIC_MAX * 500)
    layout = rebucket_segment(SegmentLayout.create(1, now_ms=0, buckets_total=100), 0, 99, 1)
    monkeypatch.setattr(engine.model.layout, "LAYOUT_SIZE_MAX", 2_000)
    check_size(layout)
    with pytest.raises(InvalidArgumentError, match="1 active and 2 sealed segments with"):
        plan_rebucket(layout, 1, 100)


def test_a_pending_change_that_does_not_fit_its_layout_is_damage() -> None:
    layout = SegmentLayout.create(2, now_ms=0)
    plan = plan_split(layout, 0)
    for other in (split_segment(layout, 0, 1), merge_segments(layout, 0, 1, 1)):
        with pytest.raises(CorruptionError, match="does not fit"):
            commit(other, plan, 2)


@pytest.mark.parametrize(
    "details",
    [
        {},
        {"parents": [0]},
        {"parents": "0", "children": []},
        {"parents": [0], "children": [1]},
        {"parents": [0], "children": [{}]},
    ],
)
def test_malformed_details_are_damage(details: dict[str, Any]) -> None:
    with pytest.raises(CorruptionError, match="pending split"):
        Reshape.of(PendingChange("split", "children", details))


def test_records_of_changes_without_details_are_read() -> None:
    metadata = SegmentLayout.create(1, now_ms=0).to_metadata() | {"change": {"kind": "delete", "phase": "records"}}
    layout = SegmentLayout.from_metadata(metadata)
    assert layout.change == PendingChange("delete", "records")
    assert layout.deleting
    assert layout.to_metadata() == metadata
    assert SegmentLayout.change_in(layout.to_json()) == layout.change
    assert SegmentLayout.change_in(SegmentLayout.create(1, now_ms=0).to_json()) is None


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_topic_that_changes_its_shape_is_alive(kind: str) -> None:
    layout = SegmentLayout.create(2, now_ms=0)
    plan = {"split": plan_split(layout, 0), "merge": plan_merge(layout, 0, 1), "rebucket": plan_rebucket(layout, 0, 9)}
    assert not reserve(layout, plan[kind], "terminate").deleting


def test_what_was_done_before_is_refused_by_saying_what_has_come_of_it() -> None:
    layout = split_segment(SegmentLayout.create(1, now_ms=0), 0, 1)
    with pytest.raises(InvalidArgumentError, match=r"sealed since epoch 1, split into 1 and 2$"):
        plan_split(layout, 0)
    layout = rebucket_segment(merge_segments(layout, 1, 2, 2), 3, 7, 3)
    with pytest.raises(InvalidArgumentError, match=r"sealed since epoch 1, split into 1 and 2; active now: 4$"):
        plan_split(layout, 0)
    with pytest.raises(InvalidArgumentError, match=r"sealed since epoch 2, merged into 3; active now: 4$"):
        plan_merge(layout, 1, 2)
    with pytest.raises(InvalidArgumentError, match=r"sealed since epoch 3, rebucketed as 4$"):
        plan_rebucket(layout, 3, 7)
    with pytest.raises(InvalidArgumentError, match=r"is not in the layout; active: 4$"):
        plan_split(layout, 9)
    pruned = prune_segment(prune_segment(layout, 0), 1)
    with pytest.raises(InvalidArgumentError, match="merged into 3"):
        plan_split(pruned, 2)
    with pytest.raises(InvalidArgumentError, match=r"active: 0, 1, .* 14 and 85 more$"):
        plan_split(SegmentLayout.create(100, now_ms=0), 200)
