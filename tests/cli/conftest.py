"""A served broker in a process of its own, and commands run against it in this one."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.cli.main import main
from tests.cli.cli_server import Server, start_server, stop_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server for one test."""
    made = start_server(tmp_path / "data")
    yield made
    stop_server(made)


@dataclass
class Result:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture
def usual() -> Iterator[None]:
    """The logging and collection that a command sets up in this process end with the test."""
    root = logging.getLogger()
    threshold = gc.get_threshold()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    gc.set_threshold(*threshold)


@pytest.fixture
def engine(usual: None, capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs one command line in this process."""

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        code = main([str(a) for a in arguments])
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run
