"""Secrets for commands come from the environment or a file: the process list shows arguments to all users."""

from __future__ import annotations

import sys

import click
from click.core import ParameterSource

STDIN = "-"  # in place of a file


def refuse_argument(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse a secret that is given as an argument: the process list would show it as long as the command runs."""
    if value is not None and is_argument(context, parameter):
        raise click.BadParameter(f"{_advice(parameter)}, since the process list shows arguments to all users")
    return value


def refuse_password(context: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """Refuse a URL with user and password, as those of etcd may have, that is given as an argument."""
    if url is not None and is_argument(context, parameter) and "@" in url.partition("://")[2].partition("/")[0]:
        raise click.BadParameter(
            "a URL must have no password here, since the process list shows arguments to all users; "
            f"set {parameter.envvar} in the environment"
        )
    return url


def is_argument(context: click.Context, parameter: click.Parameter) -> bool:
    """Whether the value of a parameter was given as an argument, and not in the environment."""
    return context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE


def read_token(option: str, path: str) -> str:
    """The one line of a file; of "-": the next line of standard input, the same one each time that this option is read.

    Raises InvalidConfigurationError, UsageError.
    """
    if path != STDIN:
        from engine.broker.settings.file import read_secret

        return read_secret(option, path)
    meta, key = click.get_current_context().meta, f"{__name__}.{option}"
    if key not in meta:
        line = sys.stdin.buffer.readline()  # what follows is the command's, as the messages to send
        meta[key] = line.decode(errors="replace").strip()
    if not meta[key]:
        raise click.UsageError(f"{option} - takes a line with the token from standard input, got none")
    return str(meta[key])


def _advice(parameter: click.Parameter) -> str:
    return f"give {parameter.opts[0]}-file FILE, or set {parameter.envvar} in the environment"
