"""Secrets for commands come from the environment or a file: the process list shows arguments to all users."""

from __future__ import annotations

import click
from click.core import ParameterSource

from engine.cli import lines


def refuse_argument(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse a secret that is given as an argument: the process list would show it as long as the server runs."""
    if value is not None and is_argument(context, parameter):
        raise click.BadParameter(f"{_advice(parameter)}, since the process list shows arguments to all users")
    return value


def warn_of_argument(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Warn of a secret that is given as an argument."""
    if value is not None and is_argument(context, parameter):
        lines.say(f"engine: warning: the process list shows {parameter.opts[0]} to all users; {_advice(parameter)}")
    return value


def is_argument(context: click.Context, parameter: click.Parameter) -> bool:
    """Whether the value of a parameter was given as an argument, and not in the environment."""
    return context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE


def _advice(parameter: click.Parameter) -> str:
    return f"give {parameter.opts[0]}-file FILE, or set {parameter.envvar} in the environment"
