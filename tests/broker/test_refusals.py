"""What an attached producer answers when a frame is refused, and what becomes of the frames behind it."""

from __future__ import annotations

import asyncio
from operator import methodcaller
from types import SimpleNamespace
from typing import Any

import pytest

from engine._native.serve.flights import Flight
from engine._native.serve.groups import Appended
from engine._native.serve.landings import Landings
from engine.aio.histogram import Histogram
from engine.broker.pools.pools import PublishMemory
from engine.broker.pools.rates import Rate
from engine.broker.segment.producer import Producer
from engine.errors import EngineError, InvalidArgumentError, StorageError, TransactionConflictError
from engine.limits import MIB
from engine.model.access import AccessMode
from engine.wire import commands
from tests.kit.entry_images import entry


class Bench:
    """A producer whose appends the test ends. It sends frames of one entry, numbered by their sequence ids."""

    def __init__(self) -> None:
        self.said: list[Any] = []  # receipts and errors, in order
        self.appends: list[Flight] = []
        environment = SimpleNamespace(
            publish=PublishMemory(MIB),
            landings=Landings(methodcaller("answer")),
            latency=SimpleNamespace(now=lambda: 0.0, publish_to_durable_s=Histogram()),
        )
        segment = SimpleNamespace(append_for=self._append, durability="fsync")
        access = SimpleNamespace(detach=lambda _: None)
        hosted = SimpleNamespace(
            environment=environment, segment=segment, access=access, incoming=Rate(lambda: 0.0), term=1,
            encrypted_only=False, transactions=None, refused_entries=0, name="segment",
        )  # fmt: skip
        connection = SimpleNamespace(
            pressure=None, send=self.said.append, receipt=self.said.append, forget=lambda *_, **__: None,
            sends=SimpleNamespace(dropped=lambda _: None),
        )  # fmt: skip
        self.producer = Producer(connection, 1, hosted, "p", AccessMode.SHARED)  # type: ignore[arg-type]

    def _append(self, flight: Flight, payload: memoryview, name: str, term: int) -> None:
        self.appends.append(flight)

    def send(self, *sequences: int) -> None:
        for sequence in sequences:
            self.producer.send(memoryview(entry(sequence)))

    async def stored(self, *sequences: int) -> None:
        for sequence in sequences:
            self.appends[sequence].set_result([Appended(sequence, sequence, 100 + sequence, 1, False)])
        await asyncio.sleep(0)

    async def refused(self, sequence: int, error: EngineError) -> None:
        self.appends[sequence].set_exception(error)
        await asyncio.sleep(0)

    @property
    def answers(self) -> list[Any]:
        """Sequence ids of receipts, -sequence - 1 for errors, the type of the error that has ended the attachment."""
        found: list[Any] = []
        for one in self.said:
            if isinstance(one, commands.SendReceipt):
                found += one.sequences
            elif isinstance(one, commands.SendError):
                found.append(-one.sequence - 1)
            else:
                found.append(type(EngineError.from_code(one.code, "")))
        return found


async def test_frames_behind_one_of_a_transaction_that_is_over_are_answered_first() -> None:
    """They are being appended, and their records may be in time: a client must not take them for refused."""
    bench = Bench()
    bench.send(0, 1, 2, 3)
    await bench.stored(0, 2)
    await bench.refused(1, TransactionConflictError("over"))
    assert bench.answers == [0, -2, 2]
    bench.send(4)
    assert len(bench.appends) == 4, "what comes behind the refusal is dropped, to be sent again"
    await bench.stored(3)
    assert bench.answers == [0, -2, 2, 3, TransactionConflictError]
    assert bench.producer.closed


async def test_another_error_ends_the_attachment_at_once() -> None:
    bench = Bench()
    bench.send(0, 1, 2)
    await bench.stored(0, 2)
    await bench.refused(1, StorageError("disk"))
    assert bench.answers == [0, -2, StorageError]


async def test_an_error_about_one_entry_ends_nothing() -> None:
    bench = Bench()
    bench.send(0, 1, 2)
    await bench.refused(0, InvalidArgumentError("no"))
    await bench.stored(1, 2)
    assert bench.answers == [-1, 1, 2]
    assert not bench.producer.closed


@pytest.mark.parametrize("first", [True, False])
async def test_two_transactions_may_be_over(first: bool) -> None:
    bench = Bench()
    bench.send(0, 1, 2)
    for sequence in (0, 1) if first else (1, 0):
        await bench.refused(sequence, TransactionConflictError("over"))
    await bench.stored(2)
    assert bench.answers == [-1, -2, 2, TransactionConflictError]
