"""`engine proxy`: brokers behind one address, until it is told to stop."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from engine.cli.serve import (
    LOG_FORMATS,
    LOG_LEVELS,
    address,
    address_or_none,
    at,
    event_loop_factory,
    rest_at,
    said_with,
    serve_until,
    told_to_stop,
)
from engine.cli.values import service_url

_FILE = click.Path(exists=True, dir_okay=False)


@click.command()
@click.option(
    "--broker", "brokers", multiple=True, type=service_url, metavar="URL", help="A broker; any number of them."
)
@click.option("--listen", default="127.0.0.1:6650", show_default=True, callback=address, help="HOST:PORT for clients.")
@click.option(
    "--admin",
    default="none",
    show_default=True,
    callback=address_or_none,
    help="HOST:PORT for health, metrics and the brokers' admin API; none: not served.",
)
@click.option("--allow", multiple=True, metavar="URL", help="Further brokers; * is any text, as in engine://b-*:6650.")
@click.option("--token", "broker_token", envvar="ENGINE_TOKEN", help="What the brokers ask for.")
@click.option("--auth-token", envvar="ENGINE_AUTH_TOKEN", help="What clients have to say.")
@click.option("--tls-ca", "broker_tls_ca", type=_FILE, envvar="ENGINE_TLS_CA", help="Talk TLS with the brokers.")
@click.option("--tls-cert", type=_FILE, help="Serve clients by TLS, with this certificate.")
@click.option("--tls-key", type=_FILE, help="Its key.")
@click.option("--config", type=click.Path(dir_okay=False), help="A TOML file; options win over it.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(LOG_FORMATS), default="text", show_default=True, help="One line each.")
def command(
    brokers: tuple[str, ...],
    listen: tuple[str, int],
    admin: tuple[str, int] | None,
    allow: tuple[str, ...],
    config: str | None,
    log_level: str,
    log_format: str,
    **options: str | None,
) -> None:
    """Let clients outside reach brokers through one address. SIGTERM or Ctrl-C closes cleanly."""
    from engine.broker.logs import configure
    from engine.broker.proxy.config import ProxyConfig

    configure(log_level, log_format)
    loaded = ProxyConfig.load(config, brokers=brokers or None, allow=allow or None, **options)
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(serve(listen, admin, loaded))


async def serve(listen: tuple[str, int], admin: tuple[str, int] | None, config: Any) -> None:
    """Start, wait for a signal, close."""
    from engine.broker.proxy.server import Proxy

    stopped = told_to_stop()
    proxy = Proxy(config)
    try:
        admin_at = None if admin is None else await said_with("--admin", proxy.serve_admin(*admin))
        listen_at = await said_with("--listen", proxy.serve(*listen))
        where = f"engine://{at(listen_at)}, {rest_at(admin_at, config)}"
        await serve_until(stopped, f"passing on to {', '.join(config.brokers)} from {where}")
    finally:
        await proxy.close()
