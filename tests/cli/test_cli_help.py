"""Help of every command, suggestions for mistyped names, names of former versions, exit codes, completion."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from engine.cli.groups import Group
from engine.cli.main import cli
from tests.cli.cli_server import Server

Run = Callable[..., Any]
Found = dict[str, click.Command]


def walk(command: click.Command, path: str = "engine") -> Iterator[tuple[str, click.Command]]:
    """Every command and group by its name as typed, without aliases."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from walk(found, f"{path} {name}")


EVERYTHING: Found = dict(walk(cli))
COMMANDS: Found = {name: command for name, command in EVERYTHING.items() if not isinstance(command, click.Group)}


def examples_of(command: click.Command) -> list[str]:
    lines = (command.epilog or "").splitlines()
    starts = [i for i, line in enumerate(lines) if line in ("Example:", "Examples:")]
    if not starts:
        return []
    found = []
    for line in lines[starts[0] + 1 :]:
        if not line.startswith("  "):
            break
        found.append(line.strip())
    return found


def parse(words: list[str]) -> str:
    """Parse a command line, and run nothing; the command's name. Raises a click error where it is wrong."""
    context = cli.make_context("engine", words)
    path = "engine"
    with contextlib.ExitStack() as opened:  # files
        while isinstance(context.command, click.Group):
            name, command, words = context.command.resolve_command(context, [*context._protected_args, *context.args])
            assert command is not None
            path = f"{path} {name}"
            context = opened.enter_context(command.make_context(name, words, parent=context))
    return path


def engine_lines(example: str) -> Iterator[list[str]]:
    """The arguments of each `engine` in a shell's pipeline, without redirections."""
    for part in example.split(" | "):
        words = shlex.split(part.split(" > ")[0])
        if words[0] == "engine":
            yield words[1:]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_parse(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for file in ("orders.tsv", "orders.parquet", "customers.csv.gz", "orders.csv", "orders.jsonl", "events.jsonl"):
        (tmp_path / file).touch()
    found = examples_of(COMMANDS[name])
    assert found, f"{name} has no example: give its decorator epilog=examples(…)"
    assert [name in map(parse, engine_lines(example)) for example in found] == [True] * len(found)


def test_the_examples_of_all_parse_too():
    assert len(examples_of(cli)) > 2
    for example in examples_of(cli):
        assert [parse(words) for words in engine_lines(example)]


@pytest.mark.parametrize("wrong", ["topics split orders", "topics list --segments 3", "consume t --format xml", "tops"])
def test_a_wrong_example_would_be_found(wrong: str):
    with pytest.raises(click.UsageError):
        parse(wrong.split())


@pytest.mark.parametrize("name", EVERYTHING)
def test_help_explains_every_option_and_cuts_no_sentence(engine: Run, name: str):
    command = EVERYTHING[name]
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    assert [option.opts for option in options if not option.help] == []
    shown = engine(*name.split()[1:], "--help")
    assert (shown.code, shown.err) == (0, "")
    listed = shown.out.partition("Commands:")[2].partition("\n\n")[0]
    assert "..." not in listed, "the first sentence of a command is too long for a list"


@pytest.mark.parametrize("name", [name for name, command in EVERYTHING.items() if isinstance(command, click.Group)])
def test_all_groups_suggest(name: str):
    assert isinstance(EVERYTHING[name], Group)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("topcs list", "No such command 'topcs'. Did you mean 'topics' or 'top'?"),
        ("subscription list t", "Did you mean 'subscriptions'?"),
        ("topics lst", "Did you mean 'list'?"),
        ("topics autoscale gte t", "Did you mean 'get'?"),
        ("brokers config ste a 1", "Did you mean 'set'"),
        ("consume t --timeot 1", "Did you mean"),
        ("xyzzy", "No such command 'xyzzy'.\n"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest(engine: Run, line: str, said: str):
    result = engine(*line.split())
    assert result.code == 2
    assert said in result.err


def test_a_mistyped_topic_is_answered_with_the_nearest(engine: Run, tmp_path: Path):
    place = ["--data", tmp_path / "data"]
    for topic in ("orders", "flights", "acme/shop/orders-eu"):
        engine("topics", "create", topic, *place)
    result = engine("consume", "ordres", "-n", 1, *place)
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "no topic ordres" in result.err
    assert "Did you mean 'orders'?" in result.err
    assert "Did you mean 'acme/shop/orders-eu'?" in engine("consume", "acme/shop/order-eu", "-n", 1, *place).err
    assert "Did you mean" not in engine("consume", "xyzzy", "-n", 1, *place).err


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("namespaces remove public/default", "namespaces unset public/default --all"),
        ("namespaces autoscale show public/default", "namespaces autoscale get public/default"),
        ("namespaces autoscale remove public/default", "namespaces autoscale unset public/default"),
        ("topics autoscale show t", "topics autoscale get t"),
        ("topics autoscale remove t", "topics autoscale unset t"),
    ],
)
def test_former_names_do_the_same_and_are_not_listed(engine: Run, tmp_path: Path, former: str, now: str):
    place = ["--data", tmp_path / "data"]
    engine("topics", "create", "t", *place)
    done = [engine(*line.split(), *place) for line in (former, now)]
    assert (done[0].code, done[0].out, done[0].err) == (done[1].code, done[1].out, done[1].err)
    assert done[0].code == 0
    *group, verb, _ = former.split()
    assert f"  {verb} " not in engine(*group, "--help").out


def test_settings_have_the_same_verbs_everywhere():
    """A group that can set something can get and unset it, under these names."""
    settable = {name.rpartition(" ")[0] for name in COMMANDS if name.endswith(" set")}
    assert len(settable) > 3
    missing = [
        f"{group} {verb}" for group in settable for verb in ("get", "unset") if f"{group} {verb}" not in COMMANDS
    ]
    assert missing == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str):
    command = [sys.executable, "-c", "from engine.cli.main import main; main()"]

    def run(**more: str) -> str:
        done = subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True, check=False)
        return done.stdout

    assert "_ENGINE_COMPLETE" in run(_ENGINE_COMPLETE=f"{shell}_source")
    if shell == "bash":
        words = {"COMP_WORDS": "engine topics auto", "COMP_CWORD": "2"}
        assert "autoscale" in run(_ENGINE_COMPLETE="bash_complete", **words)


def test_an_interrupted_command_exits_with_130(server: Server):
    command = [sys.executable, "-m", "engine", "consume", "t", "--create", "--url", server.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "created t\n" in iter(process.stderr.readline, "")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
