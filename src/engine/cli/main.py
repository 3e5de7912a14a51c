"""The `engine` command: its subcommands, loaded when they are asked for, and what an error looks like."""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
from collections.abc import Sequence

import click

from engine.cli.groups import Group, examples
from engine.errors import EngineError
from engine.model.text import plain

COMMANDS = {
    "serve": "engine.cli.serve",
    "proxy": "engine.cli.proxy",
    "topics": "engine.cli.topics",
    "subscriptions": "engine.cli.subscriptions",
    "tenants": "engine.cli.tenants",
    "grants": "engine.cli.grants",
    "limits": "engine.cli.limits",
    "namespaces": "engine.cli.namespaces",
    "transactions": "engine.cli.transactions",
    "brokers": "engine.cli.brokers",
    "cluster": "engine.cli.cluster",
    "objects": "engine.cli.objects",
    "tokens": "engine.cli.tokens",
    "produce": "engine.cli.produce",
    "consume": "engine.cli.consume",
    "dead-letters": "engine.cli.dead_letters",
    "export": "engine.cli.export",
    "import": "engine.cli.imports",
    "migrate": "engine.cli.migrate",
    "backup": "engine.cli.backup",
    "restore": "engine.cli.restore",
    "perf": "engine.cli.perf",
    "inspect": "engine.cli.inspect",
    "top": "engine.cli.top",
    "console": "engine.cli.console",
    "config": "engine.cli.config",
    "doctor": "engine.cli.doctor.command",
    "demo": "engine.cli.demo",
}

INTERRUPTED = 130
ERROR_SIZE_MAX = 2_000  # characters


class Commands(Group):
    """A group whose commands live in modules of their own: `engine serve` does not load what `engine perf` needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The attribute `command` of the command's module."""
        module = COMMANDS.get(cmd_name)
        command = importlib.import_module(module).command if module else None
        return command if isinstance(command, click.Command) else None

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. That the reader of our output has gone (`| head`) is no failure; click takes it for one."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            leave_the_pipe()
            return 0


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "engine serve --data ./data",
        "seq 1 1000 | engine produce numbers",
        "engine consume numbers -n 3",
        "engine topics describe numbers",
    )
    + "\n\nExit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.",
)
@click.version_option(package_name="engine", prog_name="engine")
def cli() -> None:
    """Run an elastic, durable message broker, and work with its topics and messages."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0 done, 1 failed, 2 misused, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if any("\0" in word for word in words):
            raise click.UsageError("an argument must have no NUL character in it")
        code = cli.main(words, prog_name="engine", standalone_mode=False)
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.ClickException as e:
        return show_misuse(e)
    except UnicodeEncodeError as e:  # names of files may be any bytes, all else is text
        if (wrong := next((word for word in words if not is_text(word)), None)) is None:
            raise
        return show_misuse(click.UsageError(f"an argument must be UTF-8, got {wrong!r} ({e.reason})"))
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except (EngineError, OSError) as e:
        click.echo(clipped(masked(f"engine: {plain(one_line(e))}")), err=True)
        return 1
    return code if isinstance(code, int) else 0


def show_misuse(error: click.ClickException) -> int:
    """Say what was wrong, and how the command is used; the exit code. Values that are quoted begin no lines."""
    shown = io.StringIO()
    error.show(shown)
    text = shown.getvalue()
    if not isinstance(error, click.MissingParameter):  # which lists choices in lines
        message = click.unstyle(error.format_message())
        text = text.replace(message, plain(message))
    click.echo(clipped(masked(plain(text, keep="\n"))), err=True, nl=False)
    return error.exit_code


def masked(text: str) -> str:
    """Without what stands before the host of URLs, wherever they were given: it may be a secret."""
    return re.sub(r"(://)[^\s/]*@", r"\1…@", text)


def is_text(word: str) -> bool:
    """Whether it can be written in UTF-8: arguments of other bytes arrive as halves of surrogate pairs."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_line(error: Exception) -> str:
    """An error as its text, or as its name where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def clipped(text: str) -> str:
    """An error may quote an argument of any size: its begin and its end say what a person can use."""
    if len(text) <= ERROR_SIZE_MAX:
        return text
    half = ERROR_SIZE_MAX // 2
    return f"{text[:half]} … ({len(text) - 2 * half:,} characters left out) … {text[-half:]}"


def leave_the_pipe() -> None:
    """The reader of our output has gone (`| head`): let the interpreter's last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
