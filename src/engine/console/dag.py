"""The DAG of a topic as a drawing: hash ranges across, time down, rates as width.

A row begins at each epoch at which a segment was made or sealed. A segment is a box over its hash range, from the row
of its creation to that of its sealing, or to the bottom. The bar at its lower end is as wide as its part of the highest
rate of a segment. All elements have ids, so that the page moves those that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from engine.console.views import SegmentLine

HASHES = 0x1_0000
WIDTH = 1000.0
ROW = 84.0
GAP = 16.0  # between a segment and its children, for the edges
BAR = 6.0
ROWS_MAX = 40  # the newest; segments that ended before are counted
LABEL_MIN = 46.0  # narrower boxes have their text in the tool tip alone
READERS_MAX = 3


@dataclass(frozen=True, slots=True)
class Box:
    """A segment's place in the drawing."""

    segment: SegmentLine
    x: float
    y: float
    width: float
    height: float
    bar: float  # the width of its rate


@dataclass(frozen=True, slots=True)
class Drawing:
    """Where all lies. `earlier`: segments that are not drawn, since they ended long ago."""

    boxes: Sequence[Box]
    edges: Sequence[tuple[Box, Box]]
    height: float
    earlier: int


def laid_out(segments: Sequence[SegmentLine]) -> Drawing:
    """The place of each segment."""
    epochs = sorted({one.created_epoch for one in segments} | {one.sealed_epoch for one in segments if not one.active})
    rows = {epoch: row for row, epoch in enumerate(epochs[-ROWS_MAX:])}
    bottom = max(len(rows), 1)
    drawn = [one for one in segments if one.active or rows.get(one.sealed_epoch, 0) > 0]
    most = max((one.rate_in for one in drawn), default=0.0)
    boxes = {}
    for one in drawn:
        top = rows.get(one.created_epoch, 0) * ROW
        below = (bottom if one.active else rows[one.sealed_epoch]) * ROW
        width = (one.end - one.start + 1) / HASHES * WIDTH
        bar = width * one.rate_in / most if most else 0.0
        boxes[one.ident] = Box(one, one.start / HASHES * WIDTH, top, width, below - top - GAP, bar)
    edges = [(boxes[parent], box) for box in boxes.values() for parent in box.segment.parents if parent in boxes]
    return Drawing(list(boxes.values()), edges, bottom * ROW, len(segments) - len(drawn))


def svg(segments: Sequence[SegmentLine]) -> str:
    """The picture, as an element of a page."""
    drawing = laid_out(segments)
    parts = [_edge(parent, child) for parent, child in drawing.edges] + [_box(box) for box in drawing.boxes]
    left = f"<p>{drawing.earlier:,} segments that ended long ago are not drawn.</p>" if drawing.earlier else ""
    return (
        f'<svg id="dag" class="dag" role="img" aria-label="segments of the topic" viewBox="0 0 {WIDTH:g} '
        f'{drawing.height:g}" data-segments="{len(drawing.boxes)}">{"".join(parts)}</svg>{left}'
    )


def _edge(parent: Box, child: Box) -> str:
    x1, y1 = parent.x + parent.width / 2, parent.y + parent.height
    x2, y2 = child.x + child.width / 2, child.y
    middle = (y1 + y2) / 2
    ends = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}"
    return f'<path id="e{parent.segment.ident}-{child.segment.ident}" class="edge" d="{ends}"/>'


def _box(box: Box) -> str:
    one = box.segment
    kind = "lost" if one.unavailable else "active" if one.active else "sealed"
    inside = max(box.width - 2, 0.5)
    parts = [
        f'<g id="s{one.ident}" class="segment {kind}" data-segment="{one.ident}"><title>{escape(_tip(one))}</title>',
        f'<rect class="body" x="{box.x + 1:.1f}" y="{box.y:.1f}" width="{inside:.1f}" height="{box.height:.1f}"/>',
        f'<rect class="rate" x="{box.x + (box.width - box.bar) / 2:.1f}" y="{box.y + box.height - BAR:.1f}" '
        f'width="{box.bar:.1f}" height="{BAR:g}"/>',
    ]
    if box.width >= LABEL_MIN:
        x, lines = box.x + 6, [f"{one.ident}", f"{one.rate_in:,.0f}/s" if one.active else "sealed"]
        room = int((box.width - 12) / 6.2)
        lines += [_cut(text, room) for text in one.readers[:READERS_MAX]]
        fitting = max(int((box.height - BAR) // 12), 1)
        parts += [
            f'<text class="{kind}" x="{x:.1f}" y="{box.y + 12 + 12 * n:.1f}">{escape(text)}</text>'
            for n, (kind, text) in enumerate(zip(["name"] + ["note"] * fitting, lines[:fitting], strict=False))
        ]
    return "".join([*parts, "</g>"])


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(room - 1, 0)] + "…"


def _tip(one: SegmentLine) -> str:
    lines = [
        f"segment {one.ident}, hashes {one.start:04x}-{one.end:04x}, {'active' if one.active else 'sealed'}",
        f"owner {one.owner}",
        f"in {one.rate_in:,.0f}/s, out {one.rate_out:,.0f}/s, backlog {one.backlog:,}",
        *(f"read by {who}" for who in one.readers),
    ]
    return "\n".join(lines + ([f"not available: {one.unavailable}"] if one.unavailable else []))
