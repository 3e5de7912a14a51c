"""Three brokers on real files and real sockets that share a metadata store in memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import engine.broker.cluster.peers
from engine.broker.cluster.peers import Peer, Peers
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.client.client import AsyncClient
from engine.clock import SystemClock
from engine.errors import AuthenticationError, ConnectError, InvalidArgumentError, TimeoutError, UnsupportedError
from engine.metadata.memory import MemoryMetadataStore
from engine.model.positions import Checkpoint
from engine.wire.connector import SocketConnector
from engine.wire.url import parse_url

TOKEN = "a-shared-token"


def free_url() -> str:
    """A broker says its address before it listens there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"engine://127.0.0.1:{probe.getsockname()[1]}"


@asynccontextmanager
async def brokers(path: Path, count: int = 3) -> AsyncIterator[list[Broker]]:
    clock = SystemClock()
    root = MemoryMetadataStore(clock, leases=True)
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            url = free_url()
            handle = root.client()
            config = BrokerConfig(service_url=url, auth_token=TOKEN, session_timeout=5.0, segments=6)
            broker = Broker(path, config=config, metadata=handle, clock=clock)
            await broker.start()
            await broker.serve(*parse_url(url))
            stack.push_async_callback(handle.close)
            stack.push_async_callback(broker.close)
            found.append(broker)
        yield found


async def test_produce_and_consume_over_three_brokers(tmp_path: Path) -> None:
    async with brokers(tmp_path) as found, AsyncClient(found[0].service_url, token=TOKEN) as client:
        producer = await client.producer("orders")
        stream = await client.stream_consumer("orders", "s", initial_position="earliest")
        for i in range(100):
            await producer.send(b"%d" % i, key=f"key-{i}")
        assert sum(1 for b in found if len(b.segments)) >= 2
        await found[2].admin.split_segment("orders", 0)
        await found[2].close()  # the others have its segments at once
        for i in range(100, 200):
            await producer.send(b"%d" % i, key=f"key-{i}")
        got: set[int] = set()
        while len(got) < 200:
            batch = await stream.receive_batch(timeout=20)
            assert len(batch)
            got.update(int(m.value) for m in batch)
            await stream.acknowledge_cumulative(batch)
        reader = await client.checkpoint_consumer("orders", start=Checkpoint.earliest())
        again: list[int] = []
        while len(again) < 200:
            batch = await reader.receive_batch(timeout=20)
            assert len(batch)
            again += [int(m.value) for m in batch]
        assert sorted(again) == list(range(200))


async def test_only_who_knows_the_token_calls_a_broker(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as (broker,):
        stranger = Peers(SocketConnector(), "another token")
        with pytest.raises(AuthenticationError):
            await stranger.call(broker.service_url, "admin", "delete_topic", {}, 5)
        await stranger.close()


@pytest.mark.parametrize(
    ("target", "method", "args"),
    [
        ("moon", "land", {}),
        ("segment", "statistics", {}),
        ("segment", "statistics", {"spec": {"name": "?"}}),
        ("segment", "explode", {"spec": None}),
        ("admin", "delete_topic", {}),
        ("admin", "close", {"topic": "t", "arguments": {}}),
        ("service", "ensure_subscription", {"topic": "t"}),
    ],
)
async def test_a_call_that_makes_no_sense_is_refused_by_name(
    tmp_path: Path, target: str, method: str, args: dict[str, object]
) -> None:
    async with brokers(tmp_path, 1) as (broker,):
        peers = Peers(SocketConnector(), TOKEN)
        with pytest.raises(InvalidArgumentError):
            await peers.call(broker.service_url, target, method, args, 5)
        await peers.close()


async def test_a_slow_call_is_its_own_matter_and_only_silence_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.broker.cluster.peers, "PONG_S_MAX", 60.0)
    async with brokers(tmp_path, 1) as (broker,):
        silent, trusted = asyncio.Event(), asyncio.Event()
        trust = Peer._trust
        monkeypatch.setattr(Peer, "_trust", lambda peer: (trusted.set(), trust(peer)))
        answer = broker.calls.answer

        async def slow(target: str, *rest: Any) -> Any:
            if target == "slow":
                await silent.wait()
            return await answer(target, *rest)

        broker.calls.answer = slow  # type: ignore[method-assign]
        peers = Peers(SocketConnector(), TOKEN)
        other = asyncio.create_task(peers.call(broker.service_url, "slow", "other", {}, 10))
        with pytest.raises(TimeoutError):
            await peers.call(broker.service_url, "slow", "call", {}, 0.05)
        await asyncio.wait_for(trusted.wait(), 60)  # the PING was answered
        assert len(broker.connections) == 1
        silent.set()
        with pytest.raises(InvalidArgumentError):
            await other
        silent.clear()
        with monkeypatch.context() as patch:
            (connection,) = broker.connections
            patch.setattr(connection.stream.reader, "deliver_to", lambda *_: None)
            patch.setattr(engine.broker.cluster.peers, "PONG_S_MAX", 0.1)
            other = asyncio.create_task(peers.call(broker.service_url, "slow", "other", {}, 10))
            with pytest.raises(TimeoutError):
                await peers.call(broker.service_url, "slow", "call", {}, 0.05)
            with pytest.raises(ConnectError, match="did not answer PING"):
                await other
        with pytest.raises(InvalidArgumentError):
            await peers.call(broker.service_url, "segment", "statistics", {}, 5)
        await peers.close()


async def test_a_call_is_given_up_and_the_connection_made_anew(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1) as (broker,):
        silent = asyncio.Event()

        async def never(*_: object) -> dict[str, object]:
            await silent.wait()
            return {}

        answer, broker.calls.answer = broker.calls.answer, never  # type: ignore[method-assign,assignment]
        peers = Peers(SocketConnector(), TOKEN)
        with pytest.raises(TimeoutError, match="may be repeated"):
            await peers.call(broker.service_url, "segment", "statistics", {}, 0.05)
        broker.calls.answer = answer  # type: ignore[method-assign]
        with pytest.raises(InvalidArgumentError):
            await peers.call(broker.service_url, "segment", "statistics", {}, 5)
        for connection in list(broker.connections):
            connection.stream.abort()
        await asyncio.sleep(0.05)
        with pytest.raises((InvalidArgumentError, ConnectError)):
            await peers.call(broker.service_url, "segment", "statistics", {}, 5)
        silent.set()
        await peers.close()


async def test_a_broker_that_is_alone_takes_no_calls_of_brokers(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        broker = Broker(tmp_path)
        await broker.start()
        stack.push_async_callback(broker.close)
        await broker.serve("127.0.0.1", 0)
        peers = Peers(SocketConnector(), None)
        stack.push_async_callback(peers.close)
        for target, args in (("admin", {"topic": "t", "arguments": {}}), ("segment", {})):
            with pytest.raises(UnsupportedError, match="needs a shared metadata store"):
                await peers.call(broker.service_url, target, "delete_topic", args, 5)
