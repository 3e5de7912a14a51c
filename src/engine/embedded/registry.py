"""The shared engines of this process: one for each data directory, known by device and inode, which ends with its last
handle.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from engine.aio.forked import after_fork
from engine.aio.locks import Lock
from engine.aio.portal import Portal
from engine.aio.shielded import shielded
from engine.broker.server import Broker
from engine.embedded.alone import Path
from engine.embedded.doors import Doors
from engine.embedded.shared import SharedEngine, identity_of
from engine.embedded.terms import Terms
from engine.errors import StorageError
from engine.storage.disk.disk import OsDisk, make_data_directory
from engine.wire.connector import SocketConnector
from engine.wire.sockets import Accept
from engine.wire.stream import FrameStream

if TYPE_CHECKING:
    from engine.model.admin_requests import Operation

T = TypeVar("T")
R = TypeVar("R")
_Identity = tuple[int, int]

_lock = Lock()
_engines: dict[_Identity, SharedEngine] = {}
_handles: dict[SharedEngine, int] = {}


def hold(path: Path, doors: Doors, terms: Terms) -> SharedHold:
    """A hold on the engine of a directory, which is made where it does not exist; on any thread.

    Raises InvalidArgumentError, DiskFullError, StorageError.
    """
    return SharedHold(pathlib.Path(path).resolve(), doors, terms)


def is_new(path: Path) -> bool:
    """Whether there is no such directory, and so no engine of it."""
    return not pathlib.Path(path).is_dir()


def _identity_of(directory: pathlib.Path) -> _Identity:
    """Of a directory, which is made where it does not exist. Raises StorageError."""
    make_data_directory(OsDisk(), str(directory))
    identity = identity_of(directory)
    if identity is None:
        raise StorageError(f"{directory} must stay while an engine is opened in it, but it was removed; open it again")
    return identity


class SharedHold:
    """One handle's part in a shared engine."""

    def __init__(self, path: pathlib.Path, doors: Doors, terms: Terms) -> None:
        """Raises as hold()."""
        self._given = path, doors, terms
        self._holds = False  # an engine of this process
        self._acquire()

    def _acquire(self) -> None:
        """Add this handle to the engine of its directory, unless another thread has done that meanwhile."""
        directory = self._given[0]
        identity = _identity_of(directory)
        with _lock:
            if self._holds:
                return
            engine = _engines.get(identity)
            if engine is None:
                engine = _engines[identity] = SharedEngine(directory, Portal("engine"))
            _handles[engine] = _handles.get(engine, 0) + 1
            self.engine, self._identity = engine, identity
            self.ended = self._given_up = False
            self._entering: asyncio.Task[None] | None = None  # on the engine's loop
            self._holds = True

    async def enter(self) -> None:
        """Open the engine for this handle, once; again where that has failed. Raises as SharedEngine.open()."""
        if not self._holds:
            self._acquire()
        if not self._entered():
            await self.run(self._enter())

    def _entered(self) -> bool:
        return self._entering is not None and self._entering.done() and not _has_failed(self._entering)

    async def _enter(self) -> None:
        if self._entering is None or _has_failed(self._entering):
            _, doors, terms = self._given
            self._entering = asyncio.ensure_future(self.engine.open(terms, doors))
        await shielded(self._entering)

    @property
    def portal(self) -> Portal:
        """On which the engine runs."""
        return self.engine.portal

    @property
    def broker(self) -> Broker | None:
        """While this process serves."""
        return self.engine.broker

    @property
    def url(self) -> str:
        """What its clients call the broker."""
        return self.engine.url

    @property
    def service_url(self) -> str:
        """Where other programs connect."""
        return self.engine.service_url

    @property
    def admin_url(self) -> str | None:
        """Of the REST API."""
        return self.engine.admin_url

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await it on the engine's loop, from any other loop or this one."""
        if asyncio.get_running_loop() is self.portal.loop:
            return await coroutine
        return await asyncio.wrap_future(self.portal.submit(coroutine))

    def give_up(self) -> bool:
        """Whether the engine has to be closed: this was the last handle. On any thread; once."""
        with _lock:
            if self._given_up:
                return False
            self._given_up = True
            if self.engine not in _handles:  # of the parent of this process
                return False
            _handles[self.engine] -= 1
            if _handles[self.engine]:
                return False
            del _handles[self.engine], _engines[self._identity]
            return True

    def let_go(self) -> None:
        """close() on any thread, without waiting."""
        if self.give_up():
            self.portal.finish(self.engine.close, lambda: True)

    def after_fork(self) -> None:
        """In a forked child: the next use enters the engine of this process."""
        self._holds = False

    async def close(self) -> None:
        """Let go; the last one closes the engine, and its thread unless this runs on it."""
        if not self.give_up():
            return
        self.ended = True
        if asyncio.get_running_loop() is self.portal.loop:
            await self.engine.close()
        elif (closing := self.portal.finish(self.engine.close, lambda: True)) is not None:
            await shielded(asyncio.wrap_future(closing))  # it goes on when this is cancelled
            await asyncio.to_thread(self.portal.close)

    def connector(self) -> NearConnector | FarConnector:
        """For a client on the running loop."""
        return NearConnector(self) if asyncio.get_running_loop() is self.portal.loop else FarConnector(self)


def _has_failed(work: asyncio.Task[None]) -> bool:
    return work.done() and (work.cancelled() or work.exception() is not None)


class SharedAdmin:
    """An AdminBackend."""

    def __init__(self, of: SharedHold) -> None:
        self._of = of

    async def call(self, operation: Operation[R], arguments: Mapping[str, Any]) -> R:
        """Carry it out wherever the directory is served. Raises what the operation raises, ConnectError, TimeoutError;
        UnknownOutcomeError when that process ended before it had answered.
        """
        await self._of.enter()
        return await self._of.run(self._of.engine.operate(operation, arguments))

    async def close(self) -> None:
        """The engine is not the client's."""


class NearConnector:
    """Connects a client on the engine's loop, whatever the URL: to the process that serves the directory."""

    def __init__(self, of: SharedHold) -> None:
        self._engine = of.engine

    async def connect(self, url: str, handler: Accept) -> FrameStream:
        """A connected stream."""
        return await self._engine.connect(handler)


class FarConnector:
    """The same for a client on another loop, which may end at any time."""

    def __init__(self, of: SharedHold) -> None:
        self._of = of
        self._sockets = SocketConnector()

    async def connect(self, url: str, handler: Accept) -> FrameStream:
        """A connected stream."""
        await self._of.enter()
        end = await self._of.run(self._of.engine.offer())
        return await (self._sockets.connect(self._of.url, handler) if end is None else end.settle_far(handler))


def _forget() -> None:
    """In a forked child: its engines are the parent's."""
    global _lock
    _lock = Lock()
    _engines.clear()
    _handles.clear()


after_fork(_forget)
