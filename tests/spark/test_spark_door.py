"""The package uses nothing of the product but its front door."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import engine

BINDINGS = Path(__file__).resolve().parents[2] / "bindings"


def modules(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""


def test_bindings_come_through_the_front_door():
    sources = sorted(BINDINGS.rglob("*.py"))
    assert any(module == "engine" for path in sources for _, module in modules(path))
    faults = [
        f"{path.relative_to(BINDINGS)}:{line} imports {module}"
        for path in sources
        for line, module in modules(path)
        if module.startswith("engine.")
    ]
    assert not faults, faults


def test_they_take_what_is_public():
    sources = sorted(BINDINGS.rglob("*.py"))
    names = {
        node.attr
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "engine"
    }
    assert names <= set(engine.__all__), names - set(engine.__all__)
