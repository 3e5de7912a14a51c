"""Every benchmark runs once, tiny, so that none can rot.

With ENGINE_BENCH_TINY=1 a benchmark shrinks its sizes. The classes are those asv finds: any whose methods start
with time_, track_, peakmem_, mem_ or timeraw_.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from source_tree import ROOT

BENCHMARKS = ROOT / "benchmarks"
KINDS = ("time_", "track_", "peakmem_", "mem_")
FILES = sorted(BENCHMARKS.glob("bench_*.py"))


def load(path: Path) -> ModuleType:
    """The module, by the name asv gives it, freshly run, so that it sees the environment of the test."""
    name = f"{BENCHMARKS.name}.{path.stem}"
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def combinations(holder: Any) -> list[tuple[Any, ...]]:
    """asv's `params`: one list, or a list of lists to combine."""
    params = getattr(holder, "params", None)
    if not params:
        return [()]
    nested = params if isinstance(params[0], (list, tuple)) else [params]
    return list(itertools.product(*nested))


def measures(module: ModuleType) -> Iterator[tuple[str, type | None, Callable[..., Any]]]:
    """(name, class or None, function) of everything asv would measure."""
    for name, value in vars(module).items():
        if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_"):
            for method in dir(value):
                if method.startswith(KINDS):
                    yield f"{name}.{method}", value, getattr(value, method)
        elif inspect.isfunction(value) and name.startswith(KINDS):
            yield name, None, value


def run_once(owner: type | None, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """setup, the measure, teardown, as asv does it."""
    if owner is None:
        return function(*arguments)
    subject = owner()
    extra = (subject.setup_cache(),) if hasattr(subject, "setup_cache") else ()
    try:
        getattr(subject, "setup", lambda *_: None)(*extra, *arguments)
        return getattr(subject, function.__name__)(*extra, *arguments)
    except NotImplementedError:
        return None  # asv's word for a combination that makes no sense
    finally:
        getattr(subject, "teardown", lambda *_: None)(*extra, *arguments)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_benchmark_runs(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("ENGINE_BENCH_TINY", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.syspath_prepend(str(ROOT))
    found = list(measures(load(path)))
    assert found, f"{path.name} holds no measure that asv would find"
    for name, owner, function in found:
        for arguments in combinations(owner or function):
            result = run_once(owner, function, arguments)
            if name.split(".")[-1].startswith("track_"):
                number = isinstance(result, (int, float, type(None)))
                assert number, f"{name}{arguments} tracks {result!r}, not a number"
