"""Layouts: creation, reshaping, lineage and JSON, against every rule of semantics 2 to 6."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import CorruptionError, InvalidArgumentError, NotFoundError
from engine.limits import BUCKETS_PER_SEGMENT_MAX, HASH_RING_SIZE
from engine.model.layout import PendingChange, SegmentLayout
from engine.model.reshape import merge_segments, prune_segment, rebucket_segment, split_segment
from engine.model.segment import bucket_ends

LAST = HASH_RING_SIZE - 1


def reshape(layout: SegmentLayout, draw: Any, now_ms: int) -> SegmentLayout:
    """One random legal change."""
    kind = draw(st.sampled_from(["split", "merge", "rebucket", "prune"]))
    chosen = draw(st.integers(0, len(layout.active) - 1))
    active = layout.active[chosen]
    roots = [s for s in layout.segments.values() if not s.active and not s.parent_ids]
    if kind == "prune" and roots:
        return prune_segment(layout, draw(st.sampled_from(roots)).segment_id)
    if kind == "merge" and chosen + 1 < len(layout.active):
        return merge_segments(layout, layout.active[chosen + 1].segment_id, active.segment_id, now_ms)
    if kind == "rebucket":
        return rebucket_segment(layout, active.segment_id, 1 + active.bucket_count % BUCKETS_PER_SEGMENT_MAX, now_ms)
    return split_segment(layout, active.segment_id, now_ms)


@st.composite
def histories(draw: Any) -> list[SegmentLayout]:
    """Versions of one topic, oldest first."""
    layout = SegmentLayout.create(
        draw(st.integers(1, 20)), now_ms=1_000, buckets_total=draw(st.integers(1, 64)), properties={"team": "ads"}
    )
    versions = [layout]
    for step in range(draw(st.integers(0, 12))):
        versions.append(reshape(versions[-1], draw, 1_000 + draw(st.integers(-5, 5)) + step))
    return versions


@given(histories())
def test_semantics_3_active_ranges_tile_the_ring_in_every_version(versions: list[SegmentLayout]) -> None:
    for layout in versions:
        ranges = [s.hash_range for s in layout.active]
        assert ranges[0].start == 0
        assert ranges[-1].end == LAST
        assert all(a.end + 1 == b.start for a, b in itertools.pairwise(ranges))


@given(histories())
def test_semantics_3_epochs_rise_by_one_ids_are_fresh_and_facts_are_carried(versions: list[SegmentLayout]) -> None:
    seen: set[int] = set(versions[0].segments)
    for before, after in itertools.pairwise(versions):
        born = after.segments.keys() - before.segments.keys()
        assert after.epoch == before.epoch + 1
        assert not born & seen
        seen |= born
        assert after.next_segment_id == max(seen) + 1
        assert (after.properties, after.key_hash, after.durability) == (
            before.properties,
            before.key_hash,
            before.durability,
        )


@given(histories())
def test_semantics_2_buckets_tile_the_bucket_ring_in_every_segment(versions: list[SegmentLayout]) -> None:
    for segment in versions[-1].segments.values():
        assert segment.bucket_ends[-1] == LAST
        assert list(segment.bucket_ends) == sorted(set(segment.bucket_ends))
        assert 1 <= segment.bucket_count <= BUCKETS_PER_SEGMENT_MAX


@given(histories())
def test_semantics_4_a_child_is_born_when_its_parent_is_sealed(versions: list[SegmentLayout]) -> None:
    layout = versions[-1]
    for segment in layout.segments.values():
        assert segment.active == (segment.sealed_at_ms is None) == (segment.sealed_at_epoch == 0)
        for child in layout.children(segment.segment_id):
            assert child.created_at_ms == segment.sealed_at_ms
            assert child.created_at_epoch == segment.sealed_at_epoch
            assert segment.segment_id in child.parent_ids


@given(histories())
def test_json_round_trip(versions: list[SegmentLayout]) -> None:
    for layout in versions:
        again = SegmentLayout.from_json(layout.to_json())
        assert again == layout
        assert again.active == layout.active


@given(histories(), st.integers(0, LAST))
def test_find_active_segment(versions: list[SegmentLayout], value: int) -> None:
    found = versions[-1].find_active_segment(value)
    assert found.active
    assert value in found.hash_range


@given(histories())
def test_lineage_is_ancestors_itself_and_descendants(versions: list[SegmentLayout]) -> None:
    layout = versions[-1]
    for segment_id in layout.segments:
        ids = {s.segment_id for s in layout.lineage(segment_id)}
        assert ids == layout.ancestors(segment_id) | {segment_id} | layout.descendants(segment_id)
        assert all(segment_id in layout.descendants(i) for i in layout.ancestors(segment_id))


@pytest.mark.parametrize(
    ("segments", "buckets", "share"), [(1, 4, 4), (2, 4, 2), (3, 4, 1), (8, 4, 1), (4, 4096, 1024)]
)
def test_buckets_are_shared_out_at_creation(segments: int, buckets: int, share: int) -> None:
    layout = SegmentLayout.create(segments, now_ms=0, buckets_total=buckets)
    assert [s.bucket_count for s in layout.active] == [share] * segments


def test_semantics_3_the_last_initial_segment_absorbs_the_remainder() -> None:
    ranges = [s.hash_range for s in SegmentLayout.create(3, now_ms=0).active]
    assert [(r.start, r.end) for r in ranges] == [(0, 21844), (21845, 43689), (43690, 65535)]


@pytest.mark.parametrize(("buckets", "children"), [(4, 2), (5, 2), (2, 1), (1, 1)])
def test_semantics_2_split_halves_the_bucket_count(buckets: int, children: int) -> None:
    layout = split_segment(SegmentLayout.create(1, now_ms=0, buckets_total=buckets), 0, 7)
    assert [s.bucket_count for s in layout.active] == [children, children]
    assert [(s.hash_range.start, s.hash_range.end) for s in layout.active] == [(0, 32767), (32768, LAST)]


@pytest.mark.parametrize(("left", "right", "merged"), [(2, 2, 4), (1, 7, 8), (1024, 1, 1024)])
def test_semantics_2_merge_adds_the_bucket_counts_clamped(left: int, right: int, merged: int) -> None:
    layout = SegmentLayout.create(2, now_ms=0, buckets_total=6)  # three each, unlike any below
    layout = rebucket_segment(rebucket_segment(layout, 0, left, 1), 1, right, 1)
    layout = merge_segments(layout, *(s.segment_id for s in layout.active), 2)
    assert [s.bucket_count for s in layout.active] == [merged]


def test_semantics_5_invalid_reshapings_are_refused() -> None:
    layout = split_segment(SegmentLayout.create(3, now_ms=0), 0, 1)  # 0 sealed; 3, 4, 1, 2 active
    refused = [
        lambda: split_segment(layout, 0, 2),
        lambda: split_segment(layout, 99, 2),
        lambda: merge_segments(layout, 3, 1, 2),
        lambda: merge_segments(layout, 3, 3, 2),
        lambda: merge_segments(layout, 0, 1, 2),
        lambda: rebucket_segment(layout, 3, layout.segment(3).bucket_count, 2),
        lambda: rebucket_segment(layout, 0, 8, 2),
        lambda: rebucket_segment(layout, 99, 8, 2),
        lambda: rebucket_segment(layout, 3, 0, 2),
        lambda: rebucket_segment(layout, 3, 1025, 2),
        lambda: prune_segment(layout, 3),
        lambda: prune_segment(layout, 99),
    ]
    for change in refused:
        with pytest.raises(InvalidArgumentError):
            change()


def test_semantics_5_a_one_value_range_cannot_be_split() -> None:
    layout = SegmentLayout.create(1, now_ms=0)
    while layout.active[0].hash_range.width > 1:
        layout = split_segment(layout, layout.active[0].segment_id, 0)
    with pytest.raises(InvalidArgumentError, match="one hash value"):
        split_segment(layout, layout.active[0].segment_id, 0)


def test_semantics_6_merge_depth_counts_merges_never_splits() -> None:
    layout = SegmentLayout.create(1, now_ms=0)
    for depth in range(1, 4):
        layout = split_segment(layout, layout.active[0].segment_id, depth)
        assert {layout.merge_depth(s.segment_id) for s in layout.active} == {depth - 1}
        layout = merge_segments(layout, *(s.segment_id for s in layout.active), depth)
        assert layout.merge_depth(layout.active[0].segment_id) == depth


def test_prune_goes_from_the_oldest() -> None:
    layout = split_segment(split_segment(SegmentLayout.create(1, now_ms=0), 0, 1), 1, 2)
    with pytest.raises(InvalidArgumentError, match="prune those first"):
        prune_segment(layout, 1)
    layout = prune_segment(layout, 0)
    assert layout.parents(1) == layout.parents(2) == ()
    assert 1 not in prune_segment(layout, 1).segments


def test_the_specifications_own_example_is_read() -> None:
    metadata = json.loads(SPECIFICATION_EXAMPLE)
    layout = SegmentLayout.from_metadata(metadata)
    assert [s.segment_id for s in layout.active] == [3, 4, 2]
    assert [s.segment_id for s in layout.lineage(3)] == [0, 1, 3]
    written = layout.to_metadata()
    for name in ("epoch", "nextSegmentId", "properties"):
        assert written[name] == metadata[name]
    for segment_id, fields in metadata["segments"].items():
        assert fields.items() <= written["segments"][segment_id].items()


def test_unknown_fields_are_carried_along() -> None:
    metadata = SegmentLayout.create(1, now_ms=0).to_metadata()
    metadata["autoScale"] = {"maxSegments": 3}
    metadata["segments"]["0"]["tier"] = "cold"
    written = split_segment(SegmentLayout.from_metadata(metadata), 0, 1).to_metadata()
    assert written["autoScale"] == {"maxSegments": 3}
    assert written["segments"]["0"]["tier"] == "cold"


def test_a_pending_change_is_part_of_the_record() -> None:
    layout = SegmentLayout.create(1, now_ms=0)
    metadata = layout.to_metadata() | {"change": PendingChange("delete", "segments").to_json()}
    assert SegmentLayout.from_metadata(metadata).change == PendingChange("delete", "segments")
    assert "change" not in layout.to_metadata()


def damaged(path: str, value: object) -> bytes:
    """A two-segment topic's record with one field replaced, or, with `...`, removed."""
    metadata = SegmentLayout.create(2, now_ms=0).to_metadata()
    *outer, last = path.split(".")
    fields = metadata
    for name in outer:
        fields = fields[name]
    if value is ...:
        del fields[last]
    else:
        fields[last] = value
    return json.dumps(metadata).encode()


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("epoch", -1, "epoch"),
        ("epoch", "1", "epoch"),
        ("epoch", True, "epoch"),
        ("epoch", ..., "epoch"),
        ("nextSegmentId", 1, "nextSegmentId"),
        ("segments", [], "segments"),
        ("segments.1", 7, "'1'"),
        ("segments.1", ..., "segments"),
        ("segments.1.segmentId", 0, "segmentId"),
        ("segments.1.state", "OPEN", "state"),
        ("segments.1.hashRange", {"start": 5}, "end"),
        ("segments.1.hashRange", {"start": 9, "end": 5}, "hashRange"),
        ("segments.1.hashRange", {"start": 9, "end": 65536}, "hashRange"),
        ("segments.1.parentIds", [5], "parentIds"),
        ("segments.1.parentIds", "0", "parentIds"),
        ("segments.1.childIds", [0], "childIds"),
        ("segments.1.bucketBoundaries", [], "bucketBoundaries"),
        ("segments.1.bucketBoundaries", [5, 5, 65535], "bucketBoundaries"),
        ("segments.1.bucketBoundaries", [5], "bucketBoundaries"),
        ("properties", {"a": 1}, "properties"),
        ("keyHash", "md5", "keyHash"),
        ("durability", "maybe", "durability"),
        ("change", {"kind": "delete"}, "phase"),
    ],
)
def test_malformed_records_name_the_field(path: str, value: object, named: str) -> None:
    with pytest.raises(CorruptionError, match=named):
        SegmentLayout.from_json(damaged(path, value))


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"{", b"null", b"[" * 100_000])
def test_what_is_no_object_is_corruption(value: bytes) -> None:
    with pytest.raises(CorruptionError):
        SegmentLayout.from_json(value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"segments": 0},
        {"segments": 1025},
        {"segments": True},
        {"segments": "4"},
        {"key_hash": "md5"},
        {"durability": "never"},
        {"buckets_total": 0},
        {"buckets_total": 1025},
        {"properties": {"a": 1}},
        {"properties": ["a"]},
        {"properties": {"a": "x" * 70_000}},
    ],
)
def test_create_refuses_bad_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        SegmentLayout.create(**{"now_ms": 0} | wrong)


def test_unknown_segments_and_hashes() -> None:
    layout = SegmentLayout.create(1, now_ms=0)
    with pytest.raises(NotFoundError, match="segment 7"):
        layout.segment(7)
    with pytest.raises(InvalidArgumentError):
        layout.find_active_segment(HASH_RING_SIZE)


def test_bucket_ends_are_equal_widths() -> None:
    assert bucket_ends(4) == (0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF)
    assert bucket_ends(3) == (21844, 43689, 65535)


SPECIFICATION_EXAMPLE = """
{"epoch": 3, "nextSegmentId": 5, "segments": {
 "0": {"segmentId": 0, "hashRange": {"start": 0, "end": 65535}, "state": "SEALED", "parentIds": [], "childIds": [1, 2],
       "createdAtEpoch": 0, "sealedAtEpoch": 1},
 "1": {"segmentId": 1, "hashRange": {"start": 0, "end": 32767}, "state": "SEALED", "parentIds": [0], "childIds": [3, 4],
       "createdAtEpoch": 1, "sealedAtEpoch": 3},
 "2": {"segmentId": 2, "hashRange": {"start": 32768, "end": 65535}, "state": "ACTIVE", "parentIds": [0], "childIds": [],
       "createdAtEpoch": 1, "sealedAtEpoch": 0},
 "3": {"segmentId": 3, "hashRange": {"start": 0, "end": 16383}, "state": "ACTIVE", "parentIds": [1], "childIds": [],
       "createdAtEpoch": 3, "sealedAtEpoch": 0},
 "4": {"segmentId": 4, "hashRange": {"start": 16384, "end": 32767}, "state": "ACTIVE", "parentIds": [1], "childIds": [],
       "createdAtEpoch": 3, "sealedAtEpoch": 0}
 }, "properties": {}}
"""
