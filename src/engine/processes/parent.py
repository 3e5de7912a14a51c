"""`Parent`: the process that holds the metadata store of a server, and starts, watches and ends its children.

    parent    metadata.db and its lock · metadata.sock · supervision
    child 0   a broker: its own port and Unix socket, and its part of the shared address and of the admin API
    child 1   …

The children inherit the lock's descriptor: the lock is free when the last process that may still write to the directory
has ended, whatever ended the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine.aio.shielded import shielded
from engine.aio.tasks import Supervisor
from engine.broker.metrics.exposition import FlatFamily
from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.doors import check_exposed
from engine.clock import SystemClock
from engine.errors import ConnectError, EngineError, StorageError
from engine.processes.backups import BackupCalls, Standing, backups_of
from engine.processes.channel import Answers, Channel
from engine.processes.child import Duty
from engine.processes.directory import Directory
from engine.processes.metrics import parent_families
from engine.processes.one_port import OnePort
from engine.processes.sockets import Address, ServerSockets
from engine.processes.spawn import Launch, Launched
from engine.processes.supervision import Action, State, Supervision, Verb
from engine.wire.url import format_unix_url

log = logging.getLogger(__name__)

LOCAL_SOCKET = "engine.sock"
_STORE_S = 1.0  # between two looks whether the metadata store has stopped
_CONFIGURE_S_MAX = 10.0  # a child that does not answer in time is reported
_METRICS_S_MAX = 5.0  # a child that does not answer in time is left out of the metrics


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for. `first_port`: of the first child, 0: any; None: the port after that of `listen`.

    `one_port`: the children have no ports; clients reach them through `listen` alone.
    """

    data: Path
    count: int
    listen: Address
    admin: Address | None
    first_port: int | None = None
    one_port: bool = False

    @property
    def ports(self) -> list[int]:
        """Of the children; 0: any."""
        if self.one_port:
            return []
        port = self.listen[1]
        first = self.first_port if self.first_port is not None else port and port + 1
        return [first and first + index for index in range(self.count)]


@dataclass(frozen=True, slots=True)
class _Child:
    """A running process, and the end of the channel to it."""

    process: Launched
    channel: Channel


class Parent:
    """Made for one start(). `launch` starts a program whose first inherited descriptor is its channel to the parent."""

    def __init__(self, plan: Plan, config: BrokerConfig, launch: Launch) -> None:
        self.plan = plan
        self.config = config
        self.supervision = Supervision(plan.count)
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # raises why the server ends
        self._data = plan.data.absolute()
        self._urls = [format_unix_url(self._path(index)) for index in range(plan.count)]
        self._launch = launch
        self._clock = SystemClock()
        self._children: dict[int, _Child] = {}
        self._tasks = Supervisor("server processes")
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()  # set when a process has changed its state
        self._closing: asyncio.Task[None] | None = None
        # Made by start().
        self._directory: Directory | None = None
        self._backups: BackupCalls | None = None
        self._sockets: ServerSockets | None = None
        self._front: OnePort | None = None

    def _path(self, index: int) -> str:
        return str(self._data / f"engine-{index}.sock")

    @property
    def local_url(self) -> str:
        """The Unix socket that all children serve."""
        return format_unix_url(str(self._data / LOCAL_SOCKET))

    def pids(self) -> dict[int, int]:
        """The process ids of the children that run, by index."""
        return {index: child.process.pid for index, child in sorted(self._children.items())}

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> tuple[Address, Address | None]:
        """Start everything; the addresses for clients and of the admin API, once every child serves.

        Raises what opening a directory, listening, and the start of a broker raise.
        """
        plan = self.plan
        for where in (plan.listen, plan.admin):
            if where is not None:
                await check_exposed(where[0], self.config)
        try:
            self._directory = await Directory.open(self._data, self.config, self._clock)
            backups = backups_of(self._directory.store, self._data, self._clock, Standing(self._serving, self._clock))
            self._backups = BackupCalls(backups)
            self._tasks.spawn(backups.run(), "backups")
            sockets = ServerSockets.bind(plan.listen, plan.admin, plan.ports, str(self._data / LOCAL_SOCKET))
            self._sockets = sockets
            self._act(self.supervision.begin(self._clock.monotonic()))
            await self._complete()
            self._tasks.spawn(self._watch_store(), "watch of the metadata store")
            if plan.one_port:
                self._front = OnePort(self._urls, self.config, sockets.admin)
                await self._front.serve(sockets.clients)
        except BaseException:
            await self.close()
            raise
        return sockets.clients.addresses[0], None if sockets.admin is None else sockets.admin.addresses[0]

    async def _complete(self) -> None:
        """Wait until all children serve. Raises what ends the server."""
        while not self.supervision.complete:
            self._changed.clear()
            await self._changed.wait()
            if self.over.done():
                self.over.result()

    async def _watch_store(self) -> None:
        """End the server when its metadata store has stopped: only opening the file again can help."""
        assert self._directory is not None
        while (failure := self._directory.store.failure) is None:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(_STORE_S)
        if not self.over.done():
            self.over.set_exception(StorageError(failure))
            self.over.exception()  # retrieved: the server may be closing

    async def close(self) -> None:
        """End all children in order, then the store. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await shielded(self._closing)

    async def _close(self) -> None:
        if self._front is not None:
            await self._front.close()
        self._act(self.supervision.stop(self._clock.monotonic()))
        while not self.supervision.over:
            self._changed.clear()
            await self._changed.wait()
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()
        if self._sockets is not None:
            self._sockets.close()
        if self._directory is not None:
            await self._directory.close()

    async def configure(self, config: BrokerConfig) -> None:
        """Have all children put a configuration into effect, also those that are starting, or are started later.

        Raises InvalidConfigurationError; nothing is changed then.
        """
        if self._front is not None:
            self._front.configure(config)
        self.config = config
        await asyncio.gather(*(self._configure(index, child) for index, child in self._children.items()))

    async def _configure(self, index: int, child: _Child) -> None:
        try:
            async with asyncio.timeout(_CONFIGURE_S_MAX):
                await child.channel.call("configure", config=dataclasses.asdict(self.config))
        except TimeoutError:
            log.error("process %d did not apply the configuration within %g s", index, _CONFIGURE_S_MAX)
        except EngineError as e:
            log.error("process %d did not apply the configuration: %s", index, e)

    # -- what supervision decides ------------------------------------------------------------------------------------

    def _act(self, actions: Sequence[Action]) -> None:
        """Do what was decided, and come back when the next decision is due."""
        for action in actions:
            self._tasks.spawn(self._do(action), f"{action.verb.value} process {action.index}")
        self._changed.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.supervision.next_due
        if due is not None:
            delay = max(due - self._clock.monotonic(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._act(self.supervision.tick(self._clock.monotonic()))

    async def _do(self, action: Action) -> None:
        child = self._children.get(action.index)
        if action.verb is Verb.START:
            await self._run(action.index)
        elif child is not None and action.verb is Verb.KILL:
            log.error("process %d has not ended, and is killed", action.index)
            child.process.kill()
        elif child is not None and action.verb is Verb.STOP:
            with contextlib.suppress(EngineError):  # it has ended already
                await child.channel.call("stop")

    async def _run(self, index: int) -> None:
        """The life of one process."""
        refusal: EngineError | OSError | None = None
        child: _Child | None = None
        try:
            child = self._children[index] = await self._launched(index)
            await child.channel.call("start", duty=self._duty(index))
            self.supervision.serves(index, self._clock.monotonic())
            log.info("process %d serves", index, extra={"process_index": index, "pid": child.process.pid})
            self._act(())
        except (EngineError, OSError) as e:
            if child is None or not child.channel.ended.done():
                refusal = e
        why = str(refusal)
        if child is not None:
            if refusal is not None:
                child.process.kill()
            await child.channel.ended
            code = await child.process.wait()
            why = why if refusal is not None else f"exit code {code}"
            del self._children[index]
            await child.channel.close()
        await self._ended(index, refusal, why)

    async def _launched(self, index: int) -> _Child:
        assert self._sockets is not None
        assert self._directory is not None
        assert self._backups is not None
        ours, theirs = socket.socketpair()
        with theirs:
            shared = self._sockets.shared(with_clients=not self.plan.one_port)
            inherited = [theirs.fileno(), *self._directory.lock.descriptors(), *shared]
            process = self._launch(index, inherited)
        answers: Answers = {"metrics": self._metrics, "backup": self._backups.call}
        return _Child(process, await Channel.open(ours, answers, f"process {index}"))

    def _serving(self) -> dict[int, Channel]:
        """The channels to all children; none where one of them does not serve now."""
        return {i: child.channel for i, child in self._children.items()} if self.supervision.complete else {}

    def _duty(self, index: int) -> Any:
        assert self._sockets is not None
        assert self._directory is not None
        sockets = self._sockets
        duty = Duty(
            data=str(self._data),
            metadata=self._directory.url,
            config=dataclasses.asdict(self.config),
            index=index,
            urls=self._urls,
            ports=[own.port for own in sockets.own],
            own=sockets.own[index].addresses if sockets.own else [],
            own_path=self._path(index),
            clients=[] if self.plan.one_port else sockets.clients.descriptors,
            admin=[] if sockets.admin is None else sockets.admin.descriptors,
            local=sockets.local.fileno(),
            local_path=sockets.local_path,
        )
        return msgspec.to_builtins(duty)

    async def _ended(self, index: int, refusal: EngineError | OSError | None, why: str) -> None:
        """A process has ended: end its session, so that others take its segments over at once, and start another."""
        assert self._directory is not None
        if self.supervision.processes[index].state is not State.STOPPING:
            log.warning("process %d has ended: %s", index, why, extra={"process_index": index})
        try:
            await self._directory.end_broker(self._urls[index])
        except Exception as e:  # the store cannot write: it tries again, and the process is started again all the same
            log.error("the metadata session of process %d was not ended: %s", index, e)
        actions = self.supervision.died(index, self._clock.monotonic(), refused=refusal is not None)
        if any(action.verb is Verb.FAIL for action in actions) and not self.over.done():
            self.over.set_exception(refusal or ConnectError(f"process {index} has ended: {why}"))
            self.over.exception()  # retrieved: the server may be closing
        self._act(actions)

    # -- metrics -----------------------------------------------------------------------------------------------------

    async def _metrics(self, besides: int) -> list[Sequence[FlatFamily]]:
        """The metrics of this process, and of the children besides the one that asks."""
        assert self._directory is not None
        assert self._backups is not None
        others = [child for index, child in sorted(self._children.items()) if index != besides]
        found = await asyncio.gather(*(self._metrics_of(child) for child in others))
        proxy = None if self._front is None else self._front.proxy
        return [parent_families(self.supervision, self._directory.store, self._backups.statistics(), proxy), *found]

    async def _metrics_of(self, child: _Child) -> Sequence[FlatFamily]:
        try:
            async with asyncio.timeout(_METRICS_S_MAX):
                found: list[FlatFamily] = await child.channel.call("metrics")
                return found
        except (EngineError, TimeoutError):
            return []
