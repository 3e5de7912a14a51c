"""Every comment that states an invariant says by which function it is checked, and that function is there.

"Invariant: what holds. Checked by f()", or "... by f() and g(), with ENGINE_DEBUG=1" where the check is costly.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.source_tree import ENGINE, files, relative

SOURCES = files(".py", ".pyx", ".pxd", under=ENGINE)
_STATED = re.compile(r"\bInvariants?\b[^.]*?:")
_CHECKED = re.compile(r"\bChecked\b.{0,40}?\bby ((?:\w+\(\)(?:, | and )?)+)")
_DEFINED = re.compile(r"^\s*(?:async\s+)?(?:def|c?p?def)\s+(?:[\w*\[\]. ]+\s)?\**(\w+)\s*\(", re.MULTILINE)


def blocks(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring and each run of comment lines of a file, on one line each."""
    text = path.read_text()
    for found in re.finditer(r'"""(.*?)"""', text, re.DOTALL):
        yield text.count("\n", 0, found.start()) + 1, " ".join(found[1].split())
    for found in re.finditer(r"(?:^[ \t]*#.*\n?|#.*\n)(?:^[ \t]*#.*\n?)*", text, re.MULTILINE):
        yield (
            text.count("\n", 0, found.start()) + 1,
            " ".join(re.sub(r"^\s*#+", " ", found[0], flags=re.MULTILINE).split()),
        )


def unchecked(text: str, functions: set[str]) -> str:
    """What is wrong with one block; empty for nothing."""
    stated = _STATED.search(text)
    if stated is None:
        return ""
    checked = _CHECKED.search(text, stated.end())
    if checked is None:
        return "states an invariant and not what checks it"
    missing = [name for name in re.findall(r"(\w+)\(\)", checked[1]) if name not in functions]
    return f"names checks that are not there: {', '.join(missing)}" if missing else ""


def defined() -> set[str]:
    return {name for path in SOURCES for name in _DEFINED.findall(path.read_text())}


def test_every_invariant_is_checked():
    functions = defined()
    faults = [
        f"{relative(path)}:{line} {fault}"
        for path in SOURCES
        for line, text in blocks(path)
        if (fault := unchecked(text, functions))
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_costly_checks_are_asked_for():
    """A `_check` that says ENGINE_DEBUG=1 is called under `checks.COSTLY` and nowhere else."""
    faults = []
    for path in files(".py", under=ENGINE):
        if not re.search(r"Checked by _check\(\),\s+with\s+ENGINE_DEBUG=1", path.read_text()):
            continue
        tree = ast.parse(path.read_text())
        asked = {
            id(call) for node in ast.walk(tree) if isinstance(node, ast.If) and is_costly(node) for call in calls(node)
        }
        every = {id(call): call for call in calls(tree)}
        assert every, f"{relative(path)} never calls _check()"
        faults += [
            f"{relative(path)}:{c.lineno} is not under checks.COSTLY" for i, c in every.items() if i not in asked
        ]
    assert not faults, "\n".join(faults)


def is_costly(node: ast.If) -> bool:
    return ast.unparse(node.test) == "checks.COSTLY"


def calls(tree: ast.AST) -> list[ast.Call]:
    """The calls of `self._check(…)` inside."""
    return [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "self._check"]


@pytest.mark.parametrize(("text", "right"), [
    ("Loop thread only. Invariant: a <= b.", False),
    ("Invariant: a <= b. Checked by _check().", True),
    ("Invariants: a <= b; c. Checked by _check() and look(), with ENGINE_DEBUG=1.", True),
    ("Invariant of all that follows: a. Checked once more by look(), with ENGINE_DEBUG=1.", True),
    ("Invariant: a <= b. Checked by nothing_of_this_name().", False),
    ("Checked by look(). Invariant: a <= b.", False),
    ("It holds whatever happens.", True),
])  # fmt: skip
def test_the_search_finds_what_it_should(text: str, right: bool):
    assert (unchecked(text, {"_check", "look"}) == "") is right


def test_blocks_are_found(tmp_path: Path):
    source = tmp_path / "x.pxd"
    source.write_text('"""One:\n   two."""\n# Three\n# four\ncdef struct S:\n    int a  # five\n    # six\n    int b\n')
    assert [text for _, text in blocks(source)] == ["One: two.", "Three four", "five six"]
    assert {"f", "g", "h"} <= set(_DEFINED.findall("def f(x):\n    cdef inline bint g(int x) nogil:\nasync def h():\n"))
