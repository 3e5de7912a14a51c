"""`engine serve --processes N` on real directories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.cli_server import Server, start_server, stop_server

PROCESSES = 2
Start = Callable[..., Server]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers of `PROCESSES`, which end with the test."""
    made: list[Server] = []

    def start_one(data: Path, *options: str) -> Server:
        made.append(start_server(data, "--processes", str(PROCESSES), *options))
        return made[-1]

    yield start_one
    for server in made:
        if server.process.poll() is None:
            stop_server(server)
