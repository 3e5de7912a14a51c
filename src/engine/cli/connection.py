"""How commands reach an engine: over the network, or by opening a data directory themselves."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine.aio import uv
from engine.cli.secrets import is_argument, read_token, refuse_argument
from engine.cli.values import service_url
from engine.errors import NotFoundError

if TYPE_CHECKING:
    from engine.client import AsyncClient
    from engine.client.base.endpoint import ServiceUrl
    from engine.client.base.options import ClientKeywords
    from engine.sync import Client

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

METADATA_FILE = "metadata.db"
SEGMENTS = "segments"  # where the messages are: an engine says what to do where they are alone
DEFAULT_URL = "engine://127.0.0.1:6650"


def connection_options(command: F, also: tuple[str, ...] = ()) -> F:
    """Add `--url` and `--data` to a command. `also`: more names of `--url`."""
    url = click.option(
        "--url",
        *also,
        "url",
        envvar="ENGINE_URL",
        type=service_url,
        metavar="URL",
        default=DEFAULT_URL,
        show_default=True,
        callback=_without_token,
        help="The broker to connect to, or several of them: engine://a,b; also ENGINE_URL.",
    )
    data = click.option(
        "--data",
        type=click.Path(file_okay=False),
        help="Open this data directory, in place of a connection to a broker; no broker may have it open.",
    )
    return url(data(access_options(command)))


def access_options(command: F) -> F:
    """Add what a server asks for: `--token-file` and `--tls-ca`; connect() knows them."""
    token = click.option("--token", envvar="ENGINE_TOKEN", expose_value=False, callback=_remember_token, hidden=True)
    token_file = click.option(
        "--token-file",
        envvar="ENGINE_TOKEN_FILE",
        type=click.Path(exists=True, dir_okay=False, allow_dash=True),
        expose_value=False,
        callback=_remember,
        help="File with the broker's token, or - for a line of standard input; ENGINE_TOKEN is the token itself.",
    )
    tls = click.option(
        "--tls-ca",
        envvar="ENGINE_TLS_CA",
        type=click.Path(exists=True, dir_okay=False),
        expose_value=False,
        callback=_remember,
        help="Connect by TLS, and trust certificates signed by this PEM file.",
    )
    return token(token_file(tls(command)))


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Keep the value for connect(); the commands do not take it."""
    context.meta[f"{__name__}.{parameter.name}"] = value


def _without_token(context: click.Context, parameter: click.Parameter, url: str) -> str:
    """Refuse a token in a URL that is given as an argument."""
    from engine.client.base.endpoint import ServiceUrl

    if is_argument(context, parameter) and ServiceUrl.parse(url).token is not None:
        raise click.BadParameter(
            "a URL must have no token here, since the process list shows arguments to all users; "
            "set ENGINE_URL or ENGINE_TOKEN in the environment, or give --token-file FILE"
        )
    return url


def _remember_token(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    _remember(context, parameter, refuse_argument(context, parameter, value))


def json_option(command: F) -> F:
    """Add `--json` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for a program to read.")(command)


def connect(url: str, data: str | None, *, create: bool = False) -> Client:
    """A client of the server, or of an embedded engine; close it, or use it as a context manager.

    `create`: whether the command may begin a new data directory. Others raise NotFoundError where there is none.
    """
    if data is not None:
        if not create:
            _check_directory(data)
        from engine.embedded import open as open_engine

        return open_engine(data)
    from engine.sync import Client

    return Client(url, **client_options(url))


def run_async(url: str, data: str | None, work: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
    """What `work` returns for a client of the server, or of an embedded engine. Raises as connect()."""
    if data is not None:
        _check_directory(data)
    options = client_options(url)

    async def run() -> T:
        if data is not None:
            from engine.embedded import open_async

            async with open_async(data) as engine:
                return await work(engine)
        from engine.client import AsyncClient

        async with AsyncClient(url, **options) as client:
            return await work(client)

    return uv.run(run())


def _check_directory(data: str) -> None:
    if not any(Path(data, name).exists() for name in (METADATA_FILE, SEGMENTS)):
        raise NotFoundError(f"{data} is no data directory; engine serve, produce and topics create begin a new one")


def client_options(url: str) -> ClientKeywords:
    """What a client of this URL is given by the options of access_options()."""
    from engine.client.base.endpoint import ServiceUrl

    meta = click.get_current_context().meta
    ca = meta.get(f"{__name__}.tls_ca")
    service = ServiceUrl.parse(url)
    tls = None if ca is None or service.ca or service.cert else _trusting(ca)
    return {"token": _token(meta, service), "tls": tls}


def _token(meta: dict[str, Any], service: ServiceUrl) -> str | None:
    """The token from the file; None: that of the URL; that of the environment, where the URL has none."""
    path: str | None = meta.get(f"{__name__}.token_file")
    token: str | None = meta.get(f"{__name__}.token")
    if path is None:
        return token if service.token is None else None
    return read_token("--token-file", path)


def _trusting(path: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as e:  # an SSLError is one
        raise click.BadParameter(f"{path} is no PEM file of certificates: {e.strerror or e}") from e
