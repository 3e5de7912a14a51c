"""Files that a tool writes are what it would write now."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from source_tree import ROOT, relative

TOOL = ROOT / "tools" / "generate_admin.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_admin", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
