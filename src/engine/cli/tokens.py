"""`engine tokens`: make tokens of roles, and take them away, in the file that `roles_file` of a broker names."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from engine.broker.rights.token_file import line_of, parse, text_of
from engine.cli import lines
from engine.cli.groups import Group, examples

_BYTES = 32
_file_option = click.option(
    "--file", "path", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The broker's roles_file."
)


@click.group(cls=Group)
def command() -> None:
    """Make and remove the tokens of roles.

    The file has their hashes alone; a broker reads it again when it changes.
    """


@command.command(epilog=examples("engine tokens create billing --file /etc/engine/roles"))
@click.argument("role")
@_file_option
def create(role: str, path: Path) -> None:
    """Make another token of a role, and show it this once."""
    token = secrets.token_urlsafe(_BYTES)
    line = line_of(role, token)
    before = _read(path)
    _write(path, before + ("" if not before or before.endswith("\n") else "\n") + line + "\n")
    lines.say(f"added a token of {role} to {path}; it is shown this once:")
    lines.line(token)


@command.command("list", epilog=examples("engine tokens list --file /etc/engine/roles"))
@_file_option
def list_tokens(path: Path) -> None:
    """List the roles that have tokens, and how many."""
    roles = list(parse(_read(path), str(path)).values())
    for role in sorted(set(roles)):
        lines.line(f"{role}\t{roles.count(role)}")


@command.command(epilog=examples("engine tokens revoke billing --file /etc/engine/roles"))
@click.argument("role")
@_file_option
def revoke(role: str, path: Path) -> None:
    """Remove all tokens of a role: its connections end within a second."""
    text = _read(path)
    kept = [line for line in text.splitlines(keepends=True) if line.rpartition(": ")[0].strip() != role]
    count = len(text.splitlines()) - len(kept)
    if not count:
        raise click.ClickException(f"{path} has no token of {role}")
    _write(path, "".join(kept))
    lines.say(f"removed {count} token{'s' if count > 1 else ''} of {role} from {path}")


def _read(path: Path) -> str:
    """Its text, checked; empty where there is no file."""
    text = text_of(path, str(path)) if path.exists() else ""
    parse(text, str(path))
    return text


def _write(path: Path, text: str) -> None:
    """Replace it in one step, readable by its owner alone."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(path)
