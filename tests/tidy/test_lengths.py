"""Files stay under 600 lines, functions under 70, lines under 120 characters; and each file says its purpose."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.source_tree import ENGINE, ROOT, SRC, files, logical_lines, relative

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
LINE_CHARACTERS_MAX = 120

PYTHON = files(".py", ".pyi")
CYTHON = files(".pyx", ".pxd", under=SRC)

_CYTHON_FUNCTION = re.compile(
    r"^\s*(?:def|cpdef|cdef(?!\s*(?:class|extern|enum|struct|union|packed|public|readonly)\b))\s.*?(\w+)\s*\(.*:\s*$"
)


def python_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """(name, first line, lines) of every function of a Python file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def cython_functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """(name, first line, lines) of every function of a Cython file, by indentation."""
    lines = list(logical_lines(path.read_text()))
    physical = path.read_text().split("\n")
    for index, (start, text) in enumerate(lines):
        match = _CYTHON_FUNCTION.match(text)
        if not match:
            continue
        depth = len(text) - len(text.lstrip())
        following = (n for n, t in lines[index + 1 :] if len(t) - len(t.lstrip()) <= depth)
        end = next(following, len(physical) + 1) - 1
        while end > start and (not physical[end - 1].strip() or physical[end - 1].lstrip().startswith(("#", "@"))):
            end -= 1
        yield match[1], start, end - start + 1


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    return python_functions(path) if path.suffix in (".py", ".pyi") else cython_functions(path)


def test_files_stay_short():
    sizes = [(len(path.read_text().splitlines()), path) for path in PYTHON + CYTHON]
    faults = [f"{relative(p)} has {n} lines; {FILE_LINES_MAX} at most" for n, p in sizes if n > FILE_LINES_MAX]
    assert not faults, "\n" + "\n".join(faults)


def test_functions_stay_short():
    faults = [
        f"{relative(path)}:{line} {name}() has {count} lines; {FUNCTION_LINES_MAX} at most"
        for path in PYTHON + CYTHON
        for name, line, count in functions(path)
        if count > FUNCTION_LINES_MAX
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_lines_stay_short():
    faults = [
        f"{relative(path)}:{number} has {len(line)} characters; {LINE_CHARACTERS_MAX} at most"
        for path in PYTHON + CYTHON + files(".h", under=SRC)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > LINE_CHARACTERS_MAX
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_every_file_says_its_purpose():
    faults = []
    for path in [*files(".py", under=ENGINE), *files(".py", under=ROOT / "tests"), *CYTHON]:
        text = re.sub(r"\A(?:#[^\n]*\n|\s)*", "", path.read_text())
        if text and not text.startswith(('"""', 'r"""')):
            faults.append(f"{relative(path)} does not start with a docstring that says its purpose")
    assert not faults, "\n" + "\n".join(faults)


def test_cython_functions_are_seen(tmp_path: Path):
    """The reader above finds functions in every form Cython writes them in."""
    source = tmp_path / "x.pyx"
    source.write_text(
        "cdef int a(int x,\n           int y) noexcept nogil:\n    return 1\n\n\n"
        "cdef class C:\n    cdef readonly int n\n\n"
        "    def b(self):\n        if 1:\n            pass\n        return 2\n"
        "    # why\n    cpdef object c(self): \n        pass\n\n"
        "cdef extern from 'x.h':\n    int strlen(char*)\n"
    )
    assert list(cython_functions(source)) == [("a", 1, 3), ("b", 9, 4), ("c", 14, 2)]
