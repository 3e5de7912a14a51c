"""Kills a broker at one durable call: before it, or when it is done and nobody has been told.

A durable call is a write to the metadata store or to the disk. Each has a label that says what it is about, so that
tests can name the points of a crash and hold that none is forgotten.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from engine.metadata.store import ConflictError, Delete, Put
from engine.model.transactions import OperationKind, TransactionHeader, TransactionOperation
from engine.testing.cluster import SimBroker, SimCluster
from engine.testing.disk import SimFile

BEFORE, AFTER = "before", "after"


def label_of(operation: str, key: str, value: bytes | None) -> str:
    """What a call is about; empty for what has nothing to do with transactions."""
    what = "delete" if operation.startswith("delete") else "write"
    if operation == "put_with_sequence":
        return "write operation and header"
    if key.startswith("/txn/"):
        return f"{what} header" if value is None else f"write header {TransactionHeader.from_json(value).state}"
    if key.startswith("/txn-name/"):
        return f"{what} name"
    if key.startswith("/txn-op/"):
        if value is None:
            return "delete operation"
        kind = TransactionOperation.from_json(value).kind
        return f"write operation {OperationKind(kind)}"
    if key.endswith("/visibility"):
        return f"{what} visibility"
    return f"{what} cursor" if "/cursors/" in key else ""


class CrashPoints:
    """Counts the durable calls of a broker's lives by their labels, and ends one life at the one that was chosen.

    `strike`: (label, its number from 0, BEFORE or AFTER), or None. `how`: "kill" or "power cut".
    """

    def __init__(
        self, cluster: SimCluster, broker: SimBroker, strike: tuple[str, int, str] | None, how: str = "kill"
    ) -> None:
        self.counts: dict[str, int] = {}
        self.struck = asyncio.Event()
        self._cluster = cluster
        self._broker = broker
        self._strike = strike
        self._how = how
        self._outside = contextvars.copy_context()  # where no process owns what is begun

    def watch(self) -> None:
        """From now on, the present life of the broker."""
        metadata: Any = self._broker.metadata
        for name in ("put", "put_sequence", "put_with_sequence", "delete", "delete_range"):
            setattr(metadata, name, self._through(name, getattr(metadata, name)))
        metadata.write_all = self._through_all(metadata.write_all)

    def _through(self, operation: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def through(key: str | Put, *arguments: Any, **named: Any) -> Any:
            if isinstance(key, Put):
                label = label_of(operation, key.key, key.value)
            else:
                put = operation.startswith("put")
                label = label_of(operation, key, (arguments[0] if arguments else named["value"]) if put else None)
            return await self._around(self._due(label), lambda: call(key, *arguments, **named))

        return through

    def _through_all(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """They are one durable call, which is about all of them."""

        async def through(writes: Sequence[Put | Delete]) -> Any:
            those = [(write.key, write.value if isinstance(write, Put) else None) for write in writes]
            labels = [label_of("delete" if value is None else "put", key, value) for key, value in those]
            dues = [self._due(label) for label in labels]
            return await self._around(next(filter(None, dues), None), lambda: call(writes))

        return through

    async def _around(self, due: str | None, call: Callable[[], Awaitable[Any]]) -> Any:
        if due == BEFORE:
            self._die()
            await asyncio.Event().wait()
        try:
            result = await call()
        except ConflictError:  # it is done, too
            if due != AFTER:
                raise
        if due == AFTER:
            self._die()
            await asyncio.Event().wait()
        return result

    def on_disk(self, operation: str, call: Callable[..., None], file: SimFile, *arguments: Any) -> None:
        """In place of a write or sync of a segment's log."""
        due = self._due(f"{operation} log") if file.path.endswith(".log") else None
        if due != BEFORE:
            call(file, *arguments)
        if due is not None:
            self._die()
            raise OSError(errno.EIO, "the process is dead")

    def _due(self, label: str) -> str | None:
        if not label or self.struck.is_set():
            return None
        number = self.counts.get(label, 0)
        self.counts[label] = number + 1
        return self._strike[2] if self._strike is not None and self._strike[:2] == (label, number) else None

    def _die(self) -> None:
        """At once, as seen from the disk, the network and the metadata store; its tasks end soon."""
        name, broker = self._broker.name, self._broker
        if self._how == "kill":
            broker.disk.kill(name)
        else:
            broker.disk.crash(name)
        self._cluster.network.kill(name)
        assert broker.metadata is not None
        broker.metadata.partition()
        self._outside.copy().run(asyncio.get_running_loop().create_task, self._end())

    async def _end(self) -> None:
        await self._broker.kill()
        self.struck.set()
