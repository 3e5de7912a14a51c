"""Commands that look at, or read from, a whole namespace."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_server import Server

Run = Callable[..., Any]


def produce(engine: Run, path: Path, topic: str, values: list[str], url: str) -> None:
    path.write_text("".join(f"{value}\n" for value in values))
    assert engine("produce", topic, "--file", path, "--url", url).code == 0


def test_consume_of_a_namespace(engine: Run, server: Server, tmp_path: Path):
    produce(engine, tmp_path / "in", "topic://a/b/one", ["1", "2"], server.url)
    produce(engine, tmp_path / "in", "topic://a/b/two", ["3"], server.url)
    read = ["consume", "--namespace", "a/b", "-s", "s", "--url", server.url]
    assert sorted(engine(*read, "-n", 3).out.split()) == ["1", "2", "3"]
    assert engine(*read, "--timeout", 0.2).out == ""  # acknowledged
    again = engine("consume", "--namespace", "a/b", "-s", "q", "--mode", "queue", "-n", 3, "--url", server.url)
    assert sorted(again.out.split()) == ["1", "2", "3"]
    assert engine(*read, "--property", "team=x", "--timeout", 0.2).code == 0


@pytest.mark.parametrize(
    "arguments",
    [["-s", "s"], ["t", "--namespace", "a/b", "-s", "s"], ["--namespace", "a/b"], ["t", "--property", "a=b"]],
)
def test_what_is_to_be_read_has_to_be_clear(engine: Run, arguments: list[str]):
    assert engine("consume", *arguments).code == 2


def test_topics_list_watch_goes_on(engine: Run, server: Server):
    assert engine("topics", "create", "topic://a/b/one", "--url", server.url).code == 0
    assert (
        engine("topics", "list", "--namespace", "a/b", "--pattern", "o.*", "--url", server.url).out.strip()[-3:]
        == "one"
    )
    command = [sys.executable, "-m", "engine", "topics", "list", "--namespace", "a/b", "--watch", "--url", server.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "+ topic://a/b/one\n"
        assert engine("topics", "create", "topic://a/b/two", "--url", server.url).code == 0
        assert process.stdout.readline() == "+ topic://a/b/two\n"
        assert engine("topics", "delete", "topic://a/b/one", "--yes", "--url", server.url).code == 0
        assert process.stdout.readline() == "- topic://a/b/one\n"
        process.send_signal(signal.SIGINT)
        process.wait(30)
    finally:
        process.kill()
        process.communicate()
