"""Clients that commit behind what they have sent, with raw frames, and the writes that this makes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine.broker.server import Broker
from engine.errors import EngineError
from engine.metadata.store import Put
from engine.model.transactions import TransactionState, parse_id
from engine.wire.commands import Command
from tests.broker.transacting import begin, coordinator, end, entry, send, write
from tests.kit.peer import Peer

WRITES = ("put", "put_sequence", "put_with_sequence", "delete", "delete_range")


class Writes:
    """Notes the writes to transactions in the metadata store; `gates`: what one of them waits for, by its name."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.begun = asyncio.Event()
        self.gates: dict[str, asyncio.Event] = {}
        self.faults: dict[str, list[tuple[Exception, bool]]] = {}  # what it raises, after or before it is done
        store: Any = broker.metadata
        for name in WRITES:
            monkeypatch.setattr(store, name, self._through(name, getattr(store, name)))
        monkeypatch.setattr(store, "write_all", self._through_all(store.write_all))

    def _through(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def through(key: str | Put, *arguments: Any, **named: Any) -> Any:
            if not (key.key if isinstance(key, Put) else key).startswith("/txn"):
                return await call(key, *arguments, **named)
            self.names.append(name)
            if name in self.gates:
                self.begun.set()
                await self.gates[name].wait()
            error, done = self.faults[name].pop(0) if self.faults.get(name) else (None, True)
            result = await call(key, *arguments, **named) if done else None
            if error is not None:
                raise error
            return result

        return through

    def _through_all(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def through(writes: Sequence[Any]) -> Any:
            self.names += ["write_all" for _ in writes[:1] if writes[0].key.startswith("/txn")]
            return await call(writes)

        return through


class Sender:
    """A peer with producers on two segments that are attached and have sent in transactions before."""

    def __init__(self, peer: Peer, segments: list[str]) -> None:
        self.peer = peer
        self.segments = segments
        self.producers: list[int] = []
        self.transaction = ""
        self._sequence = 0

    @classmethod
    async def ready(cls, peer: Peer, name: str = "p") -> Sender:
        """With a transaction in which nothing was sent yet, and which the segments' owner knows."""
        one = cls(peer, [await peer.segment(topic) for topic in ("orders", "invoices")])
        one.producers = [await peer.producer(segment, name) for segment in one.segments]
        one.transaction = await begin(peer)
        for producer in one.producers:
            await write(peer, producer, 0, [b"%d" % producer], one.transaction, producer=name)
        await end(peer, one.transaction)
        one.transaction = await begin(peer)
        return one

    def send(self, *values: bytes, name: str = "p") -> None:
        """One frame for each, in turns to the segments."""
        for at, value in enumerate(values):
            self._sequence += 1
            image = entry(self._sequence, [value], self.transaction, producer=name)
            send(self.peer, self.producers[at % 2], [image], self.transaction)

    def send_again(self, value: bytes, name: str = "p") -> None:
        """The only frame that was sent, from the start."""
        self._sequence -= 1
        self.send(value, name=name)

    def end(self, sent: int | None, **more: Any) -> asyncio.Task[Any]:
        """Goes out at once, behind the frames; the state in its answer."""
        header = {"request_id": self.peer.next_id(), "id": self.transaction, "action": "commit", "sent": sent, **more}
        self.peer.send(Command.END_TXN, header)
        return asyncio.ensure_future(self._state(header["request_id"]))

    async def _state(self, request_id: int) -> Any:
        kind, answer, _ = await self.peer.take(Command.SUCCESS, Command.ERROR, request_id=request_id)
        if kind is Command.ERROR:
            raise EngineError.from_code(answer["code"], answer["message"])
        return answer["result"]["state"]

    async def receipts(self) -> list[tuple[int, int]]:
        """Of the next frame with receipts: producer and offset of each entry."""
        _, header, _ = await self.peer.take(Command.SEND_RECEIPT)
        every = [header, *(header.get("more") or ())]
        return [(one["producer_id"], offset) for one in every for offset in one["offsets"]]


async def records(broker: Broker, transaction: str) -> int:
    return len(await coordinator(broker).operations(parse_id(transaction)))


async def state(broker: Broker, transaction: str) -> TransactionState:
    return (await coordinator(broker).get(parse_id(transaction))).header.state
