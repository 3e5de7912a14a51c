"""One wheel and one clean environment for each Python of this machine; for this one, an application's packages, too.

Each wheel is a minute or two of a compiler: in the short form this process's Python and the newest, else those between.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_server import Server, stop_server
from tests.firstuse import wheels
from tests.firstuse.pythons import interpreter, minors
from tests.firstuse.wheels import MAIN, Installed

# Besides the demo's, pandas and pyarrow. What pages name, and what protocols of others need.
APPLICATIONS = ["duckdb", "fastapi", "httpx2", "opentelemetry-sdk", "polars", "protobuf", "uvicorn"]


def environment(minor: int) -> Installed:
    """Skips the test where the machine has no such Python."""
    found = interpreter(minor)
    if not isinstance(found, Path):
        pytest.skip(found)
    return wheels.installed(minor, found, "demo", APPLICATIONS if minor == MAIN else [])


def in_turn() -> list[Any]:
    """The versions, as parameters."""
    found = minors()
    return [
        pytest.param(minor, id=f"3.{minor}", marks=() if minor in (MAIN, max(found)) else pytest.mark.fuzz)
        for minor in found
    ]


@pytest.fixture(scope="session", params=in_turn())
def everywhere(request: pytest.FixtureRequest) -> Installed:
    """The environment of each Python in turn."""
    return environment(request.param)


@pytest.fixture(scope="session")
def installed() -> Installed:
    """The environment of this process's Python."""
    return environment(MAIN)


@pytest.fixture
def broker(installed: Installed, tmp_path: Path) -> Iterator[Server]:
    """`engine serve` of that environment."""
    made = installed.serve(tmp_path / "data")
    yield made
    stop_server(made)
