"""What is asked to explain itself: modules, classes, what a Protocol promises, and all that users call.

Elsewhere a good name stands alone, and a comment tells the algorithm where there is one.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.signatures import docstrings
from tests.tidy.source_tree import ENGINE, NATIVE, files, relative

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


def is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).split("[")[0].split(".")[-1] == "Protocol" for base in node.bases)


def undocumented(path: Path) -> Iterator[str]:
    """The public classes of a Python file, and the methods of its Protocols, that say nothing of themselves."""
    for name, node in definitions(ast.parse(path.read_text()).body):
        if not isinstance(node, ast.ClassDef):
            continue
        asked = [(name, node)]
        if is_protocol(node):
            asked += [(f"{name}.{inner}", method) for inner, method in definitions(node.body)]
        for what, one in asked:
            setter = any(ast.unparse(d).endswith(".setter") for d in one.decorator_list)
            if not setter and not ast.get_docstring(one):
                yield f"{relative(path)}:{one.lineno} {what} has no docstring"


def test_classes_and_protocols_are_documented():
    faults = [fault for path in PYTHON for fault in undocumented(path)]
    assert not faults, "\n" + "\n".join(faults)


def members(cls: type) -> Iterator[tuple[type, str, object]]:
    """(class, name, function or property) of what a public class offers and this project defines."""
    for definer in cls.__mro__:
        if definer.__module__.split(".")[0] == "engine":
            for name, member in vars(definer).items():
                kinds = inspect.isroutine(member) or inspect.isdatadescriptor(member)
                if kinds and not inspect.ismemberdescriptor(member) and not name.startswith("_"):
                    yield definer, name, member


@pytest.mark.skipif(not FRONT.exists(), reason="the front door is not there yet")
def test_what_users_call_is_documented():
    """Every method and property of the public classes, wherever it is defined; a base class may state its meaning."""
    engine = importlib.import_module("engine")
    public = [getattr(engine, name) for name in engine.__all__]
    offered = [(cls, *member) for cls in public if inspect.isclass(cls) for member in members(cls)]
    assert len(offered) > 100, "the public API was not found"
    faults = {
        f"{definer.__module__}.{definer.__qualname__}.{name} has no docstring"
        for cls, definer, name, member in offered
        if not (inspect.getdoc(member) or inspect.getdoc(getattr(cls, name)))
    }
    assert not faults, "\n" + "\n".join(sorted(faults))


def test_the_blocking_classes_explain_themselves():
    for path in files(".py", under=ENGINE / "sync"):
        for name, node in definitions(ast.parse(path.read_text()).body):
            assert "Async" not in (ast.get_docstring(node) or ""), f"{relative(path)} {name} sends its reader elsewhere"


@pytest.mark.parametrize("pyx", files(".pyx", under=NATIVE), ids=lambda p: p.stem)
def test_native_names_are_documented(pyx: Path):
    """Classes and functions, which are the boundary; the methods of the classes that users see."""
    front = FRONT.read_text()
    faults = [
        f"{relative(pyx)} {name} has no docstring"
        for name, has in docstrings(pyx).items()
        if not has
        and not name.split(".")[-1].startswith("__")
        and ("." not in name or f'"{name.split(".")[0]}"' in front)
    ]
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
