"""What all commands have in common: examples at the end of the help, suggestions for mistyped names, former names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import click


def examples(*commands: str) -> str:
    """The epilog of a command: its examples, one a line, as typed into a shell."""
    title = "Example" if len(commands) == 1 else "Examples"
    return "\n".join(["\b", f"{title}:", *(f"  {line}" for line in commands)])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that names the most similar ones, with a space before it; nothing where none is."""
    close = difflib.get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(repr(one) for one in close)}?" if close else ""


class Group(click.Group):
    """A group of commands. `aliases`: other names of its commands, which the help does not list."""

    group_class = type  # groups made by a group are such groups too

    def __init__(self, *arguments: Any, aliases: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.aliases = dict(aliases or {})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or of that alias."""
        return super().get_command(ctx, self.aliases.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name. Raises a usage error that suggests similar names."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            known = [*self.list_commands(ctx), *self.aliases]
            ctx.fail(f"No such command {name!r}.{did_you_mean(name, known)}")
        return super().resolve_command(ctx, args)
