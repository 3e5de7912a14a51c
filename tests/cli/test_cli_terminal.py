"""What comes from outside moves no cursor: names, values, errors; and an old name is listed, shown and deleted."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console

import engine as product
import engine.control.service
from engine.cli import lines, output
from engine.cli.main import main
from engine.cli.top_view import TopicRow, View, rendered
from engine.errors import EngineError
from engine.model.names import TopicName
from tests.cli.cli_server import start_server, stop_server
from tests.cli.terminal import terminal

Run = Callable[..., Any]
OLD = "-rf *\u202ecafe\u0301 [red]"
FULL = f"topic://public/default/{OLD}"
SHOWN = FULL.replace("\u202e", "\\u202e")
VALUE = b"one\x1b[2Jtwo\xff\n\tthree\x9b"


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of an earlier build, with a topic and a subscription of that name."""
    with monkeypatch.context() as patch:
        patch.setattr(TopicName, "check_new", lambda self: None)
        patch.setattr(engine.control.service, "check_new_name", lambda name, what, pattern=True: name)
        with product.open(tmp_path / "own") as e:
            e.admin.create_topic(OLD)
            e.admin.create_subscription(OLD, OLD, initial_position="earliest")
            with e.producer(OLD) as p:
                p.send(VALUE, key="k\x1b]0;title\x07", properties={"p": "\x1b[31m"})
    return tmp_path / "own"


@pytest.fixture(params=["server", "data"])
def place(request: pytest.FixtureRequest, old: Path) -> Any:
    """How a command reaches it: over the wire and REST, and in this process."""
    if request.param == "data":
        yield ["--data", str(old)]
        return
    server = start_server(old)
    yield ["--url", server.url]
    stop_server(server)


def test_an_old_name_is_listed_shown_read_and_deleted(engine: Run, place: list[str], monkeypatch: Any):
    assert engine("topics", "list", *place).out == f"{FULL}\n", "a program reads the name as it is"
    assert engine("consume", FULL, "-n", 1, *place).out == VALUE.decode(errors="replace") + "\n"
    monkeypatch.setattr(lines, "on_terminal", lambda: True)
    assert engine("topics", "list", *place).out == f"{SHOWN}\n"
    assert json.loads(engine("topics", "list", "--json", *place).out) == [FULL]
    assert SHOWN in engine("topics", "describe", FULL, *place).out
    assert OLD.replace("\u202e", "\\u202e") in engine("subscriptions", "list", FULL, *place).out
    assert "\\u202e" in engine("topics", "stats", FULL, *place).out
    assert engine("subscriptions", "seek", *place, "--", FULL, OLD, "earliest").code == 0
    assert engine("subscriptions", "delete", "--yes", *place, "--", FULL, OLD).code == 0
    deleted = engine("topics", "delete", FULL, "--yes", *place)
    assert (deleted.code, deleted.err) == (0, f"deleted {SHOWN}\n")
    refused = engine("topics", "create", FULL, *place)
    assert refused.code == 1
    assert "must have no white space" in refused.err


def test_values_on_a_terminal(engine: Run, old: Path, monkeypatch: Any):
    monkeypatch.setattr(lines, "on_terminal", lambda: True)
    shown = engine("consume", FULL, "-n", 1, "--data", old, "--key-separator", "=").out
    assert shown == "k\\x1b]0;title\\x07=one\\x1b[2Jtwo\\xff\n\tthree\\x9b\n"
    line = engine("consume", FULL, "-n", 1, "--data", old, "--json").out
    assert line.isascii()
    assert json.loads(line)["topic"] == FULL


def test_a_real_terminal_and_a_pipe(old: Path):
    command = [sys.executable, "-m", "engine", "consume", FULL, "-n", "1", "--data", str(old)]
    piped = subprocess.run(command, capture_output=True, check=True)
    assert piped.stdout == VALUE + b"\n"
    with terminal() as (screen, seen):
        subprocess.run(command, stdout=screen, stderr=subprocess.DEVNULL, check=True)
    assert bytes(seen).replace(b"\r\n", b"\n") == b"one\\x1b[2Jtwo\\xff\n\tthree\\x9b\n"


def test_files_that_are_inspected(engine: Run, old: Path):
    log = max(old.rglob("*.log"), key=lambda path: path.stat().st_size)
    for arguments in ([log, "--messages"], [log], [old]):
        found = engine("inspect", *arguments).out
        assert "\x1b" not in found
        assert "\u202e" not in found
    assert "title\\x07" in engine("inspect", log, "--messages").out


def test_errors_are_one_plain_line(monkeypatch: Any, capfd: Any):
    def fail(*arguments: object, **options: object) -> None:
        raise EngineError("it says \x1b]0;x\x07 and \u202e")

    monkeypatch.setattr("engine.cli.topics.connect", fail)
    assert main(["topics", "list"]) == 1
    assert capfd.readouterr().err == "engine: it says \\x1b]0;x\\x07 and \\u202e\n"
    assert main(["topics", "describe", "a/\x1b[2J"]) == 2
    assert "\x1b" not in capfd.readouterr().err


def test_no_command_writes_a_line_past_lines():
    """Which is where characters are spelled out; an empty line has none."""
    own = {"lines.py", "main.py", "output.py"}
    files = [path for path in Path(lines.__file__).parent.glob("*.py") if path.name not in own]
    assert len(files) > 10
    assert [path.name for path in files if re.search(r"\bclick\.s?echo\((?!\))", path.read_text())] == []


def test_what_cannot_be_repaired_is_named_plainly(engine: Run, old: Path):
    damaged = old / "segments" / "public" / "default" / "dam\u202eaged" / "0000-ffff-0"
    damaged.mkdir(parents=True)
    (damaged / "0.log").write_bytes(b"no log" * 100)
    result = engine("inspect", "--repair", old)
    assert "not repaired" in result.err
    assert "dam\\u202eaged" in result.err
    assert "\u202e" not in result.err


def test_questions_are_plain(capfd: Any, monkeypatch: Any):
    asked = []
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda prompt: asked.append(prompt) or "n")
    with pytest.raises(click.Abort):
        lines.confirm("Delete a\x1b[2J\u202e?")
    assert (capfd.readouterr().out + asked[0]).startswith("Delete a\\x1b[2J\\u202e?")


def test_tables_show_text_as_it_is_and_nothing_else(capfd: Any):
    output.print_table(["name"], [["[red]a\x1b[2J[/red]"]], title="t\u202e[b]")
    output.print_facts([("x\x07[i]", "[link=http://x]y\n")], title="t")
    shown = capfd.readouterr().out
    assert "[red]a\\x1b[2J[/red]" in shown
    assert "t\\u202e[b]" in shown
    assert "x\\x07[i]" in shown
    assert "[link=http://x]y\\n" in shown


def test_the_live_view(capfd: Any):
    row = TopicRow("t\x1b[2J[red]\u202e", 1, 0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, False)
    view = View("b\x1b[2J", True, 0, 0, 0, 0, 0, {}, topics=[row])
    Console(width=200).print(rendered(view, note="n\x1b[2J"))
    shown = capfd.readouterr().out
    assert "\x1b" not in shown
    assert "t\\x1b[2J[red]\\u202e" in shown
