"""`engine config`: the configuration file of a broker or proxy is checked, its JSON Schema printed for editors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from engine.cli import lines
from engine.cli.groups import Group, examples
from engine.cli.serve_settings import check_serve
from engine.errors import InvalidConfigurationError

SCHEMA = Path(__file__).with_name("engine.schema.json")
PROXY_SCHEMA = Path(__file__).with_name("engine-proxy.schema.json")
_of_a_proxy = click.option("--proxy", is_flag=True, help="Of `engine proxy`, in place of `engine serve`.")


@click.group(cls=Group)
def command() -> None:
    """Check a configuration file, print its JSON Schema."""


@command.command(epilog=examples("engine config check /etc/engine/engine.toml"))
@click.argument("file", type=click.Path(dir_okay=False))
@_of_a_proxy
def check(file: str, proxy: bool) -> None:
    """Check FILE as `engine serve --config` reads it.

    All that is wrong is said at once, and nothing is started. Files of secrets that it names are read; the
    environment is not. With --proxy, it is checked as `engine proxy --config` reads it. What would be unwise in
    production, `engine doctor --config` says.
    """
    from engine.broker.settings.config import BrokerConfig
    from engine.cli.serve import command as serve

    def load_proxy() -> None:
        from engine.proxy.config import ProxyConfig

        ProxyConfig.load(file)

    faults: list[str] = []
    ours: tuple[Callable[[], object], ...] = (lambda: BrokerConfig.load(file), lambda: check_serve(Path(file), serve))
    for read in (load_proxy,) if proxy else ours:
        try:
            read()
        except InvalidConfigurationError as e:
            faults.append(str(e))
    if faults:
        raise InvalidConfigurationError("; ".join(dict.fromkeys(faults)))  # a file that is not TOML is one fault
    lines.line(f"{file} is valid")


@command.command(epilog=examples("engine config schema > engine.schema.json"))
@_of_a_proxy
def schema(proxy: bool) -> None:
    """Print the JSON Schema of the file.

    Editors that know it complete the keys and mark what is wrong, with a first line of the file such as
    #:schema ./engine.schema.json (Taplo, Even Better TOML).
    """
    lines.line((PROXY_SCHEMA if proxy else SCHEMA).read_text().removesuffix("\n"))
