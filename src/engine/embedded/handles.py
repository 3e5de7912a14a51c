"""`open` and `open_async`, and what they return."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import closing
from functools import partial
from typing import Any

from engine.aio.portal import FORKED, Portal
from engine.client import AsyncClient
from engine.embedded.alone import MEMORY, Path, check_path, open_engine
from engine.embedded.doors import Doors, GivenAddress
from engine.embedded.engine import AsyncEngine
from engine.embedded.registry import SharedAdmin, SharedHold, hold, is_new
from engine.embedded.terms import Config, Terms
from engine.errors import AlreadyClosedError
from engine.sync import Client


class Engine(Client):
    """A blocking client of the engine that has a data directory open. Made by `open`; usable with `with`.

    Closing the last one of a process closes the engine there.
    """

    _alone = True

    def __init__(
        self, path: Path, listen: GivenAddress, admin: GivenAddress, config: Config, shared: bool = True
    ) -> None:
        check_path(path)
        self._given = path, Doors.of(listen, admin), Terms.of(config)
        self._alone = path == MEMORY or not shared
        if self._alone:
            self._begin(partial(open_engine, path, listen, admin, config, threadsafe=True))
        else:
            self._open()

    def _open(self) -> None:
        if self._alone:
            raise AlreadyClosedError(FORKED)
        path, doors, terms = self._given
        if (check := _check_of_new(path, doors, terms)) is not None:
            with closing(Portal("engine addresses")) as checking:
                checking.run(check())
        held = hold(path, doors, terms)
        portal = held.portal
        try:
            client = portal.run(_enter(held, threadsafe=True))
        except BaseException:
            portal.run(held.close())
            if held.ended:
                portal.close()
            raise
        self._use(portal, client)

    @property
    def admin_url(self) -> str | None:
        """Where the REST API is, with the port that was bound; None without one."""
        assert isinstance(self._client, AsyncEngine)
        return self._client.admin_url

    @staticmethod
    def _is_last(client: AsyncClient) -> bool:
        """The thread ends with the engine, which ends with its last handle."""
        assert isinstance(client, AsyncEngine)
        return client.ended


def open(  # noqa: A001
    path: Path,
    *,
    listen: GivenAddress = None,
    admin: GivenAddress = None,
    config: Config = None,
    shared: bool = True,
) -> Engine:
    """Open (or create) the data directory `path`, on a thread of this process, or join the process that has it open.

    The same directory may be opened any number of times, in this process and in others of this user on this machine:
    it is one engine. One process serves it; when that ends, another takes over, and all clients go on.

    ":memory:" is no directory: the engine's disk is memory, an own one for each call, which ends with close().
    `listen`: "host:port" to serve clients of other machines as well; `admin`: "host:port" of the REST API. Port 0
    takes a free one; an address that other machines reach needs `auth_token` or `insecure` in the configuration.
    `config`: a BrokerConfig, a mapping of its fields, or the path of a TOML file; where the directory is open, it must
    be what that engine has. `shared`: False refuses where the directory is open, and lets no other process join.

    Raises DataDirectoryBusyError (open, and not shared), TimeoutError (the process that has it open does not answer),
    CorruptionError, UnsupportedError (written by a newer version), InvalidConfigurationError, ConnectError (the address
    is in use).
    """
    return Engine(path, listen, admin, config, shared)


def open_async(
    path: Path,
    *,
    listen: GivenAddress = None,
    admin: GivenAddress = None,
    config: Config = None,
    shared: bool = True,
) -> Opening:
    """open() for code that awaits: `async with open_async(path) as engine`, or `engine = await open_async(path)`.

    A shared engine runs on a thread of its own, so it may outlive the loop; with `shared=False` it runs on the loop.
    """
    return Opening(path, listen, admin, config, shared)


class Opening:
    """An engine that is not open yet: await it, or enter it."""

    def __init__(self, path: Path, listen: GivenAddress, admin: GivenAddress, config: Config, shared: bool) -> None:
        self._what = (path, listen, admin, config)
        self._shared = shared
        self._engine: AsyncEngine | None = None

    async def _open(self) -> AsyncEngine:
        path, listen, admin, config = self._what
        check_path(path)
        if path == MEMORY or not self._shared:
            return await open_engine(path, listen, admin, config, threadsafe=False)
        doors, terms = Doors.of(listen, admin), Terms.of(config)
        if (check := _check_of_new(path, doors, terms)) is not None:
            await check()
        held = hold(path, doors, terms)
        try:
            return await _enter(held, threadsafe=False)
        except BaseException:
            await held.close()
            raise

    def __await__(self) -> Generator[Any, None, AsyncEngine]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncEngine:
        self._engine = await self
        return self._engine

    async def __aexit__(self, *exc: object) -> None:
        if self._engine is not None:
            await self._engine.close()


def _check_of_new(path: Path, doors: Doors, terms: Terms) -> Callable[[], Coroutine[Any, Any, None]] | None:
    """What checks the addresses before a directory is made for them; None: the engine does, once it is open."""
    return partial(doors.check, terms.config()) if doors != Doors() and is_new(path) else None


async def _enter(held: SharedHold, *, threadsafe: bool) -> AsyncEngine:
    """Open the engine for one more handle, on the running loop. What is raised leaves `held` to the caller."""
    await held.enter()
    engine = AsyncEngine(held, held.connector(), SharedAdmin(held), threadsafe=threadsafe)
    await engine.connect()
    return engine
