"""`engine doctor`: the command."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.cli import output
from engine.cli.connection import access_options, client_options, json_option
from engine.cli.doctor.finding import Check, Finding, State, run_checks
from engine.cli.groups import examples
from engine.cli.values import service_url
from engine.errors import InvalidConfigurationError
from engine.model.text import plain

if TYPE_CHECKING:
    from engine.broker.settings.config import BrokerConfig

MARKS = {State.GOOD: ("ok", "green"), State.WARNING: ("warning", "yellow"), State.PROBLEM: ("PROBLEM", "bold red")}
STEPS = 4  # an address takes so many steps at most, each with a part of the time


@click.command(
    epilog=examples(
        "engine doctor --data /var/lib/engine --config /etc/engine/engine.toml",
        "engine doctor --url engine://broker.example.org:6650 --json",
    )
)
@click.option("--url", type=service_url, envvar="ENGINE_URL", metavar="URL", help="Check this server; also ENGINE_URL.")
@click.option("--proxy", "proxies", type=service_url, multiple=True, metavar="URL", help="And this proxy; repeatable.")
@click.option("--data", type=click.Path(), help="Check this data directory, whether a server has it open or not.")
@click.option(
    "--config", type=click.Path(), help="Check this configuration file, with the variables ENGINE_… that override it."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1, max=600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="For all checks, which run at the same time.",
)
@json_option
@access_options
def command(
    url: str | None, proxies: tuple[str, ...], data: str | None, config: str | None, timeout: float, as_json: bool
) -> int:
    """Find what would fail in production, with its remedy.

    Checks this machine, and what the options name. It writes nothing but a file without a name in the data directory,
    which is gone when it ends. Exit codes: 0 all is well, 1 there are warnings, 2 there are problems.
    """
    from engine.cli.doctor import machine
    from engine.cli.doctor.configuration import configuration
    from engine.cli.doctor.disk import data_directory

    loaded = _loaded(config)
    checks: dict[str, Check] = {
        "versions": machine.versions,
        "limits": partial(machine.limits, loaded),
        "memory": partial(machine.memory, loaded),
        "kernel": machine.kernel,
        "clock": machine.clock,
    }
    if config is not None:
        checks["configuration"] = partial(configuration, config, os.environ)
    if data is not None:
        checks["disk"] = partial(data_directory, Path(data), timeout * 0.9)
    for name, one in [*([("server", url)] if url is not None else []), *(("proxy", proxy) for proxy in proxies)]:
        checks |= _network(name, one, timeout / STEPS)
    findings = run_checks(checks, timeout)
    worst = max(finding.state for finding in findings)
    if as_json:
        output.print_json({"state": worst.name.lower(), "findings": [finding.to_json() for finding in findings]})
    else:
        _print(findings)
    return int(worst)


def _loaded(path: str | None) -> BrokerConfig:
    """The configuration whose limits count; the defaults where it is invalid, which is a finding of its own."""
    from engine.broker.settings.config import BrokerConfig

    try:
        return BrokerConfig.load(path, environment=os.environ)
    except InvalidConfigurationError:
        return BrokerConfig()


def _network(name: str, url: str, timeout: float) -> dict[str, Check]:
    from engine.cli.doctor import network
    from engine.client.base.endpoint import Endpoint, ServiceUrl

    given = client_options(url)
    token, tls = given.get("token"), given.get("tls")
    assert token is None or isinstance(token, str)  # the command line knows no functions
    server = network.Server(ServiceUrl.parse(url), token, Endpoint.of(url, token, tls).context, timeout)
    checks: dict[str, Check] = dict(network.address_checks(server, name))
    if name == "server":
        checks["server"] = partial(network.service, server)
    return checks


def _print(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "check", "found and what to do"):
        table.add_column(column, overflow="fold", no_wrap=column == "check")
    for finding in findings:
        mark, style = MARKS[finding.state]
        remedy = Text(f"\n{plain(finding.remedy)}", "bold") if finding.remedy else Text("")
        table.add_row(Text(mark, style), finding.check, Text.assemble(plain(finding.found), remedy))
    output.console().print(table)
