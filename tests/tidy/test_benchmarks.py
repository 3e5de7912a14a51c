"""Every benchmark runs once, tiny, so that none can rot.

With ENGINE_BENCH_TINY=1 a benchmark shrinks its sizes. The classes are those asv finds: any whose methods start
with time_, track_, peakmem_, mem_ or timeraw_. One that cannot run here (an optional dependency) is skipped by name.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import mmap
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.tidy.source_tree import ROOT
from tests.tidy.spark_marks import SPARK_MARKS

BENCHMARKS = ROOT / "benchmarks"
KINDS = ("time_", "track_", "peakmem_", "mem_")
FILES = sorted(BENCHMARKS.rglob("bench_*.py"))


def load(path: Path) -> ModuleType:
    """The module, by the name asv gives it, freshly run, so that it sees the environment of the test."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
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


def tiny_modules() -> list[ModuleType]:
    """Every file, loaded as where sizes are tiny: sizes are chosen when a module loads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENGINE_BENCH_TINY", "1")
        patch.syspath_prepend(str(ROOT))
        return [load(path) for path in FILES]


Case = tuple[type | None, Callable[..., Any], tuple[Any, ...]]


def cases() -> dict[str, Case]:
    """Name with arguments -> what it takes to run it."""
    return {
        f"{module.__name__.split('.')[-1]}.{name}{list(arguments) or ''}": (owner, function, arguments)
        for module in MODULES
        for name, owner, function in measures(module)
        for arguments in combinations(owner or function)
    }


MODULES = tiny_modules()
CASES = cases()


FOUND: dict[object, bytes] = {}


def found_once(owner: Any) -> bytes:
    """What its setup_cache returns: asv calls that once for all measures that have it, and hands each a copy."""
    function = owner.setup_cache
    if function not in FOUND:
        FOUND[function] = pickle.dumps(owner().setup_cache())
    return FOUND[function]


def run_once(name: str, owner: type | None, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """setup, the measure, teardown, as asv does it. Skips with the reason where setup raises NotImplementedError."""
    if owner is None:
        return function(*arguments)
    subject = owner()
    try:
        extra = (pickle.loads(found_once(owner)),) if hasattr(subject, "setup_cache") else ()
        getattr(subject, "setup", lambda *_: None)(*extra, *arguments)
    except NotImplementedError as e:  # asv's word for what makes no sense here
        pytest.skip(f"{name}: {e}")
    try:
        return getattr(subject, function.__name__)(*extra, *arguments)
    finally:
        getattr(subject, "teardown", lambda *_: None)(*extra, *arguments)


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.split(".")[-1])
def test_asv_finds_a_measure_in(module: ModuleType):
    assert list(measures(module)), f"{module.__name__} holds no measure that asv would find"


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.split(".")[-1])
def test_asv_takes_nothing_else_in(module: ModuleType):
    """asv looks at imported classes too: a method time_ms of theirs would be a benchmark, and stop the whole run."""
    foreign = [
        f"{name}.{method}"
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ != module.__name__
        for method in dir(value)
        if method.startswith(KINDS)
    ]
    assert not foreign, f"import the module instead of its class: {foreign}"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SPARK_MARKS if name.startswith("bench_spark") else ()) for name in CASES]
)
def test_benchmark_runs(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory):
    monkeypatch.setenv("ENGINE_BENCH_TINY", "1")
    monkeypatch.setenv("ENGINE_BENCH_DIR", str(tmp_path_factory.getbasetemp()))
    owner, function, arguments = CASES[name]
    result = run_once(name, owner, function, arguments)
    if function.__name__.startswith("track_"):
        assert isinstance(result, (int, float, type(None))), f"{name} tracks {result!r}, not a number"


SLOW = {"size": "P12", "open": "P13"}
OF_MANY_SERVERS = {"spark": "P16", "processes": "P18", "objects": "P19", "cluster": "P20"}


def rows_of(groups: set[str], monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[list[dict[str, Any]], str]:
    """(the rows of bars.py for which these groups have a figure, its table)."""
    monkeypatch.setenv("ENGINE_BENCH_DIR", str(folder))
    monkeypatch.setenv("ENGINE_BENCH_TINY", "1")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    bars, measured = importlib.import_module("bars"), importlib.import_module("measures").GROUPS
    values = {name: [value] for group in groups for name, value in measured[group](pinned=False).items()}
    rows = [bars.judged(bar, values, None) for bar in bars.BARS]
    return [row for row in rows if row["ours"]], bars.table(rows)


def without_reference(rows: list[dict[str, Any]]) -> list[str]:
    optional = (
        "best peer",
        "best synced peer",
        "best unsynced peer",
        "pulsar",
        "LMDB",
        "the build of ENGINE_BENCH_BASE",
    )
    return [row["what"] for row in rows if not row["reference"] and row["reference name"] not in optional]


def test_the_bars_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory):
    """The runner's groups, but those that take long: every bar has a figure and, where it was measured, a reference."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    groups = set(importlib.import_module("measures").GROUPS)
    left_out = SLOW | OF_MANY_SERVERS
    rows, table = rows_of(groups - left_out.keys(), monkeypatch, tmp_path_factory.getbasetemp())
    bars = [bar for bar in importlib.import_module("demands").BARS if bar.id not in left_out.values()]
    assert [row["what"] for row in rows] == [bar.what for bar in bars]
    assert not without_reference(rows)
    assert "| P10 |" in table


@pytest.mark.fuzz
@pytest.mark.parametrize("group", [
    pytest.param(group, marks=SPARK_MARKS if group == "spark" else ()) for group in OF_MANY_SERVERS
])  # fmt: skip
def test_the_bars_of_many_servers_are_measured(
    group: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
):
    rows, _ = rows_of({group}, monkeypatch, tmp_path_factory.getbasetemp())
    assert {row["bar"] for row in rows} == {OF_MANY_SERVERS[group]}
    assert not without_reference(rows)


def peers_file(path: Path) -> Path:
    """Results of the comparison with other brokers: three servers, one of which syncs first."""
    rows = {
        "pulsar": [("W1", {"rate": 40e3, "n": 100, "cpu_server": 0.002}), ("W5", {"rate": 12e3, "fsync": True})],
        "redis": [("W1", {"rate": 79e3, "n": 100, "cpu_server": 0.001}), ("W5", {"rate": 26e3, "fsync": False})],
        "kafka": [("W1", {"rate": 429e3, "n": 100, "cpu_server": 0.001}), ("W5", {"rate": 77e3, "fsync": False})],
        "engine-os": [("W1", {"rate": 1e9, "n": 100, "cpu_server": 0})],
    }
    runs = [
        {"name": name, "pin": True, "rows": [{"workload": work, **fields} for work, fields in found]}
        for name, found in rows.items()
    ]
    path.write_text(json.dumps({"runs": runs}))
    return path


@pytest.mark.parametrize(("workload", "options", "best"), [
    ("W1", {}, (429e3, "kafka")),
    ("W5", {"synced": True}, (12e3, "pulsar")),
    ("W5", {"synced": False}, (77e3, "kafka")),
    ("W1", {"synced": True}, (40e3, "pulsar")),
    ("W1", {"only": "pulsar"}, (40e3, "pulsar")),
    ("W1", {"only": "pulsar", "field": "server_us"}, (20.0, "pulsar")),
    ("W1", {"field": "server_us"}, (10.0, "kafka")),
    ("W1", {"only": "nats"}, None),
])  # fmt: skip
def test_the_best_peer_is_found_by_its_durability(
    workload: str,
    options: dict[str, Any],
    best: tuple[float, str] | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    demands = importlib.import_module("demands")
    peers = demands.Peers.load(str(peers_file(tmp_path / "results.json")), pinned=True)
    found = peers.best(demands.Peer(workload, **options))
    assert found == best if best is None else found == (pytest.approx(best[0]), best[1])


def test_free_memory_is_touched_before_the_dashboard_is_measured():
    done = subprocess.run(["make", "-n", "bench"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    touched = next(at for at, line in enumerate(lines) if line.endswith("python benchmarks/support.py"))
    assert touched < next(at for at, line in enumerate(lines) if " asv " in line and " run " in line)


def test_touched_memory_was_written_to_and_is_given_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    support, page = importlib.import_module("support"), mmap.PAGESIZE
    written: list[int] = []

    class Memory:
        def __init__(self, file: int, size: int) -> None:
            assert (file, size) == (-1, int(100 * 1024 * support.TOUCHED_SHARE))

        def __enter__(self) -> Memory:
            return self

        def __exit__(self, *exc: object) -> None:
            written.append(-1)

        def __setitem__(self, at: int, value: int) -> None:
            written.append(at)

    facts = tmp_path / "meminfo"
    facts.write_text("MemTotal: 200 kB\nMemFree: 100 kB\n")
    monkeypatch.setattr(support, "TINY", False)
    monkeypatch.setattr(support, "Path", lambda path: facts)
    monkeypatch.setattr(support.mmap, "mmap", Memory)
    support.touch_free_memory()
    assert written == [*range(0, int(100 * 1024 * support.TOUCHED_SHARE), page), -1]
