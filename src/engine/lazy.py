"""Packages whose names are loaded when they are first used (PEP 562): a program pays for what it uses.

A package says where its names are defined, once for type checkers and once in a table:

    if TYPE_CHECKING:
        from engine.shapes.circle import Circle
    else:
        __getattr__ = loader(__name__, {"engine.shapes.circle": "Circle"})
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


def loader(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `homes`: the names that each module defines, separated by white space."""
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(home), name)
        setattr(sys.modules[package], name, found)  # it is not asked for again
        return found

    return load


def traced(made: T) -> T:
    """A producer or a consumer makes spans from now on, if the program has set a provider of traces before."""
    if "opentelemetry.trace" in sys.modules:
        import_module("engine.tracing").trace(made)
    return made
