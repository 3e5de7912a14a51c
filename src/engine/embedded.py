"""A broker and a client in one process: `open` for code that blocks, `open_async` for code that awaits.

The two speak the same protocol as over TCP, through an in-memory pair of frame streams. With `listen` (and `admin`)
the broker serves other processes at the same time.
"""

from __future__ import annotations

import pathlib
from collections.abc import Generator, Mapping
from os import PathLike
from typing import Any

from engine.aio.workers import Submits
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.doors import check_exposed
from engine.client.local import LocalClient, address
from engine.clock import Clock
from engine.errors import InvalidArgumentError, InvalidConfigurationError
from engine.storage.disk.memory import MemoryDisk
from engine.sync.client import Client

MEMORY = ":memory:"
PORT = 6650
ADMIN_PORT = 8080

Path = str | PathLike[str]
Config = BrokerConfig | Mapping[str, Any] | Path | None
Address = str | tuple[str, int] | None


class AsyncEngine(LocalClient):
    """A client whose broker is in this process. Made by `open_async`; closing it closes the broker."""

    def __init__(self, broker: Broker, *, threadsafe: bool) -> None:
        super().__init__(
            broker.accept_local, broker.service_url, broker.parts.admin, threadsafe=threadsafe, clock=broker.clock
        )
        self._broker = broker

    @property
    def broker(self) -> Broker:
        """The broker itself."""
        return self._broker

    @property
    def admin_url(self) -> str | None:
        """Where the REST API is, with the port that was bound; None without one."""
        return self._broker.admin_url

    async def _close(self) -> None:
        """Close the client, then the broker."""
        try:
            await super()._close()
        finally:
            await self._broker.close()


class Engine(Client):
    """A blocking client whose broker is in this process. Made by `open`; usable with `with`."""

    def __init__(self, path: Path, listen: Address, admin: Address, config: Config) -> None:
        self._begin(lambda: open_engine(path, listen, admin, config, threadsafe=True))

    @property
    def admin_url(self) -> str | None:
        """Where the REST API is, with the port that was bound; None without one."""
        assert isinstance(self._client, AsyncEngine)
        return self._client.admin_url


def open(path: Path, *, listen: Address = None, admin: Address = None, config: Config = None) -> Engine:  # noqa: A001
    """Open (or create) the data directory `path`, in this process, on a thread of its own.

    ":memory:" is no directory: the engine's disk is memory, an own one for each call, which ends with close().
    `listen`: "host:port" to serve clients of other processes as well; `admin`: "host:port" of the REST API. Port 0
    takes a free one; an address that other machines reach needs `auth_token` or `insecure` in the configuration.
    `config`: a BrokerConfig, a mapping of its fields, or the path of a TOML file. Raises DataDirectoryBusyError,
    CorruptionError, UnsupportedError (written by a newer version), InvalidConfigurationError, ConnectError (the address
    is in use).
    """
    return Engine(path, listen, admin, config)


def open_async(path: Path, *, listen: Address = None, admin: Address = None, config: Config = None) -> Opening:
    """open() on the running loop: `async with open_async(path) as engine`, or `engine = await open_async(path)`."""
    return Opening(path, listen, admin, config)


class Opening:
    """An engine that is not open yet: await it, or enter it."""

    def __init__(self, path: Path, listen: Address, admin: Address, config: Config) -> None:
        self._what = (path, listen, admin, config)
        self._engine: AsyncEngine | None = None

    def __await__(self) -> Generator[Any, None, AsyncEngine]:
        return open_engine(*self._what, threadsafe=False).__await__()

    async def __aenter__(self) -> AsyncEngine:
        self._engine = await self
        return self._engine

    async def __aexit__(self, *exc: object) -> None:
        if self._engine is not None:
            await self._engine.close()


async def open_engine(
    path: Path,
    listen: Address,
    admin: Address,
    config: Config,
    *,
    threadsafe: bool,
    clock: Clock | None = None,
    executor: Submits | None = None,
) -> AsyncEngine:
    """open() on the running loop. `threadsafe`: whether native methods of producers are called on other threads.

    `clock`, `executor`: for tests; default: the machine's clocks, threads.
    """
    if not isinstance(path, str | PathLike):
        raise InvalidArgumentError(f"path must be the path of a directory, got {type(path).__name__}")
    served_at = None if listen is None else address(listen, PORT)
    admin_at = None if admin is None else address(admin, ADMIN_PORT)
    loaded = load_config(config)
    for at in (served_at, admin_at):
        if at is not None:
            await check_exposed(at[0], loaded)
    disk = MemoryDisk() if path == MEMORY else None
    broker = Broker(pathlib.Path(path), config=loaded, disk=disk, clock=clock, executor=executor)
    try:
        await broker.start()
        if admin_at is not None:
            await broker.serve_admin(*admin_at)
        if served_at is not None:
            await broker.serve(*served_at)
        engine = AsyncEngine(broker, threadsafe=threadsafe)
        await engine.connect()
    except BaseException:
        await broker.close()
        raise
    return engine


def load_config(config: Config) -> BrokerConfig:
    """The configuration in any of its forms. Raises InvalidConfigurationError naming the key or the file."""
    if isinstance(config, BrokerConfig):
        return config
    if config is None:
        return BrokerConfig()
    if isinstance(config, Mapping):
        return BrokerConfig.load(None, **config)
    if isinstance(config, str | PathLike):
        return BrokerConfig.load(str(config))
    raise InvalidConfigurationError(f"config must be a mapping or the path of a TOML file, got {type(config).__name__}")
