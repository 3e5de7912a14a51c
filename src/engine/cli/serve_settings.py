"""The options of `engine serve` from a file: its section [serve], under the settings of the broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from engine.cli.groups import did_you_mean
from engine.errors import InvalidConfigurationError

SECTION = "serve"
# Options that are keys of the broker's settings, too: each has one place in a file, outside of the section.
SETTINGS = {
    "cluster": "cluster_name",
    "advertise": "service_url",
    "objects": "objects",
    "auth_token_file": "auth_token_file",
    "insecure": "insecure",
}


def defaults_from_file(context: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    """The callback of --config: [serve] of the file has the defaults of the other options.

    Raises InvalidConfigurationError, which names the key.
    """
    if path is not None:
        context.default_map = {**(context.default_map or {}), **given_options(Path(path), context.command)}
    return path


def given_options(path: Path, command: click.Command) -> dict[str, Any]:
    """[serve] of a file. Raises InvalidConfigurationError, which names a key that is no option of the command."""
    given = read_serve(path)
    known = [p.name for p in command.params if p.name and p.name not in {*SETTINGS, "config"}]
    for key in given:
        if key in SETTINGS:
            where = f"{key} in [{SECTION}] of {path}"
            raise InvalidConfigurationError(f"{where}: write {SETTINGS[key]} above [{SECTION}]")
        if key not in known:
            near = did_you_mean(key, known)
            raise InvalidConfigurationError(f"{key} is no key of [{SECTION}] in {path}.{near}")
    return given


def check_serve(path: Path, command: click.Command) -> None:
    """Check [serve] of a file, with the values of its keys. Raises InvalidConfigurationError naming the key."""
    given = given_options(path, command)
    context = click.Context(command)
    for parameter in command.params:
        if parameter.name in given:
            try:
                parameter.process_value(context, given[parameter.name])
            except (click.ClickException, InvalidConfigurationError) as e:
                said = e.message if isinstance(e, click.ClickException) else str(e)
                raise InvalidConfigurationError(f"{parameter.name} in [{SECTION}] of {path}: {said}") from e


def read_serve(path: Path) -> dict[str, Any]:
    """The section [serve] of a file, {} without one. Raises InvalidConfigurationError."""
    from engine.broker.settings.file import read_toml

    section = read_toml(path).get(SECTION, {})
    if not isinstance(section, dict):
        raise InvalidConfigurationError(f"{SECTION} in {path} must be a section [{SECTION}], got {section!r:.80}")
    return section


def advertised(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """HOST:PORT as a broker's URL; a URL as it is. What it may say is checked with the other settings."""
    return text if text is None or "://" in text else f"engine://{text}"
