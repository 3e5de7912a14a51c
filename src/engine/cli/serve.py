"""`engine serve`: a broker on two ports, until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.cli import lines, notify
from engine.cli.groups import examples
from engine.cli.secrets import refuse_password
from engine.cli.serve_settings import advertised, defaults_from_file
from engine.errors import ConnectError, EngineError

if TYPE_CHECKING:
    from engine.broker.settings.config import BrokerConfig

log = logging.getLogger(__name__)

LOG_LEVELS = ["debug", "info", "warning", "error"]
LOG_FORMATS = ["text", "json"]
PROCESSES_MAX = 256
CACHE = "engine-data"  # the directory of a broker that keeps its messages in an object store
SWITCH_S = 0.0005  # how long a busy loop may delay a thread that has synced a file, before that can report it


def address(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, int]:
    """`HOST:PORT`, `[IPv6]:PORT` or `:PORT` as a pair."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"must be HOST:PORT, got {text!r}")
    return host.strip("[]") or "0.0.0.0", int(port)


def address_or_none(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, int] | None:
    """As address(); None for the text `none`."""
    return None if text == "none" else address(context, parameter, text)


_DIGITS_MAX = 20  # int() refuses thousands of them by an error of its own


def process_count(context: click.Context, parameter: click.Parameter, text: str) -> int:
    """A number of processes, or `auto`."""
    if text == "auto":
        from engine.broker.settings.machine import usable_cores

        return usable_cores(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if not text.isdecimal() or len(text) > _DIGITS_MAX or not 1 <= int(text) <= PROCESSES_MAX:
        raise click.BadParameter(f"must be auto or a number from 1 to {PROCESSES_MAX}, got {text!r}")
    return int(text)


@click.command(
    epilog=examples(
        "engine serve --data ./data",
        "engine serve --data ./data --processes auto",
        "engine serve --cluster prod --metadata etcd://10.0.0.9:2379/prod --objects s3://messages/prod "
        "--data /var/cache/engine --listen 10.0.0.1:6650 --advertise engine://10.0.0.1:6650 --token-file token",
        "engine serve --data /var/lib/engine --listen 0.0.0.0:6650 --auth-token-file /etc/engine/token --admin none",
    )
)
@click.option(
    "--data",
    envvar="ENGINE_DATA",
    type=click.Path(file_okay=False),
    help="The directory of all data; created if it does not exist. With --objects a cache: ./engine-data by default.",
)
@click.option(
    "--listen",
    envvar="ENGINE_LISTEN",
    default="127.0.0.1:6650",
    show_default=True,
    metavar="HOST:PORT",
    callback=address,
    help="Address for clients.",
)
@click.option(
    "--admin",
    envvar="ENGINE_ADMIN",
    default="127.0.0.1:8080",
    show_default=True,
    metavar="HOST:PORT",
    callback=address_or_none,
    help="Address of the admin API (HTTP), of metrics and health checks. With none, they are not served.",
)
@click.option(
    "--config",
    envvar="ENGINE_CONFIG",
    type=click.Path(dir_okay=False),
    is_eager=True,
    callback=defaults_from_file,
    help="Settings, as a TOML file, whose section [serve] may have the other options of this command. Environment "
    "variables ENGINE_… override it.",
)
@click.option(
    "--metadata",
    envvar="ENGINE_METADATA",
    metavar="URL",
    callback=refuse_password,
    help="etcd://HOST:PORT,…/PREFIX: keep the metadata in etcd, which brokers have in common: those with --objects, or "
    "on one shared data directory. One with a password is given as ENGINE_METADATA.",
)
@click.option(
    "--objects",
    metavar="URL",
    help="s3://BUCKET/PREFIX, gs:// or az://: keep messages there, so that they survive the loss of a machine. With "
    "--metadata. Credentials: in the environment, as AWS_ACCESS_KEY_ID. Each broker has its own data directory then.",
)
@click.option(
    "--cluster", metavar="NAME", help="Of the brokers that share --metadata and --objects.  [default: standalone]"
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    callback=advertised,
    help="Where clients and other brokers reach this one: service_url of the settings.  [default: where they dialled]",
)
@click.option(
    "--auth-token-file",
    "--token-file",
    "auth_token_file",
    type=click.Path(dir_okay=False),
    help="File with the token required of clients. ENGINE_AUTH_TOKEN is the token itself.",
)
@click.option(
    "--processes",
    envvar="ENGINE_PROCESSES",
    default="1",
    show_default=True,
    metavar="N|auto",
    callback=process_count,
    help="Processes that share the directory; auto: one for each usable processor core.",
)
@click.option(
    "--process-port",
    envvar="ENGINE_PROCESS_PORT",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Port of the first of several processes; the others have those after it. 0: any.  [default: after --listen's]",
)
@click.option(
    "--one-port",
    envvar="ENGINE_ONE_PORT",
    is_flag=True,
    help="Clients reach several processes through --listen alone: the parent forwards them.",
)
@click.option("--insecure", is_flag=True, help="Allow addresses that other machines reach without a token.")
@click.option(
    "--log-level",
    envvar="ENGINE_LOG_LEVEL",
    type=click.Choice(LOG_LEVELS),
    default="info",
    show_default=True,
    help="The least severe messages to log.",
)
@click.option(
    "--log-format",
    envvar="ENGINE_LOG_FORMAT",
    type=click.Choice(LOG_FORMATS),
    default="text",
    show_default=True,
    help="Form of log lines.",
)
def command(
    data: str | None,
    listen: tuple[str, int],
    admin: tuple[str, int] | None,
    config: str | None,
    metadata: str | None,
    objects: str | None,
    cluster: str | None,
    advertise: str | None,
    auth_token_file: str | None,
    processes: int,
    process_port: int | None,
    one_port: bool,
    insecure: bool,
    log_level: str,
    log_format: str,
) -> None:
    """Run a broker on a data directory.

    Clients can connect when it has printed "serving". SIGTERM or Ctrl-C ends it; SIGHUP makes it read the
    configuration, the token file and the certificate again.
    """
    from engine.broker.settings.config import CLUSTER_SESSION_S, BrokerConfig
    from engine.cli.logs import configure

    configure(log_level, log_format)
    sys.setswitchinterval(SWITCH_S)
    given = {
        "auth_token_file": auth_token_file, "insecure": insecure or None, "objects": objects, "cluster_name": cluster,
        "service_url": advertise,
    }  # fmt: skip
    options = {name: value for name, value in given.items() if value is not None}

    def load() -> BrokerConfig:
        defaults = {} if metadata is None else {"session_timeout": CLUSTER_SESSION_S}
        return BrokerConfig.load(config, environment=os.environ, defaults=defaults, **options)

    if metadata is not None and processes != 1:
        raise click.UsageError("--metadata is for one process: start several, each with its own --listen")
    loaded = load()
    if loaded.objects is not None and metadata is None:
        raise click.UsageError("--objects needs --metadata: what a data directory knows is lost with its machine")
    if data is None and loaded.objects is None:
        raise click.UsageError("Missing option '--data'.")
    data = data or CACHE
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        if processes == 1:
            runner.run(serve(data, listen, admin, loaded, load, metadata))
            return
        from engine.cli.serve_processes import serve_processes
        from engine.processes.parent import Plan

        plan = Plan(Path(data), processes, listen, admin, process_port, one_port)
        runner.run(serve_processes(plan, loaded, load, (log_level, log_format)))


def event_loop_factory() -> Any:
    """The factory of uvloop, or None (asyncio's own loop) where uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def serve(
    data: str,
    listen: tuple[str, int],
    admin: tuple[str, int] | None,
    config: BrokerConfig,
    load: Callable[[], BrokerConfig],
    metadata: str | None = None,
) -> None:
    """Start, wait for a signal, close. Acknowledged messages are durable however this ends."""
    from engine.broker.opening import open_objects, open_shared_metadata
    from engine.broker.server import Broker
    from engine.broker.settings.doors import check_exposed
    from engine.cli.process import collect_rarely, keep_loaded
    from engine.cli.reloading import reload_broker
    from engine.pulsar.recognising import recogniser

    stopped = stop_signal()
    store = None if metadata is None else await open_shared_metadata(metadata, config, random.Random(), data)
    objects = open_objects(config, os.environ, random.SystemRandom())
    broker = Broker(data, config=config, metadata=store, objects=objects, recognise=recogniser())
    on_hangup(lambda: reload_broker(broker, load()))
    for where in (listen, admin):
        if where is not None:
            await check_exposed(where[0], config)
    try:
        admin_at = None if admin is None else await said_with("--admin", broker.serve_admin(*admin))
        collect_rarely()
        await broker.start()
        keep_loaded()
        listen_at = await said_with("--listen", broker.serve(*listen))
        await serve_until(stopped, f"serving {data} on engine://{at(listen_at)}, {rest_at(admin_at, config)}")
    finally:
        await broker.close()
        if objects is not None:
            await objects.close()
        if store is not None:
            await store.close()


def stop_signal() -> asyncio.Event:
    """An event that SIGTERM and Ctrl-C set."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def on_hangup(reload: Callable[[], None]) -> None:
    """Call `reload` on SIGHUP, which by default would kill the process. Errors are logged."""

    def hung_up() -> None:
        notify.reloading()
        try:
            reload()
        except EngineError as e:
            log.error("SIGHUP: the configuration was not reloaded: %s", e)
            notify.ready("serving; the configuration was not reloaded, the log says why")
        else:
            log.info("SIGHUP: the configuration was reloaded")
            notify.ready("serving; the configuration was reloaded")

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up)


async def serve_until(stopped: asyncio.Event, what: str) -> None:
    """Print that the server is ready, and wait for `stopped`."""
    lines.say(f"engine: {what}")
    notify.ready(what)
    await stopped.wait()
    notify.stopping()
    lines.say("engine: closing")


def rest_at(admin_at: tuple[str, int] | None, config: Any) -> str:
    """The address of the admin API, for the line that serve_until() prints."""
    scheme = "http" if config.tls_cert is None else "https"
    return "no admin API" if admin_at is None else f"admin on {scheme}://{at(admin_at)}"


async def said_with(option: str, listening: Awaitable[tuple[str, int]]) -> tuple[str, int]:
    """Listen; when that fails, name the option that sets the address. Raises ConnectError."""
    try:
        return await listening
    except ConnectError as e:
        raise ConnectError(f"{e}; set another address with {option}") from e


def at(pair: tuple[str, int]) -> str:
    """(host, port) as HOST:PORT, an IPv6 host in brackets."""
    host, port = pair
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
