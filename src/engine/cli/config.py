"""`engine config`: a broker's configuration file is checked, and its JSON Schema printed for editors."""

from __future__ import annotations

from pathlib import Path

import click

from engine.cli import lines
from engine.cli.groups import Group, examples
from engine.cli.serve_settings import check_serve
from engine.errors import InvalidConfigurationError

SCHEMA = Path(__file__).with_name("engine.schema.json")


@click.group(cls=Group)
def command() -> None:
    """Check a configuration file, print its JSON Schema."""


@command.command(epilog=examples("engine config check /etc/engine/engine.toml"))
@click.argument("file", type=click.Path(dir_okay=False))
def check(file: str) -> None:
    """Check FILE as `engine serve --config` reads it.

    All that is wrong is said at once, and nothing is started. Files of secrets that it names are read; the
    environment is not. What would be unwise in production, `engine doctor --config` says.
    """
    from engine.broker.settings.config import BrokerConfig
    from engine.cli.serve import command as serve

    faults = []
    for read in (lambda: BrokerConfig.load(file), lambda: check_serve(Path(file), serve)):
        try:
            read()
        except InvalidConfigurationError as e:
            faults.append(str(e))
    if faults:
        raise InvalidConfigurationError("; ".join(dict.fromkeys(faults)))  # a file that is not TOML is one fault
    lines.line(f"{file} is valid")


@command.command(epilog=examples("engine config schema > engine.schema.json"))
def schema() -> None:
    """Print the JSON Schema of the file.

    Editors that know it complete the keys and mark what is wrong, with a first line of the file such as
    #:schema ./engine.schema.json (Taplo, Even Better TOML).
    """
    lines.line(SCHEMA.read_text().removesuffix("\n"))
