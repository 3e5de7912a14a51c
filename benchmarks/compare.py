"""This tree beside another revision, in turns: the ratio of each figure, with its spread. What a change quotes.

    python benchmarks/compare.py BASE [--only serve,embedded] [--turns 7] [--own] [--json FILE]

BASE is built once, in build/compare/COMMIT. A turn runs each group of `bars.py` once with the one and once with the
other package, each in a process of its own, the first of them in turn; a ratio is taken inside a turn. The benchmarks
are those of this tree, unless `--own` asks for each tree's. Free memory is touched first: where a machine gets its
memory when it is first used, writing to pages that were never touched is several times slower.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from bars import GROUP_S_MAX, number
from support import directory, touch_free_memory

ROOT = Path(__file__).parent.parent
CLEAR = 0.03  # a row is marked when every turn is so far on one side

Figures = dict[str, float]
Runner = Callable[[str], Figures]


class Row(NamedTuple):
    """A figure of both trees. Ratios are this tree's over BASE's, of each turn."""

    name: str
    base: float
    here: float
    ratios: list[float]

    @classmethod
    def of(cls, name: str, pairs: list[tuple[float, float]]) -> Row:
        """Of the figures (base, here) of each turn."""
        bases, heres = zip(*pairs, strict=True)
        return cls(name, statistics.median(bases), statistics.median(heres), [h / b for b, h in pairs])

    @property
    def mark(self) -> str:
        """ "+" or "-" when all turns say more, or less."""
        if len(self.ratios) > 1 and min(self.ratios) > 1 + CLEAR:
            return "+"
        return "-" if len(self.ratios) > 1 and max(self.ratios) < 1 - CLEAR else ""


def built(base: str) -> Path:
    """The checkout of a revision, with its native modules. Raises SystemExit with git's or the compiler's words."""

    def output(*command: str, where: Path = ROOT) -> str:
        done = subprocess.run(command, cwd=where, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout.strip()

    commit = output("git", "rev-parse", "--verify", f"{base}^{{commit}}")
    tree = ROOT / "build" / "compare" / commit[:12]
    if not tree.exists():
        output("git", "clone", "--quiet", "--shared", str(ROOT), str(tree))
        output("git", "checkout", "--quiet", "--detach", commit, where=tree)
    if not (tree / ".built").exists():
        jobs = str(os.cpu_count() or 1)
        output(sys.executable, "setup.py", "-q", "build_ext", "--inplace", "-j", jobs, where=tree)
        (tree / ".built").touch()
    return tree


def runner(package: Path, benchmarks: Path, pinned: bool) -> Runner:
    """Runs a group with the package of a tree and the benchmarks of a tree."""

    def run(group: str) -> Figures:
        command = [sys.executable, str(benchmarks / "benchmarks" / "bars.py"), "--group", group]
        with directory() as folder:
            environment = os.environ | {"ENGINE_BENCH_DIR": folder, "PYTHONPATH": str(package / "src")}
            options = [] if pinned else ["--unpinned"]
            done = subprocess.run(
                command + options, env=environment, cwd=benchmarks, capture_output=True, text=True, timeout=GROUP_S_MAX
            )
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
        figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
        return figures

    return run


def in_turns(groups: Iterable[str], turns: int, base: Runner, here: Runner) -> tuple[list[Row], list[str]]:
    """The rows of all figures that both have, and what failed."""
    found: dict[str, list[tuple[float, float]]] = {}
    failures: list[str] = []
    for turn in range(turns):
        for group in groups:
            figures: dict[Runner, Figures] = {}
            for run in (base, here) if turn % 2 == 0 else (here, base):
                try:
                    figures[run] = run(group)
                except (RuntimeError, subprocess.TimeoutExpired) as e:
                    failures.append(f"{group}, turn {turn + 1}, {'BASE' if run is base else 'this tree'}: {e}")
            if len(figures) == 2:
                for name, value in figures[here].items():
                    if figures[base].get(name):
                        found.setdefault(name, []).append((figures[base][name], value))
            print(f"turn {turn + 1} of {turns}: {group}", file=sys.stderr, flush=True)
    return [Row.of(name, pairs) for name, pairs in found.items()], failures


def table(rows: Iterable[Row]) -> str:
    """In Markdown."""
    lines = ["| figure | base | here | here / base | |", "|---|---|---|---|---|"]
    for row in rows:
        ratio = f"{statistics.median(row.ratios):.2f} ({min(row.ratios):.2f}–{max(row.ratios):.2f})"
        lines.append(f"| {row.name} | {number(row.base)} | {number(row.here)} | {ratio} | {row.mark} |")
    return "\n".join(lines)


def main() -> None:
    """Build, measure, print. Ends with 1 when something failed to run."""
    from measures import GROUPS

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("base", help="a revision: a tag, a branch, a commit")
    parser.add_argument("--only", default=",".join(GROUPS), help="groups, of: %(default)s")
    parser.add_argument("--turns", type=int, default=5, help="at least 2 (5)")
    parser.add_argument("--own", action="store_true", help="each tree with its own benchmarks")
    parser.add_argument("--unpinned", action="store_true", help="server and client both on any core")
    parser.add_argument("--json", metavar="FILE", help="write every figure there")
    chosen = parser.parse_args()
    groups = chosen.only.split(",")
    if set(groups) - set(GROUPS) or chosen.turns < 2:
        parser.error(f"--only must name groups of {', '.join(GROUPS)}, and --turns be at least 2")
    tree = built(chosen.base)
    touch_free_memory()
    base = runner(tree, tree if chosen.own else ROOT, not chosen.unpinned)
    rows, failures = in_turns(groups, chosen.turns, base, runner(ROOT, ROOT, not chosen.unpinned))
    print(table(rows))
    print("\n".join(f"failed: {failure}" for failure in failures), file=sys.stderr)
    if chosen.json:
        Path(chosen.json).write_text(json.dumps([row._asdict() for row in rows], indent=1))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
