"""`engine console`: pages about a broker for a browser."""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from typing import TYPE_CHECKING

import click

from engine.cli import lines
from engine.cli.connection import client_options, connection_options
from engine.cli.groups import examples
from engine.cli.serve import address, at, event_loop_factory, said_with, serve_until, stop_signal
from engine.client.base.endpoint import is_loopback
from engine.errors import UnsupportedError

if TYPE_CHECKING:
    from engine.client.base.options import ClientKeywords
    from engine.client.client import AsyncClient


def here(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, int]:
    """An address that only this machine reaches."""
    host, port = address(context, parameter, text)
    if not is_loopback(host):
        raise click.BadParameter(
            f"must be an address of this machine alone, as 127.0.0.1:8080, got {text!r}; others come by a tunnel"
        )
    return host, port


@click.command(epilog=examples("engine console --url engine://127.0.0.1:6650", "engine console --data ./data"))
@click.option(
    "--listen",
    default="127.0.0.1:8080",
    show_default=True,
    metavar="HOST:PORT",
    callback=here,
    help="Address of the pages, on this machine.",
)
@partial(connection_options, also=("--broker",))
def command(url: str, data: str | None, listen: tuple[str, int]) -> None:
    """Serve pages about a broker to a browser.

    What lags and why, segments, messages, dead letters, transactions, brokers, as they change. Needs Jinja (pip install
    'engine[console]'). With --token-file, --data or a Unix socket the pages act with the console's own rights, and are
    opened by the link that it prints; else there is a login where the broker asks for a token.
    """
    try:
        from engine.console.server import Console
    except ModuleNotFoundError as e:
        if (e.name or "").partition(".")[0] != "jinja2":
            raise
        raise UnsupportedError(
            "engine console needs Jinja, which is not installed: pip install 'engine[console]'"
        ) from e
    options = client_options(url)
    key = secrets.token_urlsafe(32) if data is not None or _has_rights(url, options) else None

    async def client(token: str | None) -> AsyncClient:
        if data is not None:
            from engine.embedded import open_async

            return await open_async(data)
        from engine.client.client import AsyncClient

        return AsyncClient(url, **(options if token is None else {**options, "token": token}))

    async def serve() -> None:
        stopped = stop_signal()
        console = Console(client, lambda: secrets.token_urlsafe(32), data or url, key)
        try:
            where = await said_with("--listen", console.listen(*listen))
            if key is not None:
                lines.say(f"engine: open http://{at(where)}/?key={key}")
            await serve_until(stopped, f"console on http://{at(where)}")
        finally:
            await console.close()

    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(serve())


def _has_rights(url: str, options: ClientKeywords) -> bool:
    """Whether a broker gives this process more than to any other one of this machine."""
    from engine.client.base.endpoint import ServiceUrl

    service = ServiceUrl.parse(url)
    proofs = (options["token"], service.token, service.cert)
    unix = any(address.startswith("engine+unix:") for address in service.addresses)  # which proves this user
    return unix or any(proof is not None for proof in proofs)
