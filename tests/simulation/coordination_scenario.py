"""Coordinators that die, stall and lose their answers, over one metadata store; segments that are only a model.

The model does by the book what a broker does with a segment: a log, operation records, outcomes that are saved before
the records are deleted, and readers that stop at what is undecided. So whatever the checker finds is the coordinator's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from engine.control.transactions.coordinator import TransactionCoordinator
from engine.errors import EngineError, TransactionConflictError
from engine.errors import TimeoutError as EngineTimeoutError
from engine.metadata import keys
from engine.metadata.store import OutcomeUnknownError, Record
from engine.model.hashrange import HashRange
from engine.model.names import TopicName
from engine.model.transactions import (
    PARTITIONS,
    OperationKind,
    TransactionHeader,
    TransactionOperation,
    TransactionState,
    attempt_number,
    id_text,
    operation_counts,
    parse_id,
)
from engine.testing.checker import check
from engine.testing.cluster import SimCluster
from engine.testing.evidence import Violation
from engine.testing.metadata import FaultyMetadataStore
from engine.testing.process import Process

T = TypeVar("T")
TOPIC = "orders"
INDEX = "txn-writes-by-segment"
RETENTION_S = 8.0
TIMEOUTS_S = (2.0, 5.0, 20.0)
SWEEP_S = 0.5


class Member:
    """One life after another of a broker that only coordinates."""

    def __init__(
        self, cluster: SimCluster, name: str, settle: Callable[[TransactionOperation], Awaitable[None]]
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._settle = settle
        self._lives = 0
        self.start()

    def start(self) -> None:
        """A process that knows nothing but what the store knows."""
        self._lives += 1
        rng = self._cluster.rng(f"{self.name} life {self._lives}")
        self.process = Process(f"{self.name} life {self._lives}")
        self.metadata = FaultyMetadataStore(self._cluster.metadata, rng)
        self.coordinator = TransactionCoordinator(
            self.metadata, self._cluster.clock, rng, self._settle, retention_s=RETENTION_S, named_retention_s=60.0
        )
        self.process.run(asyncio.get_running_loop().create_task, self._sweep())

    async def _sweep(self) -> None:
        """Every member all partitions: two who believe that one is theirs are the rule here."""
        while True:
            await asyncio.sleep(SWEEP_S)
            with contextlib.suppress(EngineError, OutcomeUnknownError):
                await self.coordinator.abort_expired(range(PARTITIONS))
            with contextlib.suppress(EngineError, OutcomeUnknownError):
                await self.coordinator.collect(range(PARTITIONS))

    async def kill(self) -> None:
        """Whatever it was about to do or say is not done or said."""
        await self.process.kill()

    async def ask(self, call: Callable[[TransactionCoordinator], Any], loss: float, rng: random.Random) -> Any:
        """As over a network: it may die meanwhile, or its answer is lost."""
        try:
            result = await self.process.do(lambda: call(self.coordinator))
        except asyncio.CancelledError:
            raise EngineTimeoutError(f"{self.name} did not answer") from None
        if rng.random() < loss:
            raise EngineTimeoutError(f"the answer of {self.name} was lost")
        return result


class ModelSegment:
    """A log in memory that stands for a disk, and the rule. `decided`: what was saved with it."""

    def __init__(self, cluster: SimCluster, number: int) -> None:
        self.name = TopicName.parse(TOPIC).segment(HashRange.whole(), number)
        self.number = number
        self.log: list[tuple[str, int, int]] = []  # value, transaction, attempt
        self.decided: dict[int, bool] = {}
        self._store = cluster.metadata
        self._rng = cluster.rng(f"segment {number}")

    async def write(self, value: str, number: int, attempt: int) -> int:
        """Its offset. Raises TransactionConflictError when the transaction has ended."""
        await self._check(number, None)
        offset = len(self.log)
        self.log.append((value, number, attempt))
        await asyncio.sleep(self._rng.uniform(0, 0.3))
        operation = TransactionOperation(OperationKind.WRITE, self.name, ((offset, offset),), attempt=attempt)
        record = await self._store.put_sequence(
            keys.transaction_ops(id_text(number)),
            operation.to_json(),
            indexes={INDEX: f"{self.name}/{offset:016d}"},
        )
        await self._check(number, record.stat.version)
        return offset

    async def _check(self, number: int, written: int | None) -> None:
        header = await self._header(number)
        state = None if header is None else TransactionHeader.from_json(header.value).state
        behind = written is None or header is None or written > header.stat.version
        if state is not TransactionState.OPEN and behind:
            raise TransactionConflictError(f"{id_text(number)} has ended")

    async def settle(self) -> None:
        """Save what is decided, then delete the records of it."""
        done = []
        for record, offset, outcome in await self.outcomes():
            if outcome is not None:
                self.decided[offset] = outcome
                done.append(record.key)
        await asyncio.sleep(0.001)
        for key in done:
            await self._store.delete(key)

    async def outcomes(self) -> list[tuple[Record, int, bool | None]]:
        """(operation record, offset, whether it counts) of each that is not settled; None: its transaction is open.

        Headers are read before the records: all that was recorded before a decision is there when that is seen.
        """
        headers = {number: await self._header(number) for _, number, _ in list(self.log)}
        start, found = f"{self.name}/", []
        for _, record in await self._store.list_index(INDEX, start, keys.prefix_end(start)):
            operation, header = TransactionOperation.from_json(record.value), headers.get(_number_of(record))
            if header is None and await self._store.get(record.key) is not None:
                header = await self._header(_number_of(record))
                assert header is not None, f"a header is gone, and {record.key} is there"
            if header is not None:
                state = TransactionHeader.from_json(header.value)
                version, written = header.stat.version, record.stat.version
                counts = operation_counts(state, version, operation.attempt, written) if state.state.final else None
                found.append((record, operation.ranges[0][0], counts))
        return found

    async def visible(self) -> list[tuple[int, str]]:
        """(offset, value) of what may be read now."""
        open_ones = {number for _, number, _ in list(self.log) if await self._is_open(number)}
        outcomes = {offset: outcome for _, offset, outcome in await self.outcomes()} | self.decided
        shown = []
        for offset, (value, number, _) in enumerate(list(self.log)):
            outcome = outcomes.get(offset, None if number in open_ones else False)
            if outcome is None:
                break
            if outcome:
                shown.append((offset, value))
        return shown

    async def _header(self, number: int) -> Record | None:
        return await self._store.get(keys.transaction(id_text(number)))

    async def _is_open(self, number: int) -> bool:
        header = await self._header(number)
        return header is not None and not TransactionHeader.from_json(header.value).state.final


def _number_of(record: Record) -> int:
    return parse_id(record.key.split("/")[2])


class CoordinationScenario:
    """Call it with a cluster without brokers; the violations that the checker finds."""

    def __init__(self, users: int = 6, transactions: int = 12, length_s: float = 40.0, loss: float = 0.15) -> None:
        self.users, self.transactions, self.length_s, self.loss = users, transactions, length_s, loss

    async def __call__(self, cluster: SimCluster) -> list[Violation]:
        self.cluster, self.history, self._count = cluster, cluster.history, 0
        self._attempts: dict[int, str | None] = {}
        self.segments = [ModelSegment(cluster, number) for number in range(3)]
        self.members = [Member(cluster, f"b{i}", self._settle) for i in range(3)]
        using = [asyncio.create_task(self._use(cluster.rng(f"user {i}"), f"u{i}")) for i in range(self.users)]
        reading = asyncio.create_task(self._read(cluster.rng("reader")))
        spying = asyncio.create_task(self._spy())
        await self._strike(cluster.rng("nemesis"))
        await asyncio.wait_for(asyncio.gather(*using), 600)
        await asyncio.sleep(max(TIMEOUTS_S) + 10.0)  # what nobody ended has ended
        reading.cancel()
        spying.cancel()
        await self._final(1)
        await asyncio.sleep(90.0)  # everything is collected
        assert not await cluster.metadata.list("/txn/", keys.prefix_end("/txn/")), "a header is never forgotten"
        assert not await cluster.metadata.list("/txn-op/", keys.prefix_end("/txn-op/")), (
            "an operation is never forgotten"
        )
        await self._final(2)
        for member in self.members:
            await member.kill()
        return check(self.history.events)

    async def _settle(self, operation: TransactionOperation) -> None:
        await self.segments[operation.segment.segment_id].settle()

    async def _strike(self, rng: random.Random) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < self.length_s:
            await asyncio.sleep(rng.uniform(0.05, 2.0))
            member, kind = rng.choice(self.members), rng.choice(("kill", "unsure", "away", "slow", "freeze"))
            self.history.record("nemesis", "fault", text=f"{kind}: {member.name}")
            seconds = rng.uniform(0.1, 4.0)
            if kind == "kill":
                await member.kill()
                await asyncio.sleep(seconds / 4)
                member.start()
            elif kind == "freeze":
                member.process.suspend()
                await asyncio.sleep(seconds)
                member.process.resume()
            else:
                metadata = member.metadata
                metadata.unknown_rate = 0.5 if kind == "unsure" else 0.0
                metadata.delay_s_max = 0.5 if kind == "slow" else 0.0
                if kind == "away":
                    metadata.partition()
                await asyncio.sleep(seconds)
                metadata.heal()
                metadata.unknown_rate = metadata.delay_s_max = 0.0

    async def _ask(self, rng: random.Random, call: Callable[[TransactionCoordinator], Any]) -> Any:
        return await rng.choice(self.members).ask(call, self.loss, rng)

    async def _use(self, rng: random.Random, name: str) -> None:
        for _ in range(self.transactions):
            await asyncio.sleep(rng.uniform(0, self.length_s / self.transactions))
            await self._transaction(rng, name)

    async def _transaction(self, rng: random.Random, name: str) -> None:
        job = f"job-{rng.randrange(8)}" if rng.random() < 0.3 else None
        timeout = rng.choice(TIMEOUTS_S)
        call = self.history.invoke(name, "txn_begin", timeout=timeout, name=job)
        try:
            view = await self._ask(rng, lambda coordinator: coordinator.begin(timeout, job))
        except (EngineError, OutcomeUnknownError) as e:
            call.info(repr(e))
            return
        call.ok(transaction=view.id, state=str(view.header.state))
        attempt = f"{name}-{rng.randrange(100)}" if job is not None else None
        self._attempts[attempt_number(attempt)] = attempt
        writes = asyncio.gather(
            *(self._write(rng, name, view.number, attempt) for _ in range(rng.randint(1, 5))),
        )
        if rng.random() < 0.7:  # else it does not wait for them
            await writes
        await asyncio.sleep(rng.uniform(0, 1.0))
        accepted = [attempt] if attempt is not None else None
        ends = {"commit": 0.6, "abort": 0.15, "both": 0.1, "forget": 0.15}
        how = rng.choices(list(ends), list(ends.values()))[0]
        actions = {"both": ["commit", "abort"], "forget": []}.get(how, [how])
        await asyncio.gather(*(self._end(rng, name, view.number, action, accepted) for action in actions))
        await writes

    async def _write(self, rng: random.Random, name: str, number: int, attempt: str | None) -> None:
        await asyncio.sleep(rng.uniform(0, 0.5))
        segment, self._count = rng.choice(self.segments), self._count + 1
        value = f"{name}-{self._count}"
        call = self.history.invoke(
            name, "send", value=value, key=None, topic=TOPIC, transaction=id_text(number), attempt=attempt
        )
        try:
            offset = await segment.write(value, number, attempt_number(attempt))
        except TransactionConflictError as e:
            call.fail(repr(e))
        else:
            call.ok(segment=segment.number, offset=offset)

    async def _end(self, rng: random.Random, name: str, number: int, action: str, accepted: list[str] | None) -> None:
        state = TransactionState.COMMITTED if action == "commit" else TransactionState.ABORTED
        accepted = accepted if action == "commit" else None
        said = {} if accepted is None else {"accepted": accepted}
        call = self.history.invoke(name, "txn_end", transaction=id_text(number), action=action, **said)
        for _ in range(rng.choice((1, 1, 5))):
            try:
                view = await self._ask(rng, lambda coordinator: coordinator.end(number, state, accepted))
            except TransactionConflictError as e:
                call.fail(repr(e))
                return
            except (EngineError, OutcomeUnknownError):
                continue
            call.ok(state=str(view.header.state))
            return
        call.info("no answer")

    async def _spy(self) -> None:
        """Write down what every header comes to, whoever asked for it."""
        async for event in self.cluster.metadata.watch("/txn/"):
            if event.record is not None:
                header, number = TransactionHeader.from_json(event.record.value), event.key.split("/")[2]
                accepted = None if header.accepted is None else [self._attempts[one] for one in header.accepted]
                said = {"state": str(header.state), "accepted": accepted}
                self.history.record("spy", "txn_state", transaction=number, **said)

    async def _read(self, rng: random.Random) -> None:
        """Look again and again at what may be read."""
        seen: dict[int, int] = {}
        attach = self.history.invoke("r", "attach", subscription="r", kind="reader", topic=TOPIC)
        attach.ok()
        while True:
            await asyncio.sleep(rng.uniform(0, 0.3))
            segment = rng.choice(self.segments)
            for offset, value in await segment.visible():
                if offset >= seen.get(segment.number, 0):
                    seen[segment.number] = offset + 1
                    where = {"segment": segment.number, "offset": offset, "topic": TOPIC}
                    self.history.record("r", "deliver", attachment=attach.number, value=value, key=None, **where)

    async def _final(self, reading: int) -> None:
        self.history.record("f", "reading", reading=reading)
        for segment in self.segments:
            for offset, value in await segment.visible():
                where = {"segment": segment.number, "offset": offset, "topic": TOPIC}
                self.history.record("f", "final", reading=reading, value=value, key=None, **where)
