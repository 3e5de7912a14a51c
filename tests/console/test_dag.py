"""The drawing of a topic's DAG, as numbers: where boxes lie, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from engine.console.dag import GAP, ROW, ROWS_MAX, WIDTH, laid_out, svg
from engine.console.views import SegmentLine

ROOT = SegmentLine(0, 0, 0xFFFF, False, (), 0, 1)
LEFT = SegmentLine(1, 0, 0x7FFF, True, (0,), 1, 0, rate_in=100.0, readers=("bills: <a&b>",))
RIGHT = SegmentLine(2, 0x8000, 0xFFFF, True, (0,), 1, 0, rate_in=50.0)


def test_ranges_lie_across_time_goes_down_and_rates_are_widths() -> None:
    drawing = laid_out([ROOT, LEFT, RIGHT])
    root, left, right = drawing.boxes
    assert (root.x, root.y, root.width, root.height) == (0, 0, WIDTH, ROW - GAP)
    assert (left.x, left.y, left.width) == (0, ROW, WIDTH / 2)
    assert (right.x, right.y, right.width) == (WIDTH / 2, ROW, WIDTH / 2)
    assert (left.bar, right.bar) == (left.width, right.width / 2)
    assert [(a.segment.ident, b.segment.ident) for a, b in drawing.edges] == [(0, 1), (0, 2)]
    assert drawing.height == 2 * ROW


def test_a_merge_has_an_edge_from_each_parent() -> None:
    ended = [replace(one, active=False, sealed_epoch=2) for one in (LEFT, RIGHT)]
    drawing = laid_out([ROOT, *ended, SegmentLine(3, 0, 0xFFFF, True, (1, 2), 2, 0)])
    assert [(a.segment.ident, b.segment.ident) for a, b in drawing.edges] == [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_old_segments_are_counted_and_active_ones_always_drawn() -> None:
    old = SegmentLine(10_000, 0x8000, 0xFFFF, True, (), 0, 0)
    chain = [SegmentLine(n, 0, 0x7FFF, False, (n - 1,) if n else (), n, n + 1) for n in range(200)]
    drawing = laid_out([old, *chain, SegmentLine(200, 0, 0x7FFF, True, (199,), 200, 0)])
    assert drawing.height == ROWS_MAX * ROW
    assert drawing.earlier + len(drawing.boxes) == 202
    assert {10_000, 200} <= {box.segment.ident for box in drawing.boxes}
    assert all(box.height >= ROW - GAP for box in drawing.boxes)
    picture = svg([old, *chain, SegmentLine(200, 0, 0x7FFF, True, (199,), 200, 0)])
    assert picture.endswith(f"<p>{drawing.earlier} segments that ended long ago are not drawn.</p>")


def test_the_picture_is_well_formed_whatever_names_are() -> None:
    root = ElementTree.fromstring(svg([ROOT, LEFT, RIGHT]))
    assert [one.get("data-segment") for one in root.findall("g")] == ["0", "1", "2"]
    assert "bills: <a&b>" in [one.text for one in root.iter("text")]


def test_no_segment_at_all() -> None:
    assert laid_out([]).boxes == []
