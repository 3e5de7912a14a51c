"""The assignment policy, as tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.control.policy.assignment import assign, open_segments
from engine.model.layout import SegmentLayout
from engine.model.reshape import merge_segments, prune_segment, rebucket_segment, split_segment
from engine.model.subscriptions import DeliveryMode, Share, Shares, SubscriptionKind

STREAM, CHECKPOINT = SubscriptionKind.STREAM, SubscriptionKind.CHECKPOINT
EXCLUSIVE, SHARED = DeliveryMode.EXCLUSIVE, DeliveryMode.SHARED
FLAT4 = SegmentLayout.create(4, now_ms=0)  # one bucket each
# 0 -> (1, 2); 1 -> (3, 4)
DEEP = split_segment(split_segment(SegmentLayout.create(1, now_ms=0), 0, 1), 1, 2)
# 0, 1 -> 2
MERGED = merge_segments(SegmentLayout.create(2, now_ms=0), 0, 1, 1)
# 0 -> (1, 2) -> 3
DIAMOND = merge_segments(split_segment(SegmentLayout.create(1, now_ms=0), 0, 1), 1, 2, 2)


def alone(shares: dict[str, tuple[int, ...]]) -> dict[str, Shares]:
    """Every one of these segments has one reader."""
    return {name: tuple(Share(i) for i in ids) for name, ids in shares.items()}


def together(shares: dict[str, int | None], *exclusive: str) -> dict[str, Shares]:
    """Every consumer reads one of these segments, with others, or none."""
    modes = {name: EXCLUSIVE if name in exclusive else SHARED for name in shares}
    return {name: () if i is None else (Share(i, modes[name]),) for name, i in shares.items()}


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
    assert assign(FLAT4, STREAM, set(), consumers) == alone(shares)


def test_segments_are_dealt_by_range_start_not_by_id() -> None:
    layout = split_segment(FLAT4, 0, 1)  # by range: 4, 5, 1, 2, 3
    assert assign(layout, STREAM, {0}, ["a", "b"]) == alone({"a": (4, 1, 3), "b": (5, 2)})


@pytest.mark.parametrize(
    ("layout", "drained", "readable"),
    [
        (FLAT4, set(), [0, 1, 2, 3]),
        # Semantics 8: children wait, over a generation that is drained itself.
        (DEEP, set(), [0]),
        (DEEP, {1}, [0]),
        (DEEP, {0}, [1, 2]),
        # Semantics 9: a drained parent is out.
        (DEEP, {0, 1}, [3, 4, 2]),
        # Semantics 8: a merged child waits for all its parents.
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
    assert assign(layout, STREAM, drained, ["only"]) == alone({"only": tuple(readable)})


def test_semantics_10_checkpoint_groups_are_not_gated() -> None:
    assert assign(DEEP, CHECKPOINT, set(), ["only"]) == alone({"only": (0, 1, 3, 4, 2)})
    assert assign(MERGED, CHECKPOINT, set(), ["a", "b"]) == alone({"a": (0, 2, 1), "b": ()})
    assert assign(DEEP, CHECKPOINT, set(), []) == {}


def with_buckets(*counts: int) -> SegmentLayout:
    """Segments 0, 1, … with so many buckets each; those with more than one replace earlier ones of their range."""
    layout = SegmentLayout.create(len(counts), now_ms=0)
    for segment, count in zip(layout.active, counts, strict=True):
        if count != segment.bucket_count:
            layout = rebucket_segment(layout, segment.segment_id, count, 1)
    return layout


def active_only(layout: SegmentLayout) -> set[int]:
    """What is drained when nothing sealed has a backlog."""
    return {i for i, s in layout.segments.items() if not s.active}


def test_pip_486_more_consumers_than_segments_share_by_bucket() -> None:
    layout = with_buckets(8)  # segment 1, in place of 0
    assert assign(layout, STREAM, {0}, list("edcba")) == together(dict.fromkeys("abcde", 1))
    assert assign(layout, STREAM, {0}, ["a"]) == alone({"a": (1,)})
    ten = assign(layout, STREAM, {0}, list("abcdefghij"))  # semantics 15: the surplus is idle
    assert ten == together(dict.fromkeys("abcdefgh", 1) | {"i": None, "j": None})


def test_pip_486_places_are_dealt_round_after_round_over_what_has_buckets_left() -> None:
    layout = with_buckets(1, 3, 2)  # 0, 3, 4
    drained = active_only(layout)
    five = assign(layout, STREAM, drained, list("abcde"))
    assert five == together({"a": 0, "b": 3, "c": 3, "d": 4, "e": 4}, "a")
    seven = assign(layout, STREAM, drained, list("abcdefg"))
    assert seven == together({"a": 0, "b": 3, "c": 3, "d": 3, "e": 4, "f": 4, "g": None}, "a")


def test_pip_486_a_sealed_backlog_is_drained_by_as_many_as_it_has_buckets_then_one_reads_each_segment() -> None:
    layout = split_segment(SegmentLayout.create(1, now_ms=0), 0, 1)  # of four buckets -> (1, 2), of two each
    assert assign(layout, STREAM, set(), list("abcde")) == together(dict.fromkeys("abcd", 0) | {"e": None})
    assert assign(layout, STREAM, {0}, list("ab")) == alone({"a": (1,), "b": (2,)})
    assert assign(layout, STREAM, {0}, list("abcde")) == together({"a": 1, "b": 1, "c": 2, "d": 2, "e": None})


def test_pip_486_a_sealed_backlog_has_one_reader_where_sharing_it_is_switched_off() -> None:
    layout = split_segment(SegmentLayout.create(1, now_ms=0), 0, 1)  # of four buckets -> (1, 2), of two each
    draining = assign(layout, STREAM, set(), list("abc"), share_sealed=False)
    assert draining == together({"a": 0, "b": None, "c": None}, "a")
    after = assign(layout, STREAM, {0}, list("abc"), share_sealed=False)  # what is active is shared all the same
    assert after == together({"a": 1, "b": 1, "c": 2}, "c")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.sets(st.integers(0, 99), min_size=1), st.integers(0, 99))
def test_who_joins_moves_one_consumer_at_most_from_each_segment_to_its_neighbour(
    counts: list[int], numbers: set[int], number: int
) -> None:
    layout = with_buckets(*counts)
    drained, order = active_only(layout), [s.segment_id for s in layout.active]
    fewer, more = ([f"{n:02}" for n in some] for some in (numbers - {number}, numbers | {number}))
    if not len(counts) < len(fewer) < sum(counts):
        return
    before, after = (assign(layout, STREAM, drained, names) for names in (fewer, more))
    moves = [(before[name][0].segment_id, after[name][0].segment_id) for name in fewer if before[name] and after[name]]
    moves = [move for move in moves if move[0] != move[1]]
    assert len(set(moves)) == len(moves) < len(counts)
    assert all(abs(order.index(a) - order.index(b)) == 1 for a, b in moves)


NAMES = st.lists(st.text(min_size=1, max_size=5), unique=True, max_size=12)


@given(
    st.sampled_from([FLAT4, DEEP, MERGED, DIAMOND]),
    st.sets(st.integers(0, 4)),
    NAMES,
)
def test_semantics_15_every_segment_of_a_group_has_one_owner_and_order_does_not_matter(
    layout: SegmentLayout, drained: set[int], names: list[str]
) -> None:
    shares = assign(layout, CHECKPOINT, drained, names)
    assert shares == assign(layout, CHECKPOINT, drained, list(reversed(names)))
    assert shares.keys() == set(names)
    assert all(mode is EXCLUSIVE for share in shares.values() for _, mode in share)  # semantics 29
    assert sorted(i for share in shares.values() for i, _ in share) == (sorted(layout.segments) if names else [])


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


@given(layouts(), st.data(), st.lists(st.text(min_size=1, max_size=5), unique=True, max_size=40))
def test_semantics_15_and_16_who_reads_what(layout: SegmentLayout, data: st.DataObject, names: list[str]) -> None:
    sealed = [i for i, s in layout.segments.items() if not s.active]
    drained = data.draw(st.sets(st.sampled_from(sealed))) if sealed else set()
    shares = assign(layout, STREAM, drained, names)
    assert shares == assign(layout, STREAM, drained, data.draw(st.permutations(names)))
    assert shares.keys() == set(names)
    readable = {s.segment_id: s for s in open_segments(layout, drained)}
    readers: dict[int, list[DeliveryMode]] = {i: [] for i in readable}
    for share in shares.values():
        for segment_id, mode in share:
            readers[segment_id].append(mode)
    for segment_id, modes in readers.items():
        assert len(modes) >= (1 if names else 0), "every open segment has a reader"
        assert len(modes) <= readable[segment_id].bucket_count, "no sharer without a bucket"
        assert set(modes) <= {SHARED if len(modes) > 1 else EXCLUSIVE}
    sizes = [len(share) for share in shares.values()]
    assert not sizes or len(names) > len(readable) or max(sizes) - min(sizes) <= 1
    if len(names) > len(readable):
        assert sum(sizes) == min(len(names), sum(s.bucket_count for s in readable.values())), "no place is left"
        assert max(sizes, default=0) <= 1


@given(layouts(), st.integers(1, 40))
def test_semantics_15_the_group_of_places_is_spread_evenly(layout: SegmentLayout, count: int) -> None:
    drained = active_only(layout)
    shares = assign(layout, STREAM, drained, [f"{i:02}" for i in range(count)])
    readers = {s.segment_id: 0 for s in layout.active}
    for share in shares.values():
        for segment_id, _ in share:
            readers[segment_id] += 1
    most = max(readers.values())
    for segment in layout.active:
        assert readers[segment.segment_id] >= min(segment.bucket_count, most - 1)


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
    owner = {i: name for name, share in shares.items() for i, _ in share}
    for segment_id, segment in layout.segments.items():
        heirs = [i for i in layout.descendants(segment_id) if layout.segments[i].active]
        first = segment_id if segment.active else min(heirs, key=lambda i: layout.segments[i].hash_range.start)
        assert owner[segment_id] == owner[first]
