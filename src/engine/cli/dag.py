"""A topic's layout as a tree in the terminal: each segment under its parents, its children below it.

What has often changed is deep: only its last generations are a tree, older ones stand before it, one below the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text
from rich.tree import Tree

from engine.cli import lines, output
from engine.model.text import plain

GUIDE_WIDTH = 4  # of what rich draws before a label, for each level
BACKLOGS_SHOWN = 3
LEVELS_MAX = 8
LINE_WIDTH_MAX = 65_536  # whatever the terminal's: lines are not folded

Segments = Mapping[int, dict[str, Any]]


def print_layout(title: str, metadata: Mapping[str, Any], stats: Mapping[str, Any] | None = None) -> None:
    """The tree on the standard output; with `stats`, how much is in each segment. Lines are as long as they are."""
    output.console(width=LINE_WIDTH_MAX).print(layout_tree(title, metadata, stats or {}))
    if count := len(old(segments_of(metadata))):
        oldest = "the oldest segment is" if count == 1 else f"the {count:,} oldest segments are"
        lines.line(f"({oldest} not indented; --active shows only what is active)")


def segments_of(metadata: Mapping[str, Any]) -> Segments:
    return {int(name): segment for name, segment in metadata["segments"].items()}


def only_active(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The same without what is sealed."""
    return {**metadata, "segments": {i: s for i, s in metadata["segments"].items() if s["state"] == "ACTIVE"}}


def old(segments: Segments) -> set[int]:
    """Those with so many generations below them that a tree would grow out of sight."""
    levels: dict[int, int] = {}
    for i in sorted(segments, reverse=True):  # children have larger ids
        levels[i] = 1 + max((levels[c] for c in segments[i]["childIds"] if c in levels), default=0)
    return {i for i, count in levels.items() if count > LEVELS_MAX}


def layout_tree(title: str, metadata: Mapping[str, Any], stats: Mapping[str, Any]) -> Tree:
    """Roots are the oldest segments that are still there.

    A merged segment stands, with its descendants, under the first of its parents; the others refer to it.
    """
    segments = segments_of(metadata)
    before = old(segments)
    lines = [(i, 1, False, parents_in(segments, i)) for i in sorted(before)]
    for i, depth, again, others in walk({i: s for i, s in segments.items() if i not in before}):
        lines.append((i, depth, again, sorted({*others, *(p for p in parents_in(segments, i) if p in before)})))
    widths = [len(name_of(segments[i])) + GUIDE_WIDTH * depth for i, depth, _, _ in lines]
    known = facts(segments, stats)
    columns = [max((len(row[n]) for row in known.values()), default=0) for n in range(3)]
    tree = Tree(Text(plain(title), style="bold"))
    places = [tree]
    for (i, depth, again, other_parents), width in zip(lines, widths, strict=True):
        more = (known[i][3], origin(depth, other_parents))
        label = reference(i) if again else full_label(segments[i], max(widths) - width, columns, (*known[i][:3], *more))
        del places[depth:]
        places.append(places[depth - 1].add(label))
    return tree


def walk(segments: Segments) -> Iterator[tuple[int, int, bool, list[int]]]:
    """(segment, depth from 1, whether it stood there before, its parents other than the one above), as drawn."""
    drawn: set[int] = set()
    roots = [i for i, s in segments.items() if not any(p in segments for p in s["parentIds"])]
    left = [(i, 1, -1) for i in by_range(segments, roots)]
    left.reverse()
    while left:
        i, depth, above = left.pop()
        yield i, depth, i in drawn, [p for p in segments[i]["parentIds"] if p != above and p in segments]
        if i not in drawn:
            drawn.add(i)
            children = [c for c in segments[i]["childIds"] if c in segments]
            left += [(c, depth + 1, i) for c in reversed(by_range(segments, children))]


def parents_in(segments: Segments, i: int) -> list[int]:
    """Those that are still there."""
    return [p for p in segments[i]["parentIds"] if p in segments]


def by_range(segments: Segments, ids: list[int]) -> list[int]:
    """By the start of their hash ranges."""
    return sorted(ids, key=lambda i: (segments[i]["hashRange"]["start"], i))


def name_of(segment: Mapping[str, Any]) -> str:
    """Its id and its range."""
    return f"{segment['segmentId']}  {hash_range(segment)}"


def hash_range(segment: Mapping[str, Any]) -> str:
    """Four hexadecimal digits for each end."""
    span = segment["hashRange"]
    return f"{span['start']:04x}-{span['end']:04x}"


def facts(segments: Segments, stats: Mapping[str, Any]) -> dict[int, tuple[str, str, str, str]]:
    """(state, buckets, messages, backlogs) of each segment, as text."""
    known = stats.get("segments", {})
    backlogs = segment_backlogs(stats)
    return {i: segment_facts(s, known.get(str(i)), backlogs.get(i, {})) for i, s in segments.items()}


def segment_facts(
    segment: Mapping[str, Any], now: Mapping[str, Any] | None, backlogs: Mapping[str, int]
) -> tuple[str, str, str, str]:
    """(state, buckets, messages, backlogs) of one segment; without `now` its messages are unknown."""
    count = len(segment.get("bucketBoundaries") or [0])
    messages = "" if now is None else message_count(now)
    return segment["state"], output.plural(count, "bucket"), messages, backlog_text(backlogs)


def message_count(now: Mapping[str, Any]) -> str:
    """How many are in a segment, if its owner has answered."""
    return "unavailable" if now.get("unavailable") else output.plural(output.messages_in(now), "message")


def segment_backlogs(stats: Mapping[str, Any]) -> dict[int, dict[str, int]]:
    """{segment: {subscription: messages that it has not acknowledged}}, where there are any."""
    found: dict[int, dict[str, int]] = {}
    for name, subscription in stats.get("subscriptions", {}).items():
        for segment, count in subscription.get("segmentBacklog", {}).items():
            if count:
                found.setdefault(int(segment), {})[name] = count
    return found


def backlog_text(backlogs: Mapping[str, int]) -> str:
    """The largest first, not more than fit a line."""
    largest = sorted(backlogs.items(), key=lambda item: -item[1])
    shown = [f"{name} {count:,}" for name, count in largest[:BACKLOGS_SHOWN]]
    more = len(largest) - len(shown)
    return "backlog " + ", ".join([*shown, *([f"{more} more"] if more else [])]) if shown else ""


def full_label(segment: Mapping[str, Any], indent: int, columns: list[int], known: tuple[str, ...]) -> Text:
    """A line of the tree; `indent` and `columns` bring the columns of all lines under each other."""
    active = segment["state"] == "ACTIVE"
    label = Text(name_of(segment), style="bold" if active else "")
    state, *counts = (cell.rjust(width) for cell, width in zip(known[:3], columns, strict=True))
    text = "  ".join(part for part in (state, *counts, *known[3:]) if part).rstrip()
    return label.append(" " * indent + "  ").append(plain(text), style="green" if active else "dim")


def origin(depth: int, parents: list[int]) -> str:
    """What a segment says of the parents that it does not stand under."""
    return f"{'from' if depth == 1 else 'merged, also from'} {', '.join(map(str, parents))}" if parents else ""


def reference(segment_id: int) -> Text:
    """A segment that stands, in full, under another parent."""
    return Text(f"{segment_id}  (merged: see above)", style="dim")
