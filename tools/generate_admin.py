"""Writes the typed methods of the admin API from their table, `src/engine/model/admin_operations.py`.

    python tools/generate_admin.py            # after a change of the table
    python tools/generate_admin.py --check    # exits with 1 where a file is not what the table says

What it writes is checked in, so that editors and type checkers read it; a tidy test says when it is not current.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill, indent
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from engine.model import admin_answers as answers  # noqa: E402
from engine.model.admin_broker_operations import BROKER_OPERATIONS  # noqa: E402
from engine.model.admin_cluster_operations import CLUSTER_OPERATIONS  # noqa: E402
from engine.model.admin_limit_operations import LIMIT_OPERATIONS  # noqa: E402
from engine.model.admin_operations import OPERATIONS  # noqa: E402
from engine.model.admin_parameters import REQUIRED, Choice, Kind, Parameter  # noqa: E402
from engine.model.admin_requests import Operation  # noqa: E402
from engine.model.admin_rights_operations import RIGHTS_OPERATIONS  # noqa: E402

MARK = "# Generated from src/engine/model/admin_operations.py by tools/generate_admin.py: do not edit."
_WIDTH = 112  # of a docstring in a class
METHODS = [operation for operation in OPERATIONS if operation.method]

DICTIONARIES = '''
"""Answers of the admin API as clients get them: plain dictionaries, by the names of the specification."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict
'''
# The answers that are described so, each with what it is made of, and what they are called in Python.
DESCRIBED = (answers.TopicMetadata, answers.TopicNumbers)
RENAMED = {"Numbers": "Statistics"}

AWAITED = '''
"""`AdminMethods`: the operations of the admin API as methods that are awaited."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar

from engine.model import admin_broker_operations as brokers
from engine.model import admin_cluster_operations as cluster
from engine.model import admin_limit_operations as limiting
from engine.model import admin_operations as operations
from engine.model import admin_rights_operations as access
from engine.model.admin_dictionaries import TopicMetadata, TopicStatistics
from engine.model.admin_requests import Operation

R = TypeVar("R")


class AdminMethods(ABC):
    """Each checks its arguments and has `_call` carry the operation out."""

    @abstractmethod
    async def _call(self, operation: Operation[R], arguments: Mapping[str, Any]) -> R:
        """Carry it out, with checked arguments by name."""

    async def _ask(self, operation: Operation[R], *values: Any) -> R:
        return await self._call(operation, operation.check(*values))
'''

BLOCKING = '''
"""The blocking `Admin`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from engine.aio.portal import Portal
from engine.client import AsyncAdmin, TopicMetadata, TopicStatistics


class Admin:
    """What operators do with topics, subscriptions and segments. Made by a client (`client.admin`) or an engine.

    Every method raises ConnectError, TimeoutError, and InvalidArgumentError for malformed arguments; one that changes
    something also UnknownOutcomeError, when the connection was lost before the answer.
    """

    def __init__(self, portal: Portal, admin: AsyncAdmin) -> None:
        self._portal = portal
        self._admin = admin
'''


def awaited(operation: Operation[Any]) -> str:
    """Its method of AdminMethods."""
    modules = {"brokers": BROKER_OPERATIONS, "cluster": CLUSTER_OPERATIONS, "access": RIGHTS_OPERATIONS}
    modules["limiting"] = LIMIT_OPERATIONS
    module = next((name for name, rows in modules.items() if operation in rows), "operations")
    row = f"{module}.{operation.name.upper()}"
    return _method(
        "async def", operation, f"await self._ask({', '.join([row, *(p.name for p in operation.parameters)])})"
    )


def blocking(operation: Operation[Any]) -> str:
    """Its method of Admin."""
    values = ", ".join(f"{p.name}={p.name}" if p.keyword else p.name for p in operation.parameters)
    return _method("def", operation, f"self._portal.run(self._admin.{operation.name}({values}))")


def _method(define: str, operation: Operation[Any], expression: str) -> str:
    head = f"{define} {operation.name}({', '.join(_signature(operation))}) -> {operation.result.annotation}:"
    answer = expression if operation.result.nothing else f"return {expression}"
    body = f"{_docstring(operation.docstring)}\n{answer}"
    return f"{head}\n{indent(body, '    ')}\n"


def _signature(operation: Operation[Any]) -> Iterator[str]:
    yield "self"
    keywords = False
    for p in operation.parameters:
        if p.keyword and not keywords:
            keywords = True
            yield "*"
        yield _declared(p)


def _declared(p: Parameter) -> str:
    if p.default is REQUIRED:
        return f"{p.name}: {_type_of(p.kind)}"
    return f"{p.name}: {_type_of(p.kind)}{' | None' * (p.default is None)} = {p.default!r}"


def _type_of(kind: Kind) -> str:
    return f"Literal[{', '.join(map(repr, kind.choices))}]" if isinstance(kind, Choice) else kind.annotation


def _docstring(text: str) -> str:
    summary, *paragraphs = text.split("\n\n")
    whole = " ".join((summary, *paragraphs))
    if len(whole) < _WIDTH - 10 and "\n" not in whole:
        return f'"""{whole}"""'
    if not paragraphs:
        return f'"""{fill(summary, _WIDTH)}\n"""'
    return "\n\n".join((f'"""{summary}', *(fill(" ".join(p.split()), _WIDTH) for p in paragraphs))) + '\n"""'


def dictionaries() -> Iterator[str]:
    """A TypedDict for each struct that DESCRIBED holds, what it is made of first."""
    written: set[type] = set()

    def described(kind: Any) -> Iterator[str]:
        for inner in typing.get_args(kind):
            yield from described(inner)
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)) or kind in written:
            return
        written.add(kind)
        hints = typing.get_type_hints(kind)
        for hint in hints.values():
            yield from described(hint)
        lines = [f'class {_dictionary(kind)}(TypedDict):\n    """{kind.__doc__}"""\n']
        names = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
        lines += [f"    {names[name]}: {_annotation(hint)}" for name, hint in hints.items()]
        yield "\n".join(lines) + "\n"

    for kind in DESCRIBED:
        yield from described(kind)


def _dictionary(kind: type) -> str:
    name = kind.__name__
    for old, new in RENAMED.items():
        name = name.replace(old, new)
    return name


def _annotation(hint: Any) -> str:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        sure = [_annotation(each) for each in arguments if each is not msgspec.UnsetType]
        joined = " | ".join(sure)
        return joined if len(sure) == len(arguments) else f"NotRequired[{joined}]"
    if typing.get_origin(hint) is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if arguments:
        return f"{typing.get_origin(hint).__name__}[{', '.join(map(_annotation, arguments))}]"
    if hint is type(None):
        return "None"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _dictionary(hint)
    return "Any" if hint is Any else str(hint.__name__)


def _formatted(text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--config", str(ROOT / "pyproject.toml"), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=60).stdout


def generated() -> dict[Path, str]:
    """The text of each file."""
    source = ROOT / "src" / "engine"
    awaits = [awaited(operation) for operation in METHODS]
    blocks = [blocking(operation) for operation in METHODS]
    return {
        source / "model" / "admin_methods.py": _file(AWAITED, awaits),
        source / "sync" / "admin.py": _file(BLOCKING, blocks),
        source / "model" / "admin_dictionaries.py": _formatted(
            "\n".join([MARK.replace("operations", "answers"), DICTIONARIES, *dictionaries()])
        ),
    }


def _file(head: str, methods: list[str]) -> str:
    return _formatted(f"{MARK}\n{head}\n" + "\n".join(indent(method, "    ") for method in methods))


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, only say what is not current")
    check = parser.parse_args().check
    changed = {path: text for path, text in generated().items() if not path.exists() or path.read_text() != text}
    for path, text in changed.items():
        print(f"{path.relative_to(ROOT)} {'is not current' if check else 'was written'}")
        if not check:
            path.write_text(text)
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
