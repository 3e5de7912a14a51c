"""What a run on machines writes down for `docs/results`: where, when, what was struck, what was sent, the verdict."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.machine_round import Totals
from tests.kit import etcd
from tests.kit.programs import ROOT

RESULTS = ROOT / "docs" / "results"

ABOUT = """\
Three brokers, three members of etcd and SeaweedFS: real processes on one machine, with lines between them that are cut.
Each round has topics of its own, with producers, consumers of each kind, transactions, splits and merges. Behind its
faults all is read twice. Then every broker loses its disk, etcd and SeaweedFS are killed and started again, all is read
once more, and the checker judges what clients were told. This page is written by

```console
$ make fuzz TESTS=tests/chaos/test_machine_loss.py MINUTES=60 SEED=1
```"""
ABOUT_BUGS = """\
What the checker finds on real servers when the brokers have a bug (`tests/chaos/planted_program.py`). With
`lease_is_believed` it must find nothing: the fence is enough. This page is written by

```console
$ make fuzz TESTS=tests/chaos/test_machine_bugs.py MINUTES=1 SEED=1
```"""


def today() -> str:
    """In UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


def commit() -> str:
    """Of the tree that runs, and whether it has changes that are not committed."""
    said = [_git("rev-parse", "--short=12", "HEAD"), *(["with changes"] * bool(_git("status", "--porcelain", "-uno")))]
    return ", ".join(said)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() or "unknown" * (done.returncode != 0)


def machine() -> str:
    """In one line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    python = platform.python_version()
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, Python {python}"


def table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Two columns."""
    lines = [f"| {title} | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines)


def page(totals: Totals, seeds: str, minutes: float) -> str:
    """The whole page of a run."""
    found = totals.violations
    verdict = "nothing" if not found else f"{len(found)} violations"
    about = [
        ("commit", commit()),
        ("date", today()),
        ("machine", machine()),
        ("etcd", etcd.version()),
        ("seeds", seeds),
        ("length", f"{minutes:.1f} minutes, {totals.rounds} rounds"),
        ("**the checker found**", f"**{verdict}**"),
        ("longest time without an acknowledged send", f"{totals.pause_s:.1f} s"),
    ]
    text = [
        f"# Lost machines, {today()}",
        ABOUT,
        table("run", about),
        table("faults", sorted(totals.faults.items())),
        table("done", sorted(totals.counts.items())),
    ]
    if found:
        text.append("\n".join(f"* {each}" for each in found[:50]))
    return "\n\n".join(text) + "\n"


def bugs_page(rows: Sequence[tuple[str, str, Counter[str]]]) -> str:
    """Of planted bugs: (name, seeds, how often each rule was broken)."""
    lines = ["| planted | seed | what the checker found |", "|---|---|---|"]
    for name, seeds, rules in rows:
        said = ", ".join(f"{rule}: {count}" for rule, count in sorted(rules.items())) or "nothing"
        lines.append(f"| {name} | {seeds} | {said} |")
    return "\n\n".join([
        f"# Planted bugs on real servers, {today()}",
        ABOUT_BUGS,
        table("run", [("commit", commit()), ("date", today()), ("machine", machine())]),
        "\n".join(lines),
    ]) + "\n"  # fmt: skip


def write(folder: Path, name: str, text: str) -> Path:
    """The page; one of the same day is replaced."""
    path = folder / f"{name}-{today()}.md"
    path.write_text(text, encoding="utf-8")
    return path
