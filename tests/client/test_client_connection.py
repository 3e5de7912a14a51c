"""The handshake, requests, keep-alive, and how a lost connection is made again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Any

import pytest

from engine.client import AsyncClient
from engine.client.base.options import ClientOptions
from engine.client.net.connection import Connection
from engine.client.net.pool import Pool
from engine.clock import SystemClock
from engine.errors import (
    AlreadyClosedError,
    AuthenticationError,
    ConnectError,
    InvalidArgumentError,
    NotFoundError,
    TimeoutError,
    UnsupportedError,
)
from engine.wire.commands import Ack, Command
from tests.kit.fake_broker import URL, FakeBroker


def pool_of(broker: FakeBroker, seed: int = 1) -> Pool:
    return Pool((URL,), ClientOptions(broker, SystemClock(), random.Random(seed)))


async def test_the_handshake_carries_the_token_and_brings_the_addresses(broker: FakeBroker):
    broker.admin = "http://127.0.0.1:8080"
    async with broker.client(token="secret") as client:
        connection = await client.pool.get()
        assert connection.admin_url == broker.admin
    assert broker.of(Command.CONNECT)[0]["token"] == "secret"


async def test_a_refused_handshake_says_why(broker: FakeBroker):
    broker.refusal = AuthenticationError("the token is wrong")
    with pytest.raises(AuthenticationError, match="the token is wrong"):
        async with broker.client():
            pass


async def test_a_broker_that_lacks_a_feature_is_named(broker: FakeBroker):
    broker.features = ["lz4"]
    with pytest.raises(UnsupportedError, match="scalable-topics"):
        async with broker.client():
            pass


async def test_everything_shares_one_connection(broker: FakeBroker, client: AsyncClient):
    producers = await asyncio.gather(*(client.producer("t") for _ in range(5)))
    await client.stream_consumer("t", "s")
    await asyncio.gather(*(p.send(b"x") for p in producers))
    assert len(broker.connections) == 1


async def test_those_who_wait_for_a_connection_share_the_attempt_and_its_outcome(broker: FakeBroker):
    pool = pool_of(broker)
    connections = await asyncio.gather(*(pool.get() for _ in range(5)))
    assert len({id(c) for c in connections}) == 1
    broker.reachable = False
    broker.cut()
    await broker.settle()
    outcomes = await asyncio.gather(*(pool.get() for _ in range(5)), return_exceptions=True)
    assert all(isinstance(o, ConnectError) for o in outcomes)
    broker.reachable = True
    assert (await pool.get()).lost is None
    await pool.close()
    with pytest.raises(AlreadyClosedError):
        await pool.get()


async def test_the_delay_after_failures_grows_and_is_reset_by_a_success(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
):
    pool = pool_of(broker)
    broker.reachable = False
    delays, sleep = [0.0], asyncio.sleep

    async def counted(delay: float, *args: Any) -> Any:
        delays[-1] += delay
        return await sleep(delay, *args)

    monkeypatch.setattr(asyncio, "sleep", counted)
    for _ in range(4):
        with pytest.raises(ConnectError):
            await pool.get()
        delays.append(0.0)
    assert delays[0] == 0
    assert delays[3] >= 0.04
    broker.reachable = True
    await pool.get()
    assert not pool._backoffs
    await pool.close()


async def test_a_request_has_a_time_limit_and_an_answer_that_comes_late_is_dropped(broker: FakeBroker):
    connection: Connection = await pool_of(broker).get()
    broker.confirming = False
    broker.last.consumers[3] = (0, 0)
    with pytest.raises(TimeoutError, match="ACK"):
        await connection.request(Ack(consumer_id=3, ack_type="cumulative", position=0), 0.01)
    request = broker.of(Command.ACK)[0]["request_id"]
    broker.last.stream.send(Command.SUCCESS, {"request_id": request})
    await broker.settle()
    assert connection.lost is None


async def test_requests_under_way_fail_with_the_connection(broker: FakeBroker):
    connection = await pool_of(broker).get()
    broker.confirming = False
    broker.last.consumers[3] = (0, 0)
    ack = Ack(consumer_id=3, ack_type="cumulative", position=0)
    request = connection.start_request(ack)
    broker.cut()
    with pytest.raises(ConnectError):
        await request
    with pytest.raises(ConnectError):
        await connection.start_request(ack)


async def test_a_silent_peer_is_pinged_and_then_dropped(broker: FakeBroker):
    broker.keep_alive = 0.1
    connection = await pool_of(broker).get()
    async with asyncio.timeout(60):
        while len(broker.of(Command.PING)) <= 2:  # noqa: ASYNC110 - the fake broker has no events
            await asyncio.sleep(0.01)
    assert connection.lost is None
    broker.silent = True
    await asyncio.wait_for(connection.ended, 60)
    assert connection.lost is not None


async def test_a_client_that_stood_still_does_not_blame_the_broker(broker: FakeBroker):
    """As when its process was stopped, or had no processor: what came meanwhile is not read yet."""
    broker.keep_alive = 0.2
    connection = await pool_of(broker).get()
    broker.silent = True
    async with asyncio.timeout(60):
        while not connection._silent:  # noqa: ASYNC110 - it is pinged, and does not answer yet
            await asyncio.sleep(0.01)
    time.sleep(0.5)  # noqa: ASYNC251 - the whole process stands still
    broker.silent = False
    async with asyncio.timeout(60):
        while connection._silent:  # noqa: ASYNC110 - it is pinged again, and answers
            await asyncio.sleep(0.01)
    assert connection.lost is None


async def test_a_client_that_closes_while_it_connects_ends_who_waits(broker: FakeBroker):
    for turns in range(8):  # of the loop
        pool = pool_of(broker)
        waiting = asyncio.create_task(pool.get())
        for _ in range(turns):
            await asyncio.sleep(0)
        await pool.close()
        with contextlib.suppress(AlreadyClosedError):
            await asyncio.wait_for(waiting, 60)


async def test_a_ping_is_answered(broker: FakeBroker):
    await pool_of(broker).get()
    broker.last.stream.send(Command.PING, {})
    await broker.settle()
    assert broker.of(Command.PONG)


async def test_garbage_from_the_broker_drops_the_connection_and_nothing_else(broker: FakeBroker, client: AsyncClient):
    producer = await client.producer("t")
    session = broker.last.sessions[0]
    broker.last.stream.send(
        Command.SCALABLE_TOPIC_UPDATE, {"session_id": session, "topic": "t", "epoch": 9, "dag": {"segments": 3}}
    )
    await broker.settle()
    await producer.send(b"x")
    assert len(broker.connections) == 2


async def test_a_topic_that_is_gone_after_a_reconnect_is_not_created_again(broker: FakeBroker, client: AsyncClient):
    producer = await client.producer("t")
    created = []

    def gone(self: Any, header: dict[str, Any], payload: memoryview) -> None:
        created.append(header["create"])
        self.error(header, NotFoundError("no such topic"))

    type(broker.last).scalable_topic_lookup, kept = gone, type(broker.last).scalable_topic_lookup
    try:
        broker.cut()
        while not created:  # noqa: ASYNC110 - the fake broker has no events
            await asyncio.sleep(0.005)
        await broker.settle()
    finally:
        type(broker.last).scalable_topic_lookup = kept
    assert created == [False]
    with pytest.raises(NotFoundError):
        await producer.send(b"x")


async def test_no_admin_api(client: AsyncClient):
    with pytest.raises(UnsupportedError, match="admin"):
        await client.admin.list_topics()


def test_a_malformed_url_is_refused_at_once():
    for url in ("", "http://x", "engine://", "engine://h/path", 3):
        with pytest.raises(InvalidArgumentError):
            AsyncClient(url)  # type: ignore[arg-type]
    for options in ({"memory_limit": 1}, {"operation_timeout": 0}):
        with pytest.raises(InvalidArgumentError):
            AsyncClient("engine://h", **options)  # type: ignore[arg-type]
