r"""Rights: what a check costs, the memory of the grants that it looks in, and what messages cost with rights on.

Instructions do not depend on the load of a machine, so the last is also counted by them. One side's work, once and
six times as much; the difference is that of five times the work, without the start:

    PYTHONHASHSEED=0 valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null \
        python benchmarks/bench_rights.py queue on 1

There the event loop's time runs as much slower as the program does, so that what a broker does now and then is done as
often as without valgrind, and on both sides.

ENGINE_BENCH_ROUNDS=11 takes more turns of both, where the medians of five say too little.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import selectors
import statistics
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import engine
from engine import clock
from engine.broker.rights.audit import Audit
from engine.broker.rights.changes import Changes
from engine.broker.rights.grants import Grants
from engine.broker.rights.need import Need
from engine.broker.rights.principal import Kind, Principal, Proof
from engine.broker.rights.rights import Rights
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.model.rights import Grant, Right

TINY = bool(os.environ.get("ENGINE_BENCH_TINY"))
SIZES = {"grants": 1_000 if TINY else 100_000, "checks": 1_000 if TINY else 200_000}
TURNS = int(os.environ.get("ENGINE_BENCH_ROUNDS", "5"))
SIZES |= {"turns": 1 if TINY else TURNS, "messages": 1_000 if TINY else 50_000, "transactions": 2 if TINY else 300}
SIZES |= {"alone": 16 if TINY else 2_000, "connections": 10 if TINY else 2_000}
ROLES = 5_000
VALUE, LARGE = bytes(100), bytes(1024)
SLOWER = 50.0  # a program under valgrind


def topic(number: int) -> str:
    return f"tenant-{number % 100}/namespace-{number % 1000}/topic-{number}"


def following() -> Grants:
    """5,000 roles, all here."""
    return asyncio.run(_following())


async def _following() -> Grants:
    grants = Grants(MemoryMetadataStore(clock.SystemClock()), lambda role: None)
    for number in range(ROLES):
        grants.use(f"role-{number}")
        await grants.known(f"role-{number}", 60.0)
    return grants


def made(grants: Grants) -> Grants:
    """Grants of the roles, each on a topic."""
    for number in range(SIZES["grants"]):
        grant = Grant(topic(number), f"role-{number % ROLES}", ("produce",))
        grants.note(keys.grant(grant.resource, grant.role), grant.to_json())
    return grants


class Check:
    """One check among 100,000 grants: allowed by the topic's, or denied behind all four look-ups."""

    params: ClassVar = ["allowed", "denied"]
    param_names = ("outcome",)
    unit = "ns/check"

    def setup(self, outcome: str) -> None:
        config = BrokerConfig(roles_file="roles")
        self.rights = Rights(lambda: config, Audit(None, clock.SystemClock()))
        self.rights.use(made(following()), Changes(clock.SystemClock()), random.Random(7))
        self.need = Need(Right.PRODUCE, topic(7 if outcome == "allowed" else 8))
        self.principal = Principal(Kind.ROLE, Proof.JWT, "role-7")

    def track_allows(self, *_: Any) -> float:
        allows, principal, need, count = self.rights.allows, self.principal, self.need, SIZES["checks"]
        best = float("inf")
        for _ in range(5):
            start = time.process_time()
            for _ in range(count):
                allows(principal, need)
            best = min(best, time.process_time() - start)
        return best / count * 1e9


class Memory:
    """100,000 grants of roles that are here."""

    unit = "MB"

    def track_memory(self) -> float:
        grants = following()
        tracemalloc.start()
        try:
            made(grants)
            assert len(grants) == SIZES["grants"]
            return tracemalloc.get_traced_memory()[0] / 1e6
        finally:
            tracemalloc.stop()


class Connect:
    """Connections of one role, one after the other, over TCP: the handshake, a look at a topic, the end."""

    params: ClassVar = ["off", "on"]
    param_names = ("rights",)
    unit = "µs/connection"
    timeout = 600

    def track_time(self, rights: str) -> float:
        return asyncio.run(_connect(rights))


async def _connect(rights: str) -> float:
    with tempfile.TemporaryDirectory() as directory:
        roles = Path(directory) / "roles"
        roles.write_text(line_of("billing", "token") + "\n")
        broker, client = await _side(Path(directory) / rights, _sides(roles)[rights])
        token = "token" if rights == "on" else None
        spent = []
        for _ in range(SIZES["turns"]):
            gc.collect()
            started = time.process_time()
            for _ in range(SIZES["connections"]):
                async with engine.AsyncClient(broker.service_url, token=token) as one:
                    await one.list_topics()
            spent.append(time.process_time() - started)
        await client.close()
        await broker.close()
        return statistics.median(spent) / SIZES["connections"] * 1e6


class WithRights:
    """Processor time of messages over TCP with roles, in that without: medians of turns, one after the other."""

    params: ClassVar = [
        "produce", "attached", "large", "stream", "messages", "queue", "transactions", "one_by_one", "publishers",
    ]  # fmt: skip
    param_names = ("work",)
    unit = "ratio"
    timeout = 600

    def track_ratio(self, work: str) -> float:
        return asyncio.run(_ratio(work))


async def _ratio(work: str) -> float:
    with tempfile.TemporaryDirectory() as directory:
        roles = Path(directory) / "roles"
        roles.write_text(line_of("billing", "token") + "\n")
        sides = [await _side(Path(directory) / name, config) for name, config in _sides(roles).items()]
        spent: list[list[float]] = [[], []]
        for turn in range(SIZES["turns"]):
            for side in (0, 1) if turn % 2 else (1, 0):
                gc.collect()
                started = time.process_time()
                await _WORK[work](sides[side][1], f"{work}-{turn}")
                spent[side].append(time.process_time() - started)
        for broker, client in sides:
            await client.close()
            await broker.close()
        return statistics.median(spent[1]) / statistics.median(spent[0])


def _sides(roles: Path) -> dict[str, BrokerConfig]:
    return {"off": BrokerConfig(), "on": BrokerConfig(roles_file=str(roles))}


async def _side(data: Path, config: BrokerConfig) -> tuple[Broker, engine.AsyncClient]:
    broker = Broker(data, config=config)
    await broker.start()
    host, port = await broker.serve("127.0.0.1", 0)
    await broker.admin.create_topic("orders", durability="os")
    await broker.admin.grant("public", "billing", ["produce", "consume"])
    token = "token" if config.has_roles else None
    return broker, engine.AsyncClient(f"engine://{host}:{port}", token=token)


async def _once(work: str, name: str) -> None:
    """One side's work alone, to be counted."""
    with tempfile.TemporaryDirectory() as directory:
        roles = Path(directory) / "roles"
        roles.write_text(line_of("billing", "token") + "\n")
        broker, client = await _side(Path(directory) / name, _sides(roles)[name])
        await _WORK[work](client, work)
        await client.close()
        await broker.close()


async def _produce(client: engine.AsyncClient, name: str) -> None:
    async with await client.producer("orders", name=name) as producer:
        for number in range(SIZES["messages"]):
            producer.send_nowait(VALUE, key=f"key-{number % 1000}")
            if not number % 256:
                await producer.writable()
        await producer.flush()


async def _large(client: engine.AsyncClient, name: str) -> None:
    await _attached(client, name, LARGE)


async def _attached(client: engine.AsyncClient, name: str, value: bytes = VALUE) -> None:
    """By a producer that stays: messages alone, and nothing of what an attachment costs."""
    producer = _STAYING.get(client)
    if producer is None:
        producer = _STAYING[client] = await client.producer("orders", name=name)
    for number in range(SIZES["messages"]):
        producer.send_nowait(value, key=f"key-{number % 1000}")
        if not number % 256:
            await producer.writable()
    await producer.flush()


_STAYING: WeakKeyDictionary[engine.AsyncClient, engine.AsyncProducer] = WeakKeyDictionary()


async def _stream(client: engine.AsyncClient, name: str) -> None:
    async with await client.stream_consumer("orders", name, initial_position="latest") as consumer:
        await _produce(client, name)
        got = 0
        while got < SIZES["messages"]:
            batch = await consumer.receive_batch()
            got += len(batch)
            await consumer.acknowledge_cumulative(batch)


async def _messages(client: engine.AsyncClient, name: str) -> None:
    """_stream(), of which each message is looked at, and one of 25 awaited to be acknowledged."""
    async with await client.stream_consumer("orders", name, initial_position="latest") as consumer:
        await _produce(client, name)
        for number in range(SIZES["messages"]):
            message = await consumer.receive()
            assert message.value
            if not number % 25:
                await consumer.acknowledge_cumulative(message)


async def _queue(client: engine.AsyncClient, name: str) -> None:
    async with await client.queue_consumer("orders", name, initial_position="latest") as consumer:
        await _produce(client, name)
        got = 0
        while got < SIZES["messages"]:
            batch = await consumer.receive_batch()
            got += len(batch)
            await consumer.acknowledge(batch)


async def _transactions(client: engine.AsyncClient, name: str) -> None:
    async with await client.producer("orders", name=name) as producer:
        for _ in range(SIZES["transactions"]):
            async with client.transaction() as txn:
                for _ in range(10):
                    producer.send_nowait(VALUE, transaction=txn)


async def _one_by_one(client: engine.AsyncClient, name: str) -> None:
    """Each message is received and acknowledged before the next is sent."""
    async with (
        await client.stream_consumer("orders", name, initial_position="latest") as consumer,
        await client.producer("orders", name=name) as producer,
    ):
        for number in range(SIZES["alone"]):
            await producer.send(VALUE, key=f"key-{number % 1000}")
            await consumer.acknowledge_cumulative(await consumer.receive())


async def _publishers(client: engine.AsyncClient, name: str) -> None:
    """64 producers, each with one message in flight."""

    async def publish(number: int) -> None:
        async with await client.producer("orders", name=f"{name}-{number}") as producer:
            for _ in range(SIZES["alone"] // 4):
                await producer.send(VALUE, key=f"key-{number}")

    await asyncio.gather(*(publish(number) for number in range(64)))


_WORK = {"one_by_one": _one_by_one, "publishers": _publishers} | {
    "produce": _produce,
    "attached": _attached,
    "large": _large,
    "messages": _messages,
    "stream": _stream,
    "queue": _queue,
    "transactions": _transactions,
}


class _SlowSelector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout if timeout is None else timeout * SLOWER)


class _SlowLoop(asyncio.SelectorEventLoop):
    """Its seconds take SLOWER seconds."""

    def __init__(self) -> None:
        super().__init__(_SlowSelector())

    def time(self) -> float:
        return super().time() / SLOWER


if __name__ == "__main__":
    times = int(sys.argv[3])
    SIZES.update(messages=10_000 * times, transactions=40 * times, alone=200 * times)
    with asyncio.Runner(loop_factory=_SlowLoop) as runner:
        runner.run(_once(sys.argv[1], sys.argv[2]))
