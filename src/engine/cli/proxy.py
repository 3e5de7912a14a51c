"""`engine proxy`: brokers behind one address, until stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from engine.cli.groups import examples
from engine.cli.secrets import refuse_argument
from engine.cli.serve import (
    LOG_FORMATS,
    LOG_LEVELS,
    address,
    address_or_none,
    at,
    event_loop_factory,
    on_hangup,
    rest_at,
    said_with,
    serve_until,
    stop_signal,
)
from engine.cli.values import broker_address

if TYPE_CHECKING:
    from engine.proxy.config import ProxyConfig

_FILE = click.Path(exists=True, dir_okay=False)


@click.command(epilog=examples("engine proxy --broker engine://10.0.0.1:6650 --broker engine://10.0.0.2:6650"))
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    type=broker_address,
    metavar="URL",
    help="A broker to connect clients to; repeatable.",
)
@click.option(
    "--listen",
    default="127.0.0.1:6650",
    show_default=True,
    metavar="HOST:PORT",
    callback=address,
    help="Address for clients.",
)
@click.option(
    "--admin",
    default="none",
    show_default=True,
    metavar="HOST:PORT",
    callback=address_or_none,
    help="Address of health checks, metrics and the brokers' admin API (HTTP). With none, they are not served.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="URL",
    help="Other brokers that clients may be connected to, as a pattern: engine://b-*:6650; repeatable.",
)
@click.option("--token", "broker_token", envvar="ENGINE_TOKEN", callback=refuse_argument, hidden=True)
@click.option(
    "--token-file",
    "broker_token_file",
    type=_FILE,
    envvar="ENGINE_TOKEN_FILE",
    help="File with the brokers' token; ENGINE_TOKEN is the token itself.",
)
@click.option("--auth-token", envvar="ENGINE_AUTH_TOKEN", callback=refuse_argument, hidden=True)
@click.option(
    "--auth-token-file",
    type=_FILE,
    envvar="ENGINE_AUTH_TOKEN_FILE",
    help="File with the token required of clients; ENGINE_AUTH_TOKEN is the token itself.",
)
@click.option(
    "--insecure",
    is_flag=True,
    envvar="ENGINE_INSECURE",
    help="Allow addresses that other machines reach without a token.",
)
@click.option(
    "--tls-ca",
    "broker_tls_ca",
    type=_FILE,
    envvar="ENGINE_TLS_CA",
    help="Connect to brokers by TLS, and trust certificates signed by this PEM file.",
)
@click.option("--tls-cert", type=_FILE, help="Require TLS of clients; the certificate, as a PEM file.")
@click.option("--tls-key", type=_FILE, help="The certificate's key, as a PEM file.")
@click.option("--config", type=click.Path(dir_okay=False), help="Settings, as a TOML file. Options override it.")
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    show_default=True,
    help="The least severe messages to log.",
)
@click.option(
    "--log-format", type=click.Choice(LOG_FORMATS), default="text", show_default=True, help="Form of log lines."
)
def command(
    brokers: tuple[str, ...],
    listen: tuple[str, int],
    admin: tuple[str, int] | None,
    allow: tuple[str, ...],
    config: str | None,
    insecure: bool,
    log_level: str,
    log_format: str,
    **options: str | None,
) -> None:
    """Let clients reach brokers through one address.

    SIGTERM or Ctrl-C ends it; SIGHUP makes it read the configuration, the token files and the certificate again.
    """
    from engine.cli.logs import configure
    from engine.proxy.config import ProxyConfig

    configure(log_level, log_format)

    def load() -> ProxyConfig:
        flags = {"brokers": brokers or None, "allow": allow or None, "insecure": insecure or None}
        return ProxyConfig.load(config, **flags, **options)

    loaded = load()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(serve(listen, admin, loaded, load))


async def serve(
    listen: tuple[str, int], admin: tuple[str, int] | None, config: ProxyConfig, load: Callable[[], ProxyConfig]
) -> None:
    """Start, wait for a signal, close."""
    from engine.cli.reloading import reload_proxy
    from engine.proxy.server import Proxy

    stopped = stop_signal()
    proxy = Proxy(config)
    on_hangup(lambda: reload_proxy(proxy, load()))
    try:
        admin_at = None if admin is None else await said_with("--admin", proxy.serve_admin(*admin))
        listen_at = await said_with("--listen", proxy.serve(*listen))
        where = f"engine://{at(listen_at)}, {rest_at(admin_at, config)}"
        await serve_until(stopped, f"passing on to {', '.join(config.brokers)} from {where}")
    finally:
        await proxy.close()
