"""`engine inspect --repair`: creates metadata records for segments that the metadata do not describe."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.cli import lines, output

if TYPE_CHECKING:
    from engine.broker.upkeep.repair import Plan, TopicPlan

COLUMNS = ["topic", "segment", "range", "state", "messages", "parents", "record", "problem"]


def repair(path: Path, *, dry_run: bool, show_transactional: bool, as_json: bool) -> int:
    """Print the plan, and apply it unless `dry_run`. Returns the exit code: 1 if something cannot be repaired."""
    from engine.broker.upkeep import repair as repairing

    now_ms = time.time_ns() // 1_000_000
    with tempfile.TemporaryDirectory(prefix="engine-repair-") as scratch:
        plan = repairing.make_plan(path, Path(scratch), now_ms)
    kept = None if dry_run or not plan.needed else repairing.apply(plan, now_ms, show_transactional=show_transactional)
    rows = [row for topic in plan.topics for row in topic_rows(topic)]
    hidden = {s.name: s.transactional for t in plan.topics for s in t.stores if s.transactional and t.layout}
    hidden = {name: count for name, count in hidden.items() if name not in plan.visible and not show_transactional}
    if as_json:
        output.print_json(
            {
                "metadata": plan.metadata,
                "written": not dry_run and plan.needed,
                "kept": None if kept is None else str(kept),
                "segments": rows,
                "hidden_messages": {str(name): count for name, count in hidden.items()},
                "nameless": list(plan.nameless),
            }
        )
    else:
        say(plan, rows, sum(hidden.values()), dry_run, kept)
    problems = [row["problem"] for row in rows if row["problem"]]
    problems += [
        f"{name}: the topic's name is too long for a directory name, and is recorded nowhere" for name in plan.nameless
    ]
    for problem in problems:
        lines.say(f"engine: not repaired: {problem}")
    return 1 if problems else 0


def topic_rows(topic: TopicPlan) -> list[dict[str, Any]]:
    """One row for each segment that the topic will have, or has files of."""
    stores = {store.name.segment_id: store for store in topic.stores}
    unexplained = {name.segment_id for name in topic.unexplained}
    ids = sorted(stores.keys() | (topic.layout.segments.keys() if topic.layout else set()))
    rows = []
    for number in ids:
        store = stores.get(number)
        info = topic.layout.segments.get(number) if topic.layout else None
        hash_range = info.hash_range if info else store.name.hash_range if store else None
        rows.append(
            {
                "topic": str(topic.topic),
                "segment": number,
                "range": f"{hash_range.start:04x}-{hash_range.end:04x}" if hash_range else None,
                "state": str(info.state) if info else "left out",
                "messages": store.messages if store else 0,
                "parents": ", ".join(map(str, info.parent_ids)) if info else "",
                "record": "new" if number in unexplained or store is None else "older" if topic.older else "new",
                "problem": topic.problem if number in unexplained else None,
            }
        )
    return rows


def say(plan: Plan, rows: list[dict[str, Any]], hidden: int, dry_run: bool, kept: Path | None) -> None:
    from engine.broker.upkeep import repair as repairing

    output.print_facts([("metadata", plan.metadata or "intact"), ("topics", len(plan.topics))])
    if rows:
        click.echo()
        output.print_table(COLUMNS, ([row[c] for c in COLUMNS] for row in rows))
        click.echo()
        lines.line(f"Lost for these topics: {repairing.LOST}.")
    if hidden:
        lines.line(
            f"{hidden:,} of their messages were sent in transactions whose outcome is lost. They stay hidden from "
            f"readers, unless --transactions show is given."
        )
    click.echo()
    if not plan.needed:
        lines.line("Nothing to repair.")
    elif dry_run:
        lines.line("Nothing was written: this was a dry run.")
    else:
        lines.line("The new records were written." + (f" The previous files are kept in {kept}" if kept else ""))
