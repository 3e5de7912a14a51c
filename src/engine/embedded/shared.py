"""`SharedEngine`: one data directory, as one process has it open together with others.

The process that has the directory's lock runs the broker and serves it over a Unix socket in the directory; all others
are clients of it. When that process ends, however it ends, the system releases the lock, and their connections break:
each of them then tries to take the lock. One gets it, opens the directory as after any crash, and serves; the others
connect to it. What their clients had not been answered they send again, as after a restart of a broker.

    look --- lock taken ----------------> serve
     ^  \\
     |   +-- lock held, and it answers --> joined
     |                                        |
     +----------- connection lost ------------+

A lock is never broken: a process that is stopped keeps it, and the others wait.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from engine.aio.portal import Portal
from engine.aio.shielded import finished, shielded
from engine.broker.cluster.joinable import TARGET, Joinable
from engine.broker.cluster.peers import Peer, dial
from engine.broker.opening import METADATA_FILE
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.embedded.doors import Doors, OpenDoors
from engine.embedded.late import LateDoors
from engine.embedded.terms import Terms
from engine.errors import (
    AlreadyClosedError,
    ConnectError,
    DataDirectoryBusyError,
    DataDirectoryError,
    EngineError,
    InvalidArgumentError,
    StorageError,
    TimeoutError,
)
from engine.limits import OPERATION_TIMEOUT_S
from engine.metadata.lockfile import LockFile, holder_of, lock_file_of
from engine.metadata.store import OutcomeUnknownError
from engine.pulsar.recognising import recogniser
from engine.wire.connector import SocketConnector
from engine.wire.memory import CLIENT, MemoryStream, connect_pair, offer_pair
from engine.wire.sockets import Accept
from engine.wire.stream import FrameStream
from engine.wire.url import format_unix_url

if TYPE_CHECKING:
    from engine.model.admin_requests import Operation

log = logging.getLogger(__name__)

SOCKET_FILE = "engine.sock"
LOOK_S = 0.02  # between two looks at a lock that is held while nothing is served
UNNAMED_S_MAX = 1.0  # a holder that does not say that it may be joined, and serves nothing, is waited for no longer
TROUBLE_S = 1.0  # between two looks at whether the broker of this process can go on
AGAIN_S = 1.0  # after the directory could not be opened
PATIENCE_S = OPERATION_TIMEOUT_S  # with a process that has the lock and does not answer

R = TypeVar("R")


def identity_of(path: Path) -> tuple[int, int] | None:
    """Device and inode of a directory; None: there is none that this process can reach."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


class _Serving:
    """This process serves."""

    def __init__(self, broker: Broker, config: BrokerConfig) -> None:
        self.broker = broker
        self.config = config  # as it was opened; some settings change at run time
        self.doors = OpenDoors(broker)


class SharedEngine:
    """Lives on its portal's loop, where all but the properties runs; those may be read on any thread."""

    def __init__(self, path: Path, portal: Portal) -> None:
        """`path`: of the directory, absolute."""
        self.path = path
        self.portal = portal
        self.url = format_unix_url(str(path / SOCKET_FILE))
        self._lock_path = lock_file_of(path / METADATA_FILE)
        self._directory: tuple[int, int] | None = None  # device and inode, once it was opened
        self._connector = SocketConnector()
        # What its handles have asked for; of the configuration also what was told where it has joined.
        self._terms = Terms({})
        self._doors: list[Doors] = []
        self._late = LateDoors(str(path), self._doors)
        # One of the two, unless it is looking.
        self._serving: _Serving | None = None
        self._peer: Peer | None = None
        self._urls: tuple[str | None, str | None] = (None, None)
        self._succeeds = False  # another process has served the directory before
        self._failure: EngineError | None = None  # why it still looks
        self._found: asyncio.Future[None] | None = None  # done when it has ended to look, or has failed again
        self._turn = asyncio.Lock()  # of the handles that are opened
        self._following: asyncio.Task[None] | None = None
        self._closed = False

    # -- read on any thread --------------------------------------------------------------------------------------------

    @property
    def broker(self) -> Broker | None:
        """While this process serves."""
        serving = self._serving
        return None if serving is None else serving.broker

    @property
    def service_url(self) -> str:
        """Where other programs connect: an address that was asked for, or else the socket."""
        return self._urls[0] or self.url

    @property
    def admin_url(self) -> str | None:
        """Of the REST API; None: it is not served."""
        return self._urls[1]

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def open(self, terms: Terms, doors: Doors) -> None:
        """For one more handle: serve, or join, with its configuration and at its addresses.

        Raises InvalidConfigurationError (the configuration is another), DataDirectoryBusyError (the process that has it
        open does not share it), TimeoutError (that process does not answer), ConnectError (an address is in use), and
        what Broker.start() raises.
        """
        async with self._turn:
            self._check_open()
            if self._following is None:
                self._terms, self._doors[:] = terms, [doors]
                self._directory = identity_of(self.path)
                try:
                    await self._look(PATIENCE_S)
                except BaseException as e:
                    await self._leave()
                    if isinstance(e, OSError | OutcomeUnknownError) and not isinstance(e, EngineError):
                        raise self._typed(e) from e
                    raise
                self._following = asyncio.create_task(self._follow(), name=f"following {self.path}")
                return
            answer = await self._joined_by(terms, doors)
            self._take(answer)
            self._terms = terms.over(self._terms)
            if (opened := Doors.unpack(answer)) not in self._doors:
                self._doors.append(opened)

    async def _joined_by(self, terms: Terms, doors: Doors) -> dict[str, Any]:
        """What the process that serves answers to one more handle; or, where it ends meanwhile, the next one."""
        while True:
            await self.reached()
            serving, peer = self._serving, self._peer
            try:
                return await (self._join(terms, doors) if peer is None else self._ask_to_join(peer, terms, doors))
            except (ConnectError, AlreadyClosedError) as e:
                self._check_open()
                if peer is not None and isinstance(e, AlreadyClosedError):  # its connection follows
                    async with self._patience():
                        await asyncio.wait([peer.ended])
                elif self._serving is serving and (peer is None or peer.lost is None):
                    raise

    async def close(self) -> None:
        """End what this process has of it; another process may take over. Idempotent."""
        self._closed = True
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        self._wake()
        self._late.end()
        await self._leave()

    async def _leave(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.stream.abort()
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.broker.close()

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosedError("the engine was closed; open another one")

    # -- looking for the process that serves ---------------------------------------------------------------------------

    async def reached(self) -> Broker | None:
        """The broker, if this process serves; None: another one does.

        Raises TimeoutError, naming the process that has the lock and does not answer; why the directory cannot be
        opened; AlreadyClosedError.
        """
        async with self._patience():
            while self._serving is None and (self._peer is None or self._peer.lost is not None):
                self._check_open()
                if self._failure is not None:
                    raise self._failure
                if self._found is None:
                    self._found = asyncio.get_running_loop().create_future()
                await shielded(self._found)
        return self.broker

    @contextlib.asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        """Raise TimeoutError, naming the process that has the lock, when the block takes longer."""
        limit = asyncio.timeout(PATIENCE_S)
        try:
            async with limit:
                yield
        except builtins.TimeoutError as e:
            if isinstance(e, EngineError) or not limit.expired():
                raise
            raise self._silence() from e

    def _silence(self) -> TimeoutError:
        holder = holder_of(self._lock_path)
        who = "the process" if holder is None else f"the process {holder.process}"
        return TimeoutError(f"{who}, which has {self.path} open, did not answer within {PATIENCE_S:g} s")

    def _wake(self) -> None:
        """Those that wait in reached()."""
        found, self._found = self._found, None
        if found is not None and not found.done():
            found.set_result(None)

    async def _follow(self) -> None:
        """Whenever the process that serves has ended, or this one cannot any more, join the next one, or serve."""
        while True:
            if (serving := self._serving) is not None:
                await self._until_trouble(serving.broker)
            elif (peer := self._peer) is not None:
                await asyncio.wait([peer.ended])
                self._peer = None
                self._late.end()
                log.info("%s: the process that served it has ended: %s", self.path, peer.lost)
            try:
                await self._look()
                self._failure = None
            except Exception as e:  # this task is the only one that looks: whatever it was, it goes on
                before, self._failure = str(self._failure), self._typed(e)
                if str(self._failure) != before:  # it is tried again and again
                    log.error("%s cannot be opened: %s", self.path, e, exc_info=self._failure is not e)
            self._wake()
            if self._failure is not None:
                await asyncio.sleep(AGAIN_S)

    async def _until_trouble(self, broker: Broker) -> None:
        """Wait until the broker has a failure that only opening the directory again resolves; close it then, which
        releases the lock: another process may take over.
        """
        while (trouble := broker.trouble) is None:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(TROUBLE_S)
        log.error("%s: this process ends serving it: %s", self.path, trouble)
        self._serving, self._succeeds = None, True
        self._late.end()
        try:
            await finished(asyncio.ensure_future(broker.close()))
        except Exception:  # what follows goes on in any case
            log.exception("%s: the broker did not close in order", self.path)

    def _typed(self, error: Exception) -> EngineError:
        """What the handles are told of an error of opening the directory."""
        if isinstance(error, EngineError):
            return error
        typed = StorageError(f"{self.path} cannot be opened: {type(error).__name__}: {error}")
        typed.__cause__ = error
        return typed

    async def _look(self, wait_s: float = math.inf) -> None:
        """Serve, or join the process that does; one that does not answer is waited for so long. Raises as open()."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            self._check_directory()
            try:
                lock = LockFile(self._lock_path, shared=True)
            except DataDirectoryBusyError:
                holder = holder_of(self._lock_path)
                if holder is not None and not holder.shared:
                    raise
                if await self._joins():
                    return
                if holder is None and loop.time() - begun > UNNAMED_S_MAX:
                    raise
            else:
                await self._serve(lock)
                return
            if loop.time() - begun > wait_s:
                raise self._silence()
            await asyncio.sleep(LOOK_S)

    def _check_directory(self) -> None:
        """Raise DataDirectoryError where it was moved, deleted or replaced: taking over would begin an empty one."""
        if identity_of(self.path) != self._directory:
            raise DataDirectoryError(
                f"{self.path} must be the directory that this process has opened, got another one or none: it was "
                "moved, deleted or replaced"
            )

    # -- serving -------------------------------------------------------------------------------------------------------

    async def _serve(self, lock: LockFile) -> None:
        """Open the directory, and serve it to others."""
        try:
            config = self._terms.config()
            joinable = Joinable(lock, self._answer, self._succeeds or lock.left_behind)
            broker = Broker(self.path, config=config, joinable=joinable, recognise=recogniser())
            serving = _Serving(broker, config)
        except BaseException:
            lock.release()
            raise
        try:
            await serving.broker.start()
            await self._open_doors(serving)
            await self._serve_others(serving.broker, lock)
        except BaseException:
            self._late.end()
            await serving.broker.close()
            lock.release()
            raise
        self._serving, self._urls = serving, serving.doors.urls
        if self._succeeds:
            log.info("%s: this process serves it from now on", self.path)

    async def _open_doors(self, serving: _Serving) -> None:
        """Where the handles have asked for it. One that takes over serves also if an address is in use."""
        if self._following is None:
            self._doors[:] = [await serving.doors.open(doors) for doors in self._doors]
            return

        async def open_here(doors: Doors) -> Doors:
            opened = await serving.doors.open(doors)
            self._urls = serving.doors.urls
            return opened

        await self._late.open(open_here)

    async def _serve_others(self, broker: Broker, lock: LockFile) -> None:
        try:
            await broker.serve_unix(str(self.path / SOCKET_FILE))
        except (ConnectError, InvalidArgumentError) as e:
            lock.note(shared=False)
            log.warning("%s is not shared with other processes: %s", self.path, e)

    async def _join(self, terms: Terms, doors: Doors) -> dict[str, Any]:
        """Another handle, of this process or another: check its configuration, serve at its addresses."""
        if (serving := self._serving) is None:
            raise AlreadyClosedError("the process does not serve any more")
        terms.check(serving.config, str(self.path))
        opened = await serving.doors.open(doors)
        self._urls = serving.doors.urls
        return {"given": dict(self._terms.given), "urls": self._urls, **opened.pack()}

    async def _answer(self, method: str, args: Mapping[str, Any]) -> Any:
        """What another process asks for. Raises what is asked for raises, InvalidArgumentError."""
        try:
            if method == "join":
                return await self._join(Terms(dict(args["given"])), Doors.unpack(args))
            if method == "operation" and (broker := self.broker) is not None:
                from engine.embedded.operations import carry_out  # the table of operations takes long to load

                return await carry_out(broker.parts.admin, args)
        except EngineError:
            raise
        except (KeyError, TypeError, ValueError) as e:
            raise InvalidArgumentError(f"{TARGET} {method:.40}: {e!r}") from e
        raise InvalidArgumentError(f"unknown call {TARGET} {method!r:.40}")

    # -- having joined -------------------------------------------------------------------------------------------------

    async def _joins(self) -> bool:
        """Whether the process that has the lock answers: it is joined then. Raises what it refuses."""
        try:
            peer = await dial(self._connector, self.url)
        except (ConnectError, TimeoutError):
            return False  # it opens the directory, or closes it, or is stopped
        try:
            if self._following is None:
                self._doors[:] = [await self._joins_with(peer, doors) for doors in self._doors]
            else:
                await self._joins_with(peer, Doors())
                await self._late.open(partial(self._joins_with, peer))
                if peer.lost is not None:
                    raise peer.lost
        except EngineError as e:
            peer.stream.abort()
            self._late.end()
            if peer.lost is not None or isinstance(e, AlreadyClosedError):
                return False  # it has ended, or is about to
            raise
        except BaseException:
            peer.stream.abort()
            raise
        self._peer, self._succeeds = peer, True
        return True

    async def _joins_with(self, peer: Peer, doors: Doors) -> Doors:
        answer = await self._ask_to_join(peer, self._terms, doors)
        self._take(answer)
        return Doors.unpack(answer)

    async def _ask_to_join(self, peer: Peer, terms: Terms, doors: Doors) -> dict[str, Any]:
        answer: dict[str, Any] = await self._ask(peer, "join", {"given": dict(terms.given), **doors.pack()})
        return answer

    def _take(self, answer: Mapping[str, Any]) -> None:
        """What the process that serves has told: its configuration, for when this one takes over; its addresses."""
        self._terms = self._terms.over(Terms.told(answer["given"]))
        self._urls = answer["urls"][0], answer["urls"][1]

    async def _ask(self, peer: Peer, method: str, args: dict[str, Any]) -> Any:
        """Of the process that serves. Raises what it answers; ConnectError; TimeoutError, naming it."""
        async with self._patience():
            return await peer.call(TARGET, method, args, 2 * PATIENCE_S)

    # -- for the clients of this process -------------------------------------------------------------------------------

    async def connect(self, handler: Accept) -> FrameStream:
        """A stream to the broker, for a client on this loop. Raises as reached()."""
        broker = await self._alive()
        if broker is not None:
            return connect_pair(handler, broker.accept_local, names=(CLIENT, self.url))
        return await self._connector.connect(self.url, handler)

    async def offer(self) -> MemoryStream | None:
        """The end of a stream to the broker, for a client on another loop; None: that dials the URL.

        Raises as reached().
        """
        broker = await self._alive()
        if broker is None:
            return None
        return offer_pair(broker.accept_local, names=(CLIENT, self.url))

    async def _alive(self) -> Broker | None:
        """reached(), and the process that serves has answered: it may be stopped."""
        async with self._patience():
            while True:
                broker = await self.reached()
                if broker is not None or (self._peer is not None and await self._peer.is_alive()):
                    return broker

    async def operate(self, operation: Operation[R], arguments: Mapping[str, Any]) -> R:
        """An admin operation, here or at the process that serves. Raises as an AdminBackend's call()."""
        broker = await self._alive()
        if broker is not None:
            return await broker.parts.admin.call(operation, arguments)
        if (peer := self._peer) is None:
            raise ConnectError("the process that served has ended")
        from engine.embedded.operations import lost, pack_operation

        try:
            answer = await self._ask(peer, "operation", pack_operation(operation, arguments))
        except ConnectError as e:
            if peer.lost is None:
                raise
            raise lost(operation, e) from e
        return operation.result.of_json(answer)
