"""What a Cython module and its stub say about themselves, in one comparable form.

A module becomes `{"name": shape, "Class.name": shape}` of its public names. A function's shape is its parameters
(name, kind, whether it has a default); anything else is just "attribute", so that a property, a `cdef readonly`
field and an annotated name agree with each other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.source_tree import logical_lines, without_text

Shape = str | tuple[str, ...]

ATTRIBUTE = "attribute"
CLASS = "class"
SPECIAL = {"__init__", "__len__", "__iter__", "__getitem__", "__enter__", "__exit__"}

_DEFINITION = re.compile(
    r"^(?P<indent>\s*)(?:async\s+)?(?:def|cpdef)\s+(?P<head>[^(]*?)(?P<name>\w+)\s*\((?P<parameters>.*)\)[^)]*:"
)
_CLASS = re.compile(r"^(?P<indent>\s*)(?:cdef\s+)?class\s+(?P<name>\w+)")
_FIELD = re.compile(r"^\s+cdef\s+(?:public|readonly)\s+(?P<rest>.+)$")
_ANNOTATED = re.compile(r"^\s+(?P<name>[A-Za-z]\w*)\s*:\s*[^=]+(?:=.*)?$")
_CONSTANT = re.compile(r"^(?P<name>[A-Za-z]\w*)\s*(?::[^=]+)?=[^=]")
_DECORATOR = re.compile(r"^\s*@(?P<name>[\w.]+)")


def public(name: str) -> bool:
    """Whether users of the module may see it."""
    return not name.startswith("_") or name in SPECIAL


def of_stub(path: Path) -> dict[str, Shape]:
    """The public names of a .pyi."""
    return dict(_stub_names(ast.parse(path.read_text()).body, ""))


def _stub_names(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Shape]]:
    for node in body:
        if isinstance(node, ast.ClassDef) and public(node.name):
            yield prefix + node.name, CLASS
            yield from _stub_names(node.body, f"{node.name}.")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and public(node.name):
            yield prefix + node.name, ATTRIBUTE if _is_property(node) else _ast_parameters(node.args)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and public(node.target.id):
            yield prefix + node.target.id, ATTRIBUTE


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(d) or ast.unparse(d).endswith(".setter") for d in node.decorator_list)


def _ast_parameters(args: ast.arguments) -> tuple[str, ...]:
    positional = [*args.posonlyargs, *args.args]
    bare = len(positional) - len(args.defaults)
    shown = [a.arg + ("=" if i >= bare else "") for i, a in enumerate(positional)]
    if args.posonlyargs:
        shown.insert(len(args.posonlyargs), "/")
    if args.vararg or args.kwonlyargs:
        shown.append("*" + (args.vararg.arg if args.vararg else ""))
    pairs = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    shown += [a.arg + ("=" if default else "") for a, default in pairs]
    return tuple(shown + (["**" + args.kwarg.arg] if args.kwarg else []))


def of_cython(pyx: Path) -> dict[str, Shape]:
    """The public names of a .pyx, with the fields of classes that its .pxd declares."""
    pxd = pyx.with_suffix(".pxd")
    declared = dict(_cython_names(pxd.read_text(), fields_only=True)) if pxd.exists() else {}
    names = dict(_cython_names(pyx.read_text(), fields_only=False))
    return declared | names


def _cython_names(source: str, *, fields_only: bool) -> Iterator[tuple[str, Shape]]:
    owner, owner_indent, decorator = "", -1, ""
    skip_below: int | None = None  # inside a function: what it defines is nobody's business
    for _, text in logical_lines(source):
        indent = len(text) - len(text.lstrip())
        if skip_below is not None and indent > skip_below:
            continue
        skip_below = None
        if indent <= owner_indent:
            owner, owner_indent = "", -1
        if match := _DECORATOR.match(text):
            decorator = match["name"]
            continue
        prefix = f"{owner}." if owner else ""
        if match := _CLASS.match(text):
            owner, owner_indent = match["name"], indent
            if public(owner) and not fields_only:
                yield owner, CLASS
        elif (match := _DEFINITION.match(text)) and not fields_only:
            skip_below = indent
            yield from _definition(prefix, match, decorator)
        elif owner and public(owner) and (match := _FIELD.match(text)):
            yield from ((prefix + name, ATTRIBUTE) for name in _field_names(match["rest"]) if public(name))
        elif owner and public(owner) and not fields_only and (match := _ANNOTATED.match(text)):
            yield prefix + match["name"], ATTRIBUTE
        elif not owner and not fields_only and (match := _CONSTANT.match(text)) and public(match["name"]):
            yield match["name"], ATTRIBUTE
        elif re.match(r"^\s*cdef\s.*\(.*:\s*$", text):
            skip_below = indent
        decorator = ""


def _definition(prefix: str, match: re.Match[str], decorator: str) -> Iterator[tuple[str, Shape]]:
    name = "__init__" if match["name"] == "__cinit__" else match["name"]
    if not public(name) or (prefix and not public(prefix[:-1])):
        return
    if decorator.endswith(("property", ".setter", ".getter")):
        yield prefix + name, ATTRIBUTE
    else:
        yield prefix + name, tuple(_cython_parameters(match["parameters"], bool(prefix)))


def _cython_parameters(text: str, method: bool) -> Iterator[str]:
    """Parameters without their C types: the last word before a default is the name."""
    for position, part in enumerate(_split(text)):
        if part == "/" or part.startswith("*"):
            yield part.replace(" ", "").split(":")[0]
            continue
        head, has_default, _ = part.partition("=")
        head = head.split(":")[0] if re.match(r"^\s*\w+\s*:", head) else head
        words = re.findall(r"\w+", re.sub(r"\[.*?\]", " ", head).replace("not None", ""))
        name = "self" if method and position == 0 and words[-1] not in ("cls",) else words[-1]
        yield name + ("=" if has_default else "")


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, last = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append(text[last:i])
            last = i + 1
    return [p.strip() for p in [*parts, text[last:]] if p.strip()]


def _field_names(rest: str) -> list[str]:
    """The names of `cdef readonly int a, b`."""
    rest = re.sub(r"\[.*?\]", " ", rest)
    first, *others = rest.split(",")
    return [re.findall(r"\w+", first)[-1], *(re.findall(r"\w+", o)[-1] for o in others if o.strip())]


def docstrings(pyx: Path) -> dict[str, bool]:
    """Whether each public class and function of a .pyx is followed by a docstring."""
    physical = pyx.read_text().split("\n")
    found: dict[str, bool] = {}
    lines = list(logical_lines(pyx.read_text()))
    names = of_cython(pyx)
    owner, owner_indent = "", -1
    for index, (start, text) in enumerate(lines):
        indent = len(text) - len(text.lstrip())
        if indent <= owner_indent:
            owner, owner_indent = "", -1
        match = _CLASS.match(text) or _DEFINITION.match(text)
        if not match:
            continue
        name = f"{owner}.{match['name']}" if owner else match["name"]
        if _CLASS.match(text):
            owner, owner_indent = match["name"], indent
        if name in names:
            following = lines[index + 1][0] if index + 1 < len(lines) else start
            found[name] = physical[following - 1].lstrip().startswith(('"""', 'r"""', '"'))
    return found


def blank(source: str) -> str:
    """Cython text without strings and comments, for searches."""
    return without_text(source)
