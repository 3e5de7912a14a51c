"""`benchmarks/compare.py`: turns, ratios, marks, and a group that really runs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.tidy.source_tree import ROOT


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "compare", raising=False)
    import compare  # type: ignore[import-not-found]

    return compare


def test_ratios_are_taken_inside_a_turn_and_each_goes_first_in_turn(compare: ModuleType):
    said: list[str] = []
    base = iter([100.0, 200.0, 400.0])

    def run_base(group: str) -> dict[str, float]:
        said.append("base")
        return {"rate": next(base), "gone": 1.0}

    def run_here(group: str) -> dict[str, float]:
        said.append("here")
        return {"rate": {2: 110.0, 3: 220.0, 6: 440.0}[len(said)], "new": 1.0}

    rows, failures = compare.in_turns(["serve"], 3, run_base, run_here)
    assert said == ["base", "here", "here", "base", "base", "here"]
    assert not failures
    (row,) = rows
    assert (row.name, row.base, row.here) == ("rate", 200.0, 220.0)
    assert row.ratios == pytest.approx([1.1, 1.1, 1.1])
    assert compare.table(rows).splitlines()[-1] == "| rate | 200 | 220 | 1.10 (1.10–1.10) | + |"


@pytest.mark.parametrize(
    ("ratios", "mark"), [([1.1, 1.04], "+"), ([0.9, 0.96], "-"), ([1.1, 1.01], ""), ([0.9, 1.1], ""), ([2.0], "")]
)
def test_what_all_turns_say_is_marked(compare: ModuleType, ratios: list[float], mark: str):
    assert compare.Row("rate", 1.0, 1.0, ratios).mark == mark


def test_a_group_that_fails_is_named_and_the_others_go_on(compare: ModuleType):
    def broken(group: str) -> dict[str, float]:
        if group == "log":
            raise RuntimeError("no disk")
        return {"rate": 1.0}

    rows, failures = compare.in_turns(["log", "serve"], 1, broken, lambda group: {"rate": 1.0})
    assert failures == ["log, turn 1, BASE: no disk"]
    assert [row.name for row in rows] == ["rate"]


def test_a_group_of_this_tree_runs(compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ENGINE_BENCH_TINY", "1")
    monkeypatch.setenv("ENGINE_BENCH_DIR", str(tmp_path))
    assert compare.runner(ROOT, ROOT, False)("log")
