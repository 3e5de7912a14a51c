"""The assignment policy, as tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.control.policy.assignment import assign, open_segments
from engine.model.layout import SegmentLayout
from engine.model.reshape import merge_segments, prune_segment, rebucket_segment, split_segment
from engine.model.subscriptions import SubscriptionKind

STREAM, CHECKPOINT = SubscriptionKind.STREAM, SubscriptionKind.CHECKPOINT
FLAT4 = SegmentLayout.create(4, now_ms=0)
# 0 -> (1, 2); 1 -> (3, 4)
DEEP = split_segment(split_segment(SegmentLayout.create(1, now_ms=0), 0, 1), 1, 2)
# 0, 1 -> 2
MERGED = merge_segments(SegmentLayout.create(2, now_ms=0), 0, 1, 1)
# 0 -> (1, 2) -> 3
DIAMOND = merge_segments(split_segment(SegmentLayout.create(1, now_ms=0), 0, 1), 1, 2, 2)


@pytest.mark.parametrize(
    ("consumers", "shares"),
    [
        ([], {}),
        (["a"], {"a": (0, 1, 2, 3)}),
        (["b", "a"], {"a": (0, 2), "b": (1, 3)}),
        (["c", "a", "b"], {"a": (0, 3), "b": (1,), "c": (2,)}),
        (list("edcba"), {"a": (0,), "b": (1,), "c": (2,), "d": (3,), "e": ()}),
    ],
)
def test_round_robin_by_range_and_name(consumers: list[str], shares: dict[str, tuple[int, ...]]) -> None:
    assert assign(FLAT4, STREAM, set(), consumers) == shares


def test_segments_are_dealt_by_range_start_not_by_id() -> None:
    layout = split_segment(FLAT4, 0, 1)  # by range: 4, 5, 1, 2, 3
    assert assign(layout, STREAM, {0}, ["a", "b"]) == {"a": (4, 1, 3), "b": (5, 2)}


@pytest.mark.parametrize(
    ("layout", "drained", "readable"),
    [
        (FLAT4, set(), [0, 1, 2, 3]),
        # SEMANTICS 8: children wait, over a generation that is drained itself.
        (DEEP, set(), [0]),
        (DEEP, {1}, [0]),
        (DEEP, {0}, [1, 2]),
        # SEMANTICS 9: a drained parent is out.
        (DEEP, {0, 1}, [3, 4, 2]),
        # SEMANTICS 8: a merged child waits for all its parents.
        (MERGED, set(), [0, 1]),
        (MERGED, {0}, [1]),
        (MERGED, {1}, [0]),
        (MERGED, {0, 1}, [2]),
        (DIAMOND, {0, 1}, [2]),
        (DIAMOND, {1, 2}, [0]),
        (DIAMOND, {0, 1, 2}, [3]),
    ],
)
def test_semantics_8_and_9_gating(layout: SegmentLayout, drained: set[int], readable: list[int]) -> None:
    assert [s.segment_id for s in open_segments(layout, drained)] == readable
    assert assign(layout, STREAM, drained, ["only"]) == {"only": tuple(readable)}


def test_semantics_10_checkpoint_groups_are_not_gated() -> None:
    assert assign(DEEP, CHECKPOINT, set(), ["only"]) == {"only": (0, 1, 3, 4, 2)}
    assert assign(MERGED, CHECKPOINT, set(), ["a", "b"]) == {"a": (0, 2, 1), "b": ()}
    assert assign(DEEP, CHECKPOINT, set(), []) == {}


NAMES = st.lists(st.text(min_size=1, max_size=5), unique=True, max_size=12)


@given(
    st.sampled_from([FLAT4, DEEP, MERGED, DIAMOND]),
    st.sets(st.integers(0, 4)),
    NAMES,
    st.sampled_from([STREAM, CHECKPOINT]),
)
def test_semantics_15_every_open_segment_has_one_owner_and_order_does_not_matter(
    layout: SegmentLayout, drained: set[int], names: list[str], kind: SubscriptionKind
) -> None:
    drained = {i for i in drained if i in layout.segments and not layout.segments[i].active}
    shares = assign(layout, kind, drained, names)
    assert shares == assign(layout, kind, drained, list(reversed(names)))
    assert shares.keys() == set(names)
    dealt = sorted(i for share in shares.values() for i in share)
    due = layout.segments if kind is CHECKPOINT else [s.segment_id for s in open_segments(layout, drained)]
    assert dealt == (sorted(due) if names else [])
    sizes = [len(share) for share in shares.values()]
    if kind is STREAM and sizes:
        assert max(sizes) - min(sizes) <= 1


@st.composite
def layouts(draw: st.DrawFn) -> SegmentLayout:
    """After some splits, merges, rebuckets and prunes."""
    layout = SegmentLayout.create(draw(st.integers(1, 4)), now_ms=0)
    for step in range(draw(st.integers(0, 10))):
        active = layout.active
        chosen = draw(st.integers(0, len(active) - 1))
        roots = [s.segment_id for s in layout.segments.values() if not s.active and not s.parent_ids]
        what = draw(st.sampled_from(["split", "merge", "rebucket", "prune"]))
        if what == "prune" and roots:
            layout = prune_segment(layout, draw(st.sampled_from(roots)))
        elif what == "merge" and chosen + 1 < len(active):
            layout = merge_segments(layout, active[chosen].segment_id, active[chosen + 1].segment_id, step)
        elif what == "rebucket":
            layout = rebucket_segment(layout, active[chosen].segment_id, active[chosen].bucket_count % 9 + 1, step)
        else:
            layout = split_segment(layout, active[chosen].segment_id, step)
    return layout


@given(layouts(), st.data())
def test_semantics_8_a_segment_is_open_when_all_its_ancestors_are_drained(
    layout: SegmentLayout, data: st.DataObject
) -> None:
    sealed = [i for i, s in layout.segments.items() if not s.active]
    drained = data.draw(st.sets(st.sampled_from(sealed))) if sealed else set()
    found = {s.segment_id for s in open_segments(layout, drained)}
    assert found == {i for i in layout.segments if i not in drained and layout.ancestors(i) <= drained}


@given(layouts())
def test_semantics_10_a_sealed_segment_goes_where_its_first_heir_goes(layout: SegmentLayout) -> None:
    shares = assign(layout, CHECKPOINT, set(), ["a", "b", "c"])
    owner = {i: name for name, ids in shares.items() for i in ids}
    for segment_id, segment in layout.segments.items():
        heirs = [i for i in layout.descendants(segment_id) if layout.segments[i].active]
        first = segment_id if segment.active else min(heirs, key=lambda i: layout.segments[i].hash_range.start)
        assert owner[segment_id] == owner[first]
