"""Public names are documented: every module, class and function that another room or a user may see."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from signatures import docstrings
from source_tree import ENGINE, NATIVE, files, relative

Function = (ast.FunctionDef, ast.AsyncFunctionDef)
PYTHON = files(".py", under=ENGINE)
FRONT = ENGINE / "__init__.py"


def definitions(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    """(dotted name, node) of the public classes, functions and methods of a module or class body."""
    for node in body:
        if isinstance(node, (ast.ClassDef, *Function)) and not node.name.startswith("_"):
            yield owner + node.name, node  # type: ignore[misc]
            if isinstance(node, ast.ClassDef):
                yield from definitions(node.body, f"{node.name}.")


def documented_elsewhere() -> set[str]:
    """Methods whose meaning a base class states: names documented in any class of the tree that others derive from."""
    bases: set[str] = {"Protocol", "ABC"}
    classes: dict[str, ast.ClassDef] = {}
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                classes[node.name] = node
                bases.update(ast.unparse(b).split("[")[0].split(".")[-1] for b in node.bases)
    protocols = {name for name, node in classes.items() if any("Protocol" in ast.unparse(b) for b in node.bases)}
    stated = [n for name in protocols | bases if name in classes for n in classes[name].body for name in [name]]
    return {n.name for n in stated if isinstance(n, Function) and ast.get_docstring(n)}


def test_public_names_are_documented():
    stated = documented_elsewhere()
    faults = []
    for path in PYTHON:
        for name, node in definitions(ast.parse(path.read_text()).body):
            derived = "." in name and node.name in stated
            setter = any(ast.unparse(d).endswith(".setter") for d in node.decorator_list)
            if not ast.get_docstring(node) and not derived and not setter:
                faults.append(f"{relative(path)}:{node.lineno} {name} has no docstring")
    assert not faults, "\n" + "\n".join(faults)


def test_the_blocking_classes_explain_themselves():
    for path in files(".py", under=ENGINE / "sync"):
        for name, node in definitions(ast.parse(path.read_text()).body):
            assert "Async" not in (ast.get_docstring(node) or ""), f"{relative(path)} {name} sends its reader elsewhere"


@pytest.mark.parametrize("pyx", files(".pyx", under=NATIVE), ids=lambda p: p.stem)
def test_native_names_are_documented(pyx: Path):
    faults = [f"{relative(pyx)} {name} has no docstring" for name, has in docstrings(pyx).items() if not has]
    faults = [f for f in faults if not f.split()[1].split(".")[-1].startswith("__")]
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.skipif(not FRONT.exists(), reason="the front door is not there yet")
def test_the_front_door_opens():
    """Every name of `engine.__all__` is there and says what it is; the long ones are classes and functions."""
    engine = importlib.import_module("engine")
    faults = []
    for name in engine.__all__:
        value = getattr(engine, name, None)
        if value is None:
            faults.append(f"engine.{name} is announced and missing")
        elif callable(value) and not getattr(value, "__doc__", None):
            faults.append(f"engine.{name} has no docstring")
    assert not faults, "\n".join(faults)
    assert set(engine.__all__) <= set(dir(engine)), "dir(engine) hides public names"
