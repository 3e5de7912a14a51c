"""What the tidy tests read: the files of the tree, and what Python and Cython text imports and defines.

Nothing here imports the product, so that the tidy tests also run where nothing was built.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
ENGINE = SRC / "engine"
NATIVE = ENGINE / "_native"
SKIPPED = {".venv", ".git", "build", "dist", "__pycache__", ".asv", ".mypy_cache", ".ruff_cache", ".hypothesis"}

_STRINGS = re.compile(r'("""|\'\'\')(?:\\.|.)*?\1', re.DOTALL)
_COMMENT = re.compile(r"#.*")
_FROM = re.compile(r"^\s*from\s+(?P<module>\.*[\w.]*)\s+c?import\s+(?P<names>.+)$")
_IMPORT = re.compile(r"^\s*c?import\s+(?P<names>.+)$")


@dataclass(frozen=True)
class Import:
    """One imported module; `lazy` when it is inside a function, `typing_only` under `if TYPE_CHECKING`.

    `name` is what is taken from it, where the text says so.
    """

    module: str
    line: int
    lazy: bool = False
    typing_only: bool = False
    name: str = ""


def files(*suffixes: str, under: Path = ROOT) -> list[Path]:
    """The files below `under` that end in one of the suffixes, without what tools leave behind, in order."""
    return [
        p
        for p in _tree()
        if p.suffix in suffixes
        and p.is_relative_to(under)
        and not (p.suffix == ".c" and p.with_suffix(".pyx").exists())
    ]


@cache
def _tree() -> list[Path]:
    """All files of the tree in order, but for the folders of tools, which are not entered: they have many."""
    found = []
    for folder, inner, names in os.walk(ROOT):
        inner[:] = [n for n in inner if n not in SKIPPED and not n.startswith(".venv-") and not n.endswith(".egg-info")]
        found += [Path(folder, name) for name in names]
    return sorted(found)


def relative(path: Path) -> str:
    """How a path is written in a failure text."""
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """The dotted name of a source file below src/."""
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def exists(module: str) -> bool:
    """Whether a dotted name is a module or package below src/."""
    base = SRC.joinpath(*module.split("."))
    return base.is_dir() or any(base.with_name(base.name + s).exists() for s in (".py", ".pyx", ".pxd", ".pyi"))


def imports(path: Path) -> list[Import]:
    """Every import and cimport of a file, wherever it stands."""
    found = _python_imports(path) if path.suffix in (".py", ".pyi") else _cython_imports(path)
    return sorted(set(found), key=lambda i: (i.line, i.module))


def used_for_hints_alone(path: Path, name: str) -> bool:
    """Whether a Python file that imports `name` mentions it in annotations only (which are never evaluated)."""
    if path.suffix not in (".py", ".pyi"):
        return False
    tree = ast.parse(path.read_text())
    mentions = {n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name}
    hints = [getattr(n, field, None) for n in ast.walk(tree) for field in ("annotation", "returns")]
    hinted = {n for hint in hints if hint for n in ast.walk(hint)}
    imported_whole = all(a.asname is None for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names)
    return bool(mentions) and imported_whole and mentions <= hinted


def _package(path: Path) -> list[str]:
    """The package that a relative import in this file starts from."""
    return list(path.relative_to(SRC).parts[:-1])


def _targets(path: Path, module: str, names: list[str], level: int) -> Iterator[str]:
    """The modules that `from <level dots><module> import <names>` loads: a name may be a submodule."""
    if level:
        package = _package(path)
        base = package[: len(package) - level + 1]
        module = ".".join([*base, module] if module else base)
    for name in names:
        yield f"{module}.{name}" if module.split(".")[0] == "engine" and exists(f"{module}.{name}") else module


def _python_imports(path: Path) -> Iterator[Import]:
    def visit(node: ast.AST, lazy: bool, typing_only: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(a.name, node.lineno, lazy, typing_only) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [a.name for a in node.names]
            targets = _targets(path, node.module or "", names, node.level)
            for name, target in zip(names, targets, strict=True):
                yield Import(target, node.lineno, lazy, typing_only, name)
        inside = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            checking = typing_only or (guarded and child in node.body)  # type: ignore[attr-defined]
            yield from visit(child, inside, checking)

    yield from visit(ast.parse(path.read_text(), filename=str(path)), False, path.suffix == ".pyi")


def _cython_imports(path: Path) -> Iterator[Import]:
    for line, text in logical_lines(path.read_text()):
        lazy = text[:1].isspace()
        if match := _FROM.match(text):
            module = match["module"]
            level = len(module) - len(module.lstrip("."))
            names = [n.split()[0] for n in match["names"].strip("() ").split(",") if n.strip()]
            for target in _targets(path, module.lstrip("."), names, level):
                yield Import(target, line, lazy)
        elif match := _IMPORT.match(text):
            for name in match["names"].split(","):
                yield Import(name.split()[0], line, lazy)


def without_text(source: str) -> str:
    """Cython text without block strings and comments, line numbers kept."""
    blanked = _STRINGS.sub(lambda m: '""' + "\n" * m.group().count("\n"), source)
    return "\n".join(_COMMENT.sub("", line) for line in blanked.split("\n"))


def logical_lines(source: str) -> Iterator[tuple[int, str]]:
    """(number, text) of each logical line: brackets and backslashes joined, strings and comments gone."""
    pending, start, depth = "", 0, 0
    for number, line in enumerate(without_text(source).split("\n"), 1):
        start = start if pending else number
        depth += sum(line.count(c) for c in "([{") - sum(line.count(c) for c in ")]}")
        more = line.rstrip().endswith("\\")
        pending += " " + line.strip().rstrip("\\") if pending else line.rstrip().rstrip("\\")
        if depth <= 0 and not more:
            if pending.strip():
                yield start, pending
            pending, depth = "", 0
