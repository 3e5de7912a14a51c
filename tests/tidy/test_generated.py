"""Files that a tool writes are what it would write now."""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tests.tidy.source_tree import ROOT, relative

TOOL = ROOT / "tools" / "generate_admin.py"
MAP_TOOL = ROOT / "tools" / "draw_map.py"
PROTOCOL_TOOL = ROOT / "tools" / "compile_protocols.py"


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return loaded(TOOL)


@pytest.fixture(scope="module")
def map_tool() -> ModuleType:
    return loaded(MAP_TOOL)


@pytest.fixture(scope="module")
def protocol_tool() -> ModuleType:
    return loaded(PROTOCOL_TOOL)


def stale(texts: dict[Path, str]) -> list[str]:
    return [relative(path) for path, text in texts.items() if not path.exists() or path.read_text() != text]


def test_the_admin_methods_are_current(tool: ModuleType):
    found = stale(tool.generated())
    assert not found, f"not what the table of admin operations says; run `python {relative(TOOL)}`: {found}"


@pytest.mark.parametrize("change", ["a row less", "another signature", "another docstring"])
def test_a_change_of_the_table_is_seen(tool: ModuleType, monkeypatch: pytest.MonkeyPatch, change: str):
    first, *others = tool.METHODS
    if change == "another signature":
        others.insert(0, replace(first, parameters=first.parameters[:-1]))
    elif change == "another docstring":
        others.insert(0, replace(first, summary="Another."))
    monkeypatch.setattr(tool, "METHODS", others)
    assert stale(tool.generated()) == ["src/engine/model/admin_methods.py", "src/engine/sync/admin.py"]


def test_the_map_is_current(map_tool: ModuleType):
    page = map_tool.PAGE.read_text()
    assert map_tool.drawn(page) == page, f"the drawings are old; run `python {relative(MAP_TOOL)}`"


def test_a_change_of_the_house_is_seen(map_tool: ModuleType, monkeypatch: pytest.MonkeyPatch):
    page = map_tool.PAGE.read_text()
    lower, *others = map_tool.FLOORS["client"]
    monkeypatch.setitem(map_tool.FLOORS, "client", [*others, lower])
    assert map_tool.drawn(page) != page
    with pytest.raises(ValueError, match="must have"):
        map_tool.drawn("")


def test_the_descriptors_of_other_protocols_are_current(protocol_tool: ModuleType):
    """Compared as they are read: compilers of two versions may order their bytes differently."""
    read = FileDescriptorSet.FromString
    old = [
        relative(path)
        for path in protocol_tool.SOURCES
        if read(protocol_tool.compiled(path)) != read(path.with_suffix(".binpb").read_bytes())
    ]
    assert not old, f"not what is compiled of these; run `python {relative(PROTOCOL_TOOL)}`: {old}"
    assert set(protocol_tool.SOURCES) == set((ROOT / "src").rglob("*.proto"))


def test_a_change_of_a_message_is_seen(protocol_tool: ModuleType, tmp_path: Path):
    for path in protocol_tool.SOURCES:
        other = tmp_path / path.name
        other.write_text(re.sub(r"= 2;", "= 2000;", path.read_text(), count=1))
        assert protocol_tool.compiled(other) != path.with_suffix(".binpb").read_bytes()
    other.write_text("message")
    with pytest.raises(RuntimeError, match="must be compiled"):
        protocol_tool.compiled(other)


def test_the_files_on_the_map_exist(map_tool: ModuleType):
    """Paths below src/engine, and names that stand for a file of the folder named before."""
    missing, folder = [], Path()
    for name in re.findall(r"`([\w/]+\.(?:pyx|pxd|py))`", map_tool.PAGE.read_text()):
        path = ROOT / "src" / "engine" / name
        if "/" not in name and not path.exists():
            path = folder / name
        if not path.exists() and not (ROOT / name).exists():
            missing.append(name)
        folder = path.parent
    assert not missing, f"on the map, and nowhere else: {missing}"


def test_every_package_says_what_it_is_for():
    silent = [
        relative(path)
        for path in (ROOT / "src" / "engine").rglob("__init__.py")
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent, f"without a sentence: {silent}"
