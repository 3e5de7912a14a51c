"""The rooms and doors: who may import whom, and which files may touch the world outside."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.source_tree import (
    ENGINE,
    NATIVE,
    SKIPPED,
    Import,
    files,
    imports,
    module_name,
    relative,
    used_for_hints_alone,
    without_text,
)

LEAVES = {"errors", "limits", "clock", "checks", "lazy"}
BELOW_BROKER = LEAVES | {
    "aio", "_native", "model", "wire", "metadata", "storage", "storage.reads", "control", "control.policy"
}  # fmt: skip

# What lies in the storage room and knows nothing of brokers: the store of objects, and the parts of a log file. A
# client that reads files itself uses it.
READS = {
    f"engine.storage.{name}"
    for name in ("objects.location", "objects.ports", "objects.remote", "objects.profiles", "objects.requests",
                 "objects.together", "file.format", "file.index", "disk.config")
}  # fmt: skip

# Which rooms a room may import, besides itself.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "limits": set(),
    "clock": set(),
    "checks": set(),
    "lazy": set(),
    "aio": {"_native", "errors", "clock", "checks"},
    "_native": {"errors", "limits"},
    "model": {"errors", "limits"},
    "wire": {"_native", "model", "aio", "errors", "limits"},
    "metadata": {"_native", "model", "aio", "wire", *LEAVES},
    "storage": {"storage.reads", "_native", "model", "metadata", "aio", *LEAVES},
    "storage.reads": {"_native", "model", "aio", "errors", "limits"},
    "control": {"control.policy", "model", "metadata", "aio", *LEAVES},
    "control.policy": {"model"},
    "client": {"storage.reads", "_native", "model", "wire", "aio", *LEAVES},
    "broker": BELOW_BROKER,
    "proxy": BELOW_BROKER | {"broker"},
    "pulsar": {"_native", "broker", "model", "wire", "aio", "errors", "limits", "clock"},
    "processes": BELOW_BROKER | {"broker", "proxy", "pulsar"},
    "tracing": {"lazy", "model"},
    "prometheus": {"sync", "client", "errors"},
    "sync": {"client", "aio", "errors", "lazy"},
    "embedded": BELOW_BROKER | {"broker", "pulsar", "client", "sync"},
    "backups": {"storage", "storage.reads", "metadata", "_native", "client", "sync", "model", "aio", *LEAVES},
    "migration": {"_native", "client", "sync", "pulsar", "model", "wire", "aio", *LEAVES},
    "testing": BELOW_BROKER | {"broker", "proxy", "client", "sync", "embedded"},
    "pytest_plugin": {"testing", "embedded"},
    "console": {"broker", "client", "model", "aio", *LEAVES},
    "cli": {
        "broker",
        "proxy",
        "processes",
        "client",
        "sync",
        "embedded",
        "migration",
        "backups",
        "aio",
        "model",
        "errors",
    }
    | {"console", "pulsar"},
    "__init__": BELOW_BROKER | {"broker", "client", "sync", "embedded", "migration", "backups"},
    "__main__": {"cli"},
}

# The floors of a room, from the bottom up: what lies in one may import its own and those before it, for type hints as
# well. The files beside the floors stand above them all.
FLOORS: dict[str, list[str]] = {
    "storage": ["disk", "objects", "dedup", "file", "commit", "cursor"],
    "control": ["policy", "base", "transactions", "shape", "subscription", "topic"],
    "client": ["base", "net", "topic", "transact", "produce", "files", "consume", "many", "ranges", "views", "admin"],
    "_native": ["format", "wire", "produce", "consume", "serve", "pulsar", "jobs", "records", "calls"],
    "broker": [
        "settings", "rights", "limits", "pools", "transactions", "segment", "delivery", "hosting", "cluster", "upkeep",
        "session", "metrics", "admin",
    ],
}  # fmt: skip
# Floors that see nothing but these; `produce`, `consume` and `serve` never meet.
SEE_ONLY = {
    "_native": {floor: {"format"} for floor in ("format", "wire", "produce", "consume", "serve")}
    | {"jobs": set(), "records": set(), "calls": set()}
}
CIRCLE_MAX = 12  # files that know each other in a ring, type hints included

# The doors: which files may use a module through which the world comes in. Everybody else is handed what is
# behind the door: a Clock, a Disk, a random.Random, an Executor. (Imports for type hints alone are free.)
DOORS: dict[str, set[str]] = {
    # A process that stands still for a backup waits inside of a turn of its loop.
    "time": {"clock.py", "processes/backups.py"},
    # A client without a URL takes it from the environment.
    # The portal must know of forks, as of threads; who opens files for a client hands `aio/files.py` in.
    # The mark stands beside the file that SQLite opens itself. The logging module opens the audit log.
    "os": {
        "checks.py",
        "storage/disk/disk.py",
        "storage/disk/workers.py",
        "storage/file/writer.py",
        "aio/portal.py",
        "aio/files.py",
        "client/base/endpoint.py",
        "backups/public.py",
        "metadata/mark.py",
        "metadata/lockfile.py",
        "aio/forked.py",
        "wire/unix.py",
        "processes/life.py",
        "broker/rights/audit_file.py",
    },
    "random": {"backups/public.py", "client/client.py", "storage/store.py"},
    "uuid": set(),
    "secrets": set(),
    "threading": {"aio/portal.py", "aio/workers.py", "aio/locks.py", "aio/signals.py"},
    # Locks, and the sync of macOS.
    "fcntl": {"storage/disk/disk.py", "metadata/lockfile.py", "aio/files.py", "broker/rights/audit_file.py"},
    "sqlite3": {"metadata/image.py"},
    "shutil": set(),
    "tempfile": set(),
    "signal": {"aio/signals.py", "processes/life.py"},
    "subprocess": {"processes/spawn.py"},
}
TYPES = {("os", "PathLike")}  # names that are only words for a type
FREE_OF_DOORS = {"cli", "testing"}  # the outermost rooms: they hand the world in

SYNCS = r"\b(?:fsync|fdatasync|sync_file_range|msync|syncfs)\s*\("
NATIVE_DOORS = {SYNCS: {"filejob.pyx"}}  # what the Disk has opened, on threads without the interpreter lock
NATIVE_NEVER = {
    r"\b(?:open|openat|creat|fopen)\s*\(": "opens a file; the Disk does that and hands the descriptor in",
    SYNCS: "syncs; the storage room does that through the Disk",
    r"\bawait\b|\basync\s+def\b": "awaits; the native room knows no event loop",
    r"^\s*include\s+[\"']": "includes text; cimport a real module",
    r"^\s*(?:DEF|IF)\s": "uses DEF or IF; use an enum or a plain if",
}


def room_of(module: str) -> str:
    """The room that a module below src/engine belongs to; "" for the package root itself."""
    parts = module.split(".")[1:]
    if module in READS:
        return "storage.reads"
    if parts[:2] == ["control", "policy"]:
        return "control.policy"
    return parts[0] if parts else ""


def room_of_file(path: Path) -> str:
    inside = path.relative_to(ENGINE)
    return room_of(module_name(path)) or inside.stem


def faults_of(path: Path) -> list[str]:
    """What one file imports and must not."""
    room = room_of_file(path)
    allowed = MAY_IMPORT[room]
    faults = []
    for found in imports(path):
        if found.module.split(".")[0] != "engine":
            continue
        target = room_of(found.module)
        where = f"{relative(path)}:{found.line}"
        if not target:
            faults.append(f"{where} imports the package root; import the module that defines the name")
        elif target != room and target not in allowed:
            rooms = ", ".join(sorted(allowed)) or "nothing"
            faults.append(f"{where} imports {found.module}: {room} may import {rooms}")
    return faults


SOURCES = files(".py", ".pyx", ".pxd", ".pyi", under=ENGINE)


def test_every_file_belongs_to_a_room():
    strangers = [f"{relative(p)} is in no room of the table" for p in SOURCES if room_of_file(p) not in MAY_IMPORT]
    assert not strangers, "\n".join(strangers)


def test_rooms_look_down_never_up():
    faults = [fault for path in SOURCES if room_of_file(path) in MAY_IMPORT for fault in faults_of(path)]
    assert not faults, "\n" + "\n".join(faults)


def floors_of(module: str) -> tuple[str, str]:
    """The room and the floor of a module; the floor is "" where it stands above them all."""
    room, *rest = module.split(".")[1:] or [""]
    return room, rest[0] if len(rest) > 1 or (rest[:1] and rest[0] in FLOORS.get(room, ())) else ""


def climbs_of(path: Path) -> list[str]:
    """What one file imports from a floor above its own."""
    room, here = floors_of(module_name(path))
    if room not in FLOORS or not here:
        return []
    order, faults = FLOORS[room], []
    for found in imports(path):
        other, there = floors_of(found.module)
        if found.module.split(".")[0] != "engine" or other != room or there == here:
            continue
        seen = SEE_ONLY.get(room, {}).get(here, set(order[: order.index(here)]))
        if there not in seen:
            allowed = ", ".join(sorted(seen)) or "nothing"
            where = f"{relative(path)}:{found.line} climbs from {here} to {found.module}"
            faults.append(f"{where}; {here} may import {allowed}")
    return faults


def test_every_floor_is_in_the_table():
    folders = {
        (room, path.name)
        for room in FLOORS
        for path in (ENGINE / room).iterdir()
        if path.is_dir() and path.name not in SKIPPED
    }
    assert folders == {(room, floor) for room, floors in FLOORS.items() for floor in floors}


def test_floors_look_down_never_up():
    """Type hints count: a floor that knows the one above it by name cannot be understood without it."""
    climbing = {path: climbs_of(path) for path in SOURCES}
    faults = sorted({fault for found in climbing.values() for fault in found})
    assert not faults, "\n" + "\n".join(faults)


def test_no_large_circle_of_files():
    """Files that know each other in a ring, type hints included, have to be read together."""
    names = {module_name(p) for p in SOURCES}
    graph = {
        module_name(p): {i.module for i in imports(p) if i.module in names and i.module != module_name(p)}
        for p in files(".py", ".pyx", under=ENGINE)
    }
    large = [circle for circle in find_circles(graph) if len(circle) > CIRCLE_MAX]
    assert not large, "\n".join(f"{len(circle)} files in one circle: {', '.join(circle)}" for circle in large)


def find_circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected parts of more than one node (Tarjan), each in order of name."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return [circle for circle in found if len(circle) > 1]


def door_faults(path: Path) -> list[str]:
    """Where one file takes time, randomness or the system for itself."""
    inside = path.relative_to(ENGINE).as_posix()
    faults = []
    for found in imports(path):
        door = found.module.split(".")[0]
        if door not in DOORS or inside in DOORS[door]:
            continue
        hint = found.typing_only or (found.module, found.name) in TYPES or used_for_hints_alone(path, door)
        if not hint:
            allowed = ", ".join(sorted(DOORS[door])) or "the outermost rooms"
            where = f"{relative(path)}:{found.line} imports {found.module}"
            faults.append(f"{where}; only {allowed} may: take it as a constructor argument")
    return faults


def test_the_world_comes_in_by_hand():
    inner = [p for p in SOURCES if room_of_file(p) not in FREE_OF_DOORS]
    faults = [fault for path in inner for fault in door_faults(path)]
    assert not faults, "\n" + "\n".join(faults)


def test_nobody_asks_the_calendar():
    """`datetime.now()` is a clock too."""
    faults = [
        f"{relative(path)}:{call.lineno} reads the calendar; ask the Clock"
        for path in SOURCES
        if room_of_file(path) not in FREE_OF_DOORS and path.suffix == ".py"
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if call.func.attr in ("now", "utcnow", "today") and ast.unparse(call.func.value) in ("datetime", "date")
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_the_broker_reads_entries_through_native_code_alone():
    """The format of an entry is in `_native/format`, once."""
    faults = [
        f"{relative(path)}:{found.line} imports struct; read entries with engine._native.format"
        for path in files(".py", under=ENGINE / "broker")
        for found in imports(path)
        if found.module.split(".")[0] == "struct"
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_doors_that_are_listed_exist():
    missing = [f"{door}: {name}" for door, names in DOORS.items() for name in names if not (ENGINE / name).exists()]
    if not (ENGINE / "__init__.py").exists():
        pytest.skip("the package is not complete yet")
    assert not missing, f"listed as doors, but not there: {missing}"


def test_native_opens_syncs_and_awaits_nothing():
    faults = [
        f"{relative(path)}:{number} {sentence}"
        for path in files(".pyx", ".pxd", under=NATIVE)
        for number, line in enumerate(without_text(path.read_text()).split("\n"), 1)
        for pattern, sentence in NATIVE_NEVER.items()
        if re.search(pattern, line) and path.name not in NATIVE_DOORS.get(pattern, ())
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_modules_import_each_other_in_one_direction():
    """No cycle among modules, counting what is imported when a module loads."""
    names = {module_name(p) for p in SOURCES}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for path in SOURCES:
        at_load = (i.module for i in imports(path) if not i.lazy and not i.typing_only)
        graph[module_name(path)] |= {m for m in at_load if m in names and m != module_name(path)}
    cycle = find_cycle(graph)
    assert not cycle, "import cycle: " + " -> ".join(cycle)


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """The nodes of one cycle, first repeated at the end; empty when there is none."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for target in sorted(graph[node]):
            if cycle := walk(target, [*path, node]):
                return cycle
        done.add(node)
        return []

    return next((cycle for node in sorted(graph) if (cycle := walk(node, []))), [])


@pytest.mark.parametrize(
    ("file", "text", "module", "kept"),
    [
        ("client/x.py", "import engine.broker.server", "engine.broker.server", False),
        ("client/x.py", "def f():\n    from engine.broker import server", "engine.broker", False),
        ("client/x.py", "from ..storage import segment", "engine.storage", False),
        ("client/x.py", "import engine", "engine", False),
        ("client/x.py", "from engine import Client", "engine", False),
        ("client/x.py", "from engine.wire import commands", "engine.wire.commands", True),
        ("_native/x.pyx", "from engine.model cimport names", "engine.model", False),
        ("_native/x.pyx", "cimport engine.storage.disk.disk as d", "engine.storage.disk.disk", False),
        (
            "_native/x.pyx",
            "from engine._native.format.entry cimport (\n  load32,\n  load64)",
            "engine._native.format.entry",
            True,
        ),
        ("control/policy/x.py", "from engine.metadata import store", "engine.metadata.store", False),
        ("control/x.py", "from engine.control.policy import x", "engine.control.policy", True),
    ],
)
def test_the_layer_test_sees(file: str, text: str, module: str, kept: bool, monkeypatch: pytest.MonkeyPatch):
    """The readers above find an import in every form it can be written in."""
    path = ENGINE / file
    monkeypatch.setattr(Path, "read_text", lambda self: text if self == path else pytest.fail(f"read {self}"))
    found = imports(path)
    assert [i.module for i in found][:1] == [module] or found[0].module.startswith(module)
    assert bool(faults_of(path)) is not kept


@pytest.mark.parametrize(
    ("file", "text", "faults"),
    [
        ("storage/disk/x.py", "from engine.storage.file.format import Header", 1),
        ("storage/file/x.py", "from engine.storage.disk.disk import Disk", 0),
        ("storage/file/x.py", "from engine.storage.file import format", 0),
        ("storage/file/x.py", "from engine.storage.store import SegmentStore", 1),
        ("storage/store.py", "from engine.storage.cursor.cursor import Cursor", 0),
        ("broker/pools/x.py", "if TYPE_CHECKING:\n    from engine.broker.session.connection import Connection", 1),
        ("broker/server.py", "from engine.broker.admin.rest import AdminServer", 0),
        ("_native/serve/x.pyx", "from engine._native.consume.batch cimport Batch", 1),
        ("_native/serve/x.pyx", "from engine._native.format cimport entry as e", 0),
        ("_native/jobs/x.pyx", "from engine._native.format.entry cimport Entry", 1),
        ("wire/x.py", "from engine.wire.framing import Frame", 0),
    ],
)
def test_climbing_is_seen(file: str, text: str, faults: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "read_text", lambda self: text)
    assert len(climbs_of(ENGINE / file)) == faults


def test_circles_are_seen():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert find_circles(graph) == [["d", "e"], ["a", "b", "c"]]


def test_type_hints_are_not_doors(monkeypatch: pytest.MonkeyPatch):
    path = ENGINE / "client/x.py"
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import random\nelse:\n    import os\n"
    monkeypatch.setattr(Path, "read_text", lambda self: text)
    assert [i for i in imports(path) if i.typing_only] == [Import("random", 3, typing_only=True)]
    assert len(door_faults(path)) == 1


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("import random\ndef f(rng: random.Random) -> None: ...", 0),
        ("import random\ndef f(rng: random.Random) -> None:\n    rng = rng or random.Random()", 1),
        ("from random import random\nrandom()", 1),
        ("def f():\n    import time\n    return time.time()", 1),
        ("import os.path", 1),
        ("from os import PathLike", 0),
        ("from os import PathLike, urandom", 1),
    ],
)
def test_doors_are_seen(text: str, faults: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "read_text", lambda self: text)
    assert len(door_faults(ENGINE / "client/x.py")) == faults
