"""Whether a broker lives, and whether it should be sent work, in every state it can be in."""

from __future__ import annotations

import asyncio
import errno
import random
from typing import Any

import aiohttp
import pytest

from engine.broker.metrics.health import DISK_S, LAG_S_MAX, unready
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.errors import InvalidArgumentError
from engine.testing.disk import Fault, SimDisk
from tests.broker.over_http import call
from tests.kit.peer import Peer, make_entries


async def reasons(http: aiohttp.ClientSession, status: int = 503) -> list[str]:
    """What /ready gives as reasons; it has to have the status."""
    answer = await call(http, "GET", "/ready", status)
    assert answer["ready"] is (status == 200)
    assert all(reason["why"] for reason in answer["reasons"])
    return [reason["what"] for reason in answer["reasons"]]


class Served:
    """The admin API of one broker, whatever state it is in."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def __aenter__(self) -> aiohttp.ClientSession:
        host, port = await self.broker.serve_admin("127.0.0.1", 0)
        self.http = aiohttp.ClientSession(f"http://{host}:{port}")
        return self.http

    async def __aexit__(self, *error: object) -> None:
        await self.http.close()
        await self.broker.close()


class Gate:
    """Holds up a coroutine at one place until it is opened."""

    def __init__(self, then: Any) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self._then = then

    async def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.reached.set()
        await self.open.wait()
        return await self._then(*arguments, **named)


async def test_a_broker_at_work_is_alive_and_ready(broker, http):
    assert await reasons(http, 200) == []
    assert (await call(http, "GET", "/health", 200))["status"] == "ok"


async def test_neither_asks_for_a_token(start_broker):
    async with start_broker(auth_token="secret") as broker, Served(broker) as http:
        assert await reasons(http, 200) == []
        await call(http, "GET", "/health", 200)
        await call(http, "GET", "/metrics", 401)
        await call(http, "GET", "/admin/v2/brokers/configuration", 401)


async def test_while_it_starts_it_lives_and_is_not_ready(tmp_path, monkeypatch):
    broker = Broker(tmp_path / "data")
    gate = Gate(broker._open)
    monkeypatch.setattr(broker, "_open", gate)
    async with Served(broker) as http:
        starting = asyncio.create_task(broker.start())
        await gate.reached.wait()
        assert await reasons(http) == ["starting"]
        assert (await call(http, "GET", "/health", 200))["status"] == "starting"
        await call(http, "GET", "/admin/v2/scalable/public/default", 503)
        await call(http, "GET", "/metrics", 200)
        gate.open.set()
        await starting
        assert await reasons(http, 200) == []
        assert await call(http, "GET", "/admin/v2/scalable/public/default", 200) == []


async def test_while_it_closes_it_lives_and_is_not_ready(tmp_path, monkeypatch):
    broker = Broker(tmp_path / "data")
    await broker.start()
    async with Served(broker) as http:
        gate = Gate(broker.members.close_segments)
        monkeypatch.setattr(broker.members, "close_segments", gate)
        closing = asyncio.create_task(broker.close())
        await gate.reached.wait()
        assert await reasons(http) == ["closing"]
        assert (await call(http, "GET", "/health", 200))["status"] == "closing"
        await call(http, "PUT", "/admin/v2/scalable/public/default/orders", 503)
        gate.open.set()
        await closing


async def test_what_is_being_answered_is_answered_before_it_closes(broker, http, monkeypatch):
    gate = Gate(broker.admin.local.create_topic)
    monkeypatch.setattr(broker.admin.local, "create_topic", gate)
    asked = asyncio.create_task(call(http, "PUT", "/admin/v2/scalable/public/default/orders"))
    await gate.reached.wait()
    closing = asyncio.create_task(broker.close())
    assert (await asyncio.wait({asked, closing}, timeout=0.05))[0] == set()
    gate.open.set()
    await asked
    await closing


@pytest.mark.parametrize(("operation", "error"), [("write", errno.ENOSPC), ("write", errno.EIO), ("sync", errno.EIO)])
async def test_a_disk_that_failed_speaks_against_it_until_it_works(tmp_path, operation, error):
    disk = SimDisk(random.Random(1))
    broker = Broker(tmp_path / "data", disk=disk.mount())
    await broker.start()
    async with Served(broker) as http:
        peer = await Peer.connect(broker)
        producer = await peer.producer(await peer.segment("orders"))
        disk.faults.append(Fault(operation, error))
        peer.publish(producer, make_entries([b"1"]))
        await peer.until(lambda: broker.store.statistics().trouble)
        assert await reasons(http) == ["disk"]
        assert (await call(http, "GET", "/health", 200))["status"] == "ok"
        peer.publish(await peer.producer(await peer.segment("others")), make_entries([b"2"]))
        await peer.until(lambda: broker.store.statistics().trouble is None)
        assert await reasons(http, 200) == []


async def test_a_failure_is_not_held_against_it_for_ever(broker):
    """Nobody who is sent elsewhere shows that the disk works again."""
    metrics = broker.store._context.metrics
    metrics.trouble = (broker.clock.monotonic(), "no space")
    assert [reason.what for reason in unready(broker)] == ["disk"]
    metrics.trouble = (broker.clock.monotonic() - DISK_S - 1, "no space")
    assert unready(broker) == []


async def test_metadata_that_only_a_restart_mends(broker, http, monkeypatch):
    monkeypatch.setattr(broker.metadata, "_failure", "the metadata store stopped")
    assert await reasons(http) == ["metadata"]
    await call(http, "GET", "/health", 503)


async def test_a_session_that_is_over(broker, http, monkeypatch):
    monkeypatch.setattr(broker.members.brokers, "_session", None)
    assert await reasons(http) == ["session"]
    await call(http, "GET", "/health", 200)


async def test_a_loop_that_is_stuck(broker, http):
    broker.loop_lag._last.append(LAG_S_MAX + 1)
    assert await reasons(http) == ["loop"]


async def test_several_reasons_are_all_given(broker, http, monkeypatch):
    broker.loop_lag._last.append(LAG_S_MAX + 1)
    monkeypatch.setattr(broker.members.brokers, "_session", None)
    assert await reasons(http) == ["session", "loop"]


async def test_nothing_is_left_of_a_broker_that_could_not_start(tmp_path):
    (tmp_path / "data").write_text("not a directory")
    broker = Broker(tmp_path / "data", config=BrokerConfig())
    async with Served(broker) as http:
        with pytest.raises(InvalidArgumentError):
            await broker.start()
        assert await reasons(http) == ["starting"]
