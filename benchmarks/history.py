"""What users notice, over the releases: each is built, measured in turns, and drawn with its steps marked.

    python benchmarks/history.py [REVISION …] [--last 5] [--rounds 3] [--bench REGEX] [--html DIR]

Without revisions: the newest tags `v*` before this tree, and this tree. Each is built once, in build/compare/COMMIT. A
round runs the benchmarks of this tree (`user/bench_user.py`) once with every release, first to last, then last to
first, and so on: a machine that slows down does not slow one release. asv measures, and publishes the medians of the
rounds in DIR/asv; DIR/index.html is one page without anything from elsewhere: a graph for each figure, and each step
from a release to the next that all rounds agree on.
"""

from __future__ import annotations

import argparse
import html
import io
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from bars import number
from compare import CLEAR, ROOT, built
from support import touch_free_memory

HERE = ROOT / ".asv" / "history"
CHOSEN = "."  # all of its folder
RUN_S_MAX = 3600

Values = dict[str, dict[str, list[float]]]  # name of a figure: release: a value of each round


class Release(NamedTuple):
    """A tag or revision, its commit, and the folder that holds it built."""

    name: str
    commit: str
    tree: Path


class Figure(NamedTuple):
    """One benchmark with its arguments."""

    name: str
    unit: str
    values: dict[str, list[float]]  # by release, in order

    @property
    def less_is_better(self) -> bool:
        return not self.unit.endswith("/s")


class Step(NamedTuple):
    """From one release to the next: the ratio of the later to the earlier in each round."""

    figure: Figure
    earlier: str
    later: str
    ratios: list[float]

    @property
    def kind(self) -> str:
        """`better` or `worse` when all rounds say so by more than `CLEAR`; else nothing."""
        if len(self.ratios) < 2:
            return ""
        up, down = min(self.ratios) > 1 + CLEAR, max(self.ratios) < 1 - CLEAR
        if not (up or down):
            return ""
        return "better" if up is not self.figure.less_is_better else "worse"


def git(*words: str, root: Path = ROOT) -> str:
    """What git prints. Raises SystemExit with git's words."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def releases(named: Sequence[str], last: int, root: Path = ROOT) -> list[str]:
    """The revisions to measure besides this tree, oldest first. Raises SystemExit where there is none."""
    names = list(named) or git("tag", "--list", "v*", "--merged", "HEAD", "--sort=creatordate", root=root).split()
    here = git("rev-parse", "HEAD", root=root)
    names = [name for name in names if git("rev-parse", f"{name}^{{commit}}", root=root) != here]
    if not named:
        names = names[-last:]
    if not names:
        raise SystemExit(
            "There is no tag v* before this tree: set them with make tags, or name revisions, as in REVISIONS=main~9."
        )
    return names


# -- measuring ----------------------------------------------------------------------------------------------------


def configured(folder: Path, branch: str) -> Path:
    """asv's configuration for results in `folder`; graphs follow the commits of `branch`."""
    config = json.loads((ROOT / "benchmarks" / "asv.conf.json").read_text())
    config |= {
        "repo": str(ROOT),
        "benchmark_dir": str(ROOT / "benchmarks" / "user"),
        "env_dir": str(HERE / "env"),
        "results_dir": str(folder / "results"),
        "html_dir": str(folder / "asv"),
        "branches": [branch],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "asv.conf.json"
    path.write_text(json.dumps(config))
    return path


def asv(config: Path, *words: str, package: Path | None = None) -> None:
    """One of asv's commands; benchmarks import `engine` from `package`. Raises RuntimeError with its last lines."""
    environment = os.environ | ({"ASV_PYTHONPATH": str(package / "src")} if package else {})
    command = [sys.executable, "-m", "asv", "--config", str(config), *words]
    done = subprocess.run(
        command,
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S_MAX,
    )
    if done.returncode:
        raise RuntimeError(f"asv {words[0]}: " + "\n".join(done.stdout.strip().splitlines()[-5:]))


def measured(found: Sequence[Release], rounds: int, bench: str, folder: Path) -> list[Path]:
    """The folders of all rounds, each with the results of every release."""
    folders = []
    for turn in range(rounds):
        folders.append(folder / f"round-{turn + 1}")
        config = configured(folders[-1], found[-1].commit)
        asv(config, "machine", "--yes")
        for release in found if turn % 2 == 0 else reversed(found):
            words = ("--python=same", "--bench", bench, f"--set-commit-hash={release.commit}")
            asv(config, "run", *words, package=release.tree)
            print(f"round {turn + 1} of {rounds}: {release.name}", file=sys.stderr, flush=True)
    return folders


def result_files(folder: Path) -> Iterator[Path]:
    """What asv wrote of the releases; beside them lie `machine.json` and `benchmarks.json`."""
    return (path for path in sorted((folder / "results").glob("*/*.json")) if path.name != "machine.json")


def columns_of(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """{benchmark: {column: value}} of a file of asv's, whose rows leave out what is empty at their ends."""
    names = results["result_columns"]
    return {
        benchmark: dict(itertools.zip_longest(names, row[: len(names)]))
        for benchmark, row in results["results"].items()
    }


def figures(folders: Iterable[Path], found: Sequence[Release]) -> list[Figure]:
    """All that every round has of a release, release by release."""
    by_commit = {release.commit: release.name for release in found}
    values: Values = {}
    units: dict[str, str] = {}
    for folder in folders:
        stated = json.loads((folder / "results" / "benchmarks.json").read_text())
        for path in result_files(folder):
            results = json.loads(path.read_text())
            for benchmark, columns in columns_of(results).items():
                arguments = [" ".join(part).strip("'\"") for part in itertools.product(*(columns["params"] or []))]
                for label, value in zip(arguments or [""], columns["result"] or [], strict=False):
                    if value is not None:
                        name = ", ".join(filter(None, (title(benchmark), label.replace("'", ""))))
                        units[name] = stated[benchmark]["unit"]
                        values.setdefault(name, {}).setdefault(by_commit[results["commit_hash"]], []).append(value)
    order = [release.name for release in found]
    return [
        Figure(name, units[name], {one: values[name][one] for one in order if one in values[name]})
        for name in sorted(values)
    ]


def title(benchmark: str) -> str:
    """`bench_user.SendOneByOne.track_rate`: "send one by one"."""
    words = re.findall(r"[A-Z][a-z]*|[a-z_]+", benchmark.split(".")[-2])
    return " ".join(words).lower()


def merged(folders: Sequence[Path], into: Path) -> None:
    """Write results as asv does, of the medians of all rounds, for its own pages."""
    for path in result_files(folders[0]):
        same = [json.loads((folder / path.relative_to(folders[0])).read_text()) for folder in folders]
        for benchmark, row in same[0]["results"].items():
            at = same[0]["result_columns"].index("result")
            rows = [one["results"][benchmark][at] or [] for one in same if benchmark in one["results"]]
            row[at] = [
                statistics.median(numbers) if (numbers := [v for v in of if v is not None]) else None
                for of in zip(*rows, strict=False)
            ]
        write(into / path.relative_to(folders[0]), json.dumps(same[0]))
    for path in [folders[0] / "results" / "benchmarks.json", *(folders[0] / "results").glob("*/machine.json")]:
        write(into / path.relative_to(folders[0]), path.read_text())


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# -- the page -----------------------------------------------------------------------------------------------------


def steps(figure: Figure) -> list[Step]:
    """From each release to the next that has this figure."""
    return [
        Step(figure, a, b, [later / earlier for earlier, later in zip(before, after, strict=False) if earlier])
        for (a, before), (b, after) in itertools.pairwise(figure.values.items())
    ]


def drawing(figure: Figure) -> str:
    """An SVG: medians with their spread, worse steps red, better ones green."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Picture

    medians = {name: statistics.median(values) for name, values in figure.values.items()}
    with rc_context({"svg.hashsalt": figure.name, "svg.fonttype": "none"}):
        picture = Picture(figsize=(7, 2.4), layout="constrained")
        axes = picture.subplots()
        low = [medians[name] - min(values) for name, values in figure.values.items()]
        high = [max(values) - medians[name] for name, values in figure.values.items()]
        axes.errorbar(list(medians), list(medians.values()), yerr=[low, high], marker="o", color="#4060a0", capsize=3)
        for step in steps(figure):
            if step.kind:
                color = {"worse": "#c02020", "better": "#208030"}[step.kind]
                axes.plot([step.later], [medians[step.later]], marker="D", markersize=9, color=color, gid=step.kind)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(figure.unit)
        axes.yaxis.set_major_formatter(lambda value, _: number(value))
        drawn = io.StringIO()
        picture.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()[drawn.getvalue().index("<svg") :]


PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Engine over its releases</title><link rel="icon" href="data:,">
<style>body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }}
td, th {{ padding: .15rem .8rem; text-align: left }} .worse {{ color: #c02020 }} .better {{ color: #208030 }}
svg {{ max-width: 100%; height: auto }}</style></head><body>
<h1>Engine over its releases</h1>
<p>{rounds} rounds of {count} releases in turns. A step is marked when every round of it is more than {clear:.0%} better
or worse than the same round of the release before. <a href="asv/index.html">The same in asv's pages</a>, whose scripts
come from the network.</p>
<h2>Steps</h2>{table}
{graphs}</body></html>
"""


def page(found: Sequence[Figure], rounds: int) -> str:
    """All of it, in one file."""
    marked = [step for figure in found for step in steps(figure) if step.kind]
    rows = "".join(
        f'<tr class="{step.kind}"><td>{html.escape(step.figure.name)}</td><td>{html.escape(step.later)}</td>'
        f"<td>{ratio(step)} × {html.escape(step.earlier)}</td><td>{step.kind}</td></tr>"
        for step in sorted(marked, key=lambda step: step.kind, reverse=True)
    )
    head = "<tr><th>what</th><th>release</th><th>ratio</th><th></th></tr>"
    table = f"<table>{head}{rows}</table>" if rows else "<p>None.</p>"
    graphs = "".join(f"<h2>{html.escape(figure.name)}</h2>{drawing(figure)}" for figure in found)
    count = max((len(figure.values) for figure in found), default=0)
    return PAGE.format(rounds=rounds, count=count, clear=CLEAR, table=table, graphs=graphs)


def ratio(step: Step) -> str:
    return f"{statistics.median(step.ratios):.2f} ({min(step.ratios):.2f}–{max(step.ratios):.2f})"


def summary(found: Sequence[Figure]) -> str:
    """Of the newest release beside the one before it, in Markdown."""
    lines = ["| what | release | ratio to the one before | |", "|---|---|---|---|"]
    for figure in found:
        lines += [f"| {figure.name} | {step.later} | {ratio(step)} | {step.kind} |" for step in steps(figure)[-1:]]
    return "\n".join(lines)


def publish(folders: Sequence[Path], found: Sequence[Release], into: Path) -> list[Figure]:
    """Write the page and asv's own; returns the figures."""
    merged(folders, into)
    asv(configured(into, found[-1].commit), "publish", "--no-pull")
    drawn = figures(folders, found)
    write(into / "index.html", page(drawn, len(folders)))
    return drawn


def main() -> None:
    """Build, measure, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("revisions", nargs="*", help="tags or commits, oldest first [the newest tags v*]")
    parser.add_argument("--last", type=int, default=5, help="of the tags (5)")
    parser.add_argument("--rounds", type=int, default=3, help="at least 2 (3)")
    parser.add_argument("--bench", default=CHOSEN, help="what to run, as a regular expression (%(default)s)")
    parser.add_argument("--html", type=Path, default=HERE, help="where the pages go (.asv/history)")
    chosen = parser.parse_args()
    if chosen.rounds < 2 or chosen.last < 1:
        parser.error("--rounds must be at least 2, and --last at least 1")
    names = releases(chosen.revisions, chosen.last)
    found = [Release(name, git("rev-parse", f"{name}^{{commit}}"), built(name)) for name in names]
    found.append(Release("this tree", git("rev-parse", "HEAD"), ROOT))
    touch_free_memory()
    folders = measured(found, chosen.rounds, chosen.bench, chosen.html)
    print(summary(publish(folders, found, chosen.html)))
    print(f"\nThe page: {chosen.html / 'index.html'}", file=sys.stderr)


if __name__ == "__main__":
    main()
