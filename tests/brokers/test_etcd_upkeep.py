"""What brokers do for etcd and say of it: its history is forgotten, and one that is full is an error of its own."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.broker.upkeep import history
from engine.broker.upkeep.cluster_check import FAILED, OK, WARNING, findings_of, standing
from engine.client.client import AsyncClient
from engine.clock import SystemClock
from engine.control.base.brokers import BrokerRecord
from engine.errors import DiskFullError
from engine.metadata import keys
from engine.metadata.etcd.store import EtcdMetadataStore
from engine.wire.url import parse_url
from tests.brokers.test_tcp import TOKEN, free_url
from tests.kit.etcd import Etcd, new_prefix

KEPT_S = 0.5


@asynccontextmanager
async def broker_on(url: str, path: Path, *, admin: bool = False) -> AsyncIterator[tuple[Broker, EtcdMetadataStore]]:
    """A broker, and another client of the same records."""
    clock, address = SystemClock(), free_url()
    stores = [await EtcdMetadataStore.open(url, clock=clock, rng=random.Random(i)) for i in range(2)]
    config = BrokerConfig(service_url=address, auth_token=TOKEN, session_timeout=30.0, retention_interval=3600.0)
    broker = Broker(path, config=config, metadata=stores[0], clock=clock)
    if admin:
        await broker.serve_admin("127.0.0.1", 0)
    await broker.start()
    await broker.serve(*parse_url(address))
    try:
        yield broker, stores[1]
    finally:
        await broker.close()
        for store in stores:
            await store.close()


async def test_a_broker_has_etcd_forget_what_is_old(
    etcd: Etcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "HistoryLoop", partial(history.HistoryLoop, kept=KEPT_S, interval=0.1))
    async with broker_on(etcd.url(new_prefix()), tmp_path) as (_, store):
        written = (await store.put("/old", b"1")).version >> 16

        async def compacted() -> int:
            return max(one.compacted or 0 for one in await store.members())

        assert await compacted() < written
        async with asyncio.timeout(60):
            while await compacted() < written:
                await store.put("/new", b"1")
                await asyncio.sleep(0.1)
        age = await store.history_s(await compacted())
        assert age is None or age < 60, "as `engine cluster check` tells it"


async def test_the_check_compares_the_clocks_of_brokers(etcd: Etcd, tmp_path: Path) -> None:
    url = etcd.url(new_prefix())

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """As a broker that is not ready, on a machine whose clock is an hour late."""
        await reader.readuntil(b"\r\n\r\n")
        date = formatdate(SystemClock().time_ms() / 1000 - 3600, usegmt=True)
        writer.write(f"HTTP/1.1 503 Service Unavailable\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async with broker_on(url, tmp_path, admin=True) as (_, store):

        async def clocks() -> list[tuple[str, str, str]]:
            found = await findings_of(url, None, random.Random(1), {})
            return [(one.what, one.state, one.text) for one in found if "clock" in one.what and "etcd" not in one.what]

        ((what, state, text),) = await clocks()
        assert (what, state) == ("brokers' clocks", OK)
        assert re.fullmatch(
            r"1 of 1 admin addresses tell the time here, [+-][01]\.\d s to [+-][01]\.\d s, to a second", text
        )

        late = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with late:
            admin = f"http://127.0.0.1:{late.sockets[0].getsockname()[1]}"
            other = BrokerRecord("tcp://127.0.0.1:1", admin, None)
            await store.put(keys.broker(other.url), other.to_json())
            (_, state, text), (what, of_one, by) = await clocks()
        assert (state, of_one, what) == (WARNING, WARNING, f"broker {other.url} clock")
        assert text.startswith("2 of 2 admin addresses tell the time here, -3")
        assert -3602 < float(by.split()[0]) < -3598
        (_, state, text), *rest = await clocks()
        assert (state, rest) == (WARNING, [])
        assert text.startswith("1 of 2"), "what does not answer is said, and no more is known of its clock"


async def test_a_full_etcd_is_a_typed_error_to_clients_a_metric_and_a_failed_check(tmp_path: Path) -> None:
    server = Etcd(tmp_path, options=("--quota-backend-bytes", str(6 * 1024 * 1024)))
    try:
        await asyncio.to_thread(server.start)
        url = server.url("engine")
        async with (
            broker_on(url, tmp_path / "data") as (broker, other),
            AsyncClient(broker.service_url, token=TOKEN) as client,
            await client.producer("orders") as attached,
        ):
            await attached.send(b"before")
            assert full(await broker.admin.get_metrics()) == 0
            with pytest.raises(DiskFullError):
                await fill(other)
            with pytest.raises(DiskFullError, match="NOSPACE"):
                await client.producer("another")
            assert full(await broker.admin.get_metrics()) >= 1
            await attached.send(b"after: what is attached goes on")

            found = {one.what: one for one in await findings_of(url, None, random.Random(1), {})}
            assert (found["brokers"].state, found["brokers"].text) == (OK, "1 live, 1 of them reached from here")
            member = found[f"etcd {server.members[0].endpoint}"]
            assert member.state == found["etcd writes"].state == FAILED
            assert "NOSPACE" in member.text
            assert "of its quota of 6 MB" in found[f"{member.what} space"].text
            (live,) = (await standing(url, random.Random(1)))[1]
            assert live["url"] == broker.service_url

            await other.compact(await other.revision())
            await asyncio.to_thread(server.ctl, "defrag")
            await asyncio.to_thread(server.ctl, "alarm", "disarm")
            async with await client.producer("another") as producer:
                await producer.send(b"there is room again")
    finally:
        server.stop()


async def fill(store: EtcdMetadataStore) -> None:
    """Write until etcd refuses it."""
    for at in range(100):
        await store.put("/filler", random.Random(at).randbytes(256 * 1024))


async def test_an_etcd_without_a_majority_is_what_the_check_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening: Any = EtcdMetadataStore.open
    monkeypatch.setattr(opening.__func__, "__kwdefaults__", {"timeout": 1.0, "writes": True})
    server = Etcd(tmp_path, 3)
    try:
        await asyncio.to_thread(server.start)
        for member in server.members[1:]:
            member.kill()
        findings = await findings_of(server.url("engine"), None, random.Random(1), {})
    finally:
        server.stop()
    found = {one.what: one for one in findings}
    for member in server.members[1:]:
        assert found[f"etcd {member.endpoint}"].state == FAILED
    assert "no leader" in found[f"etcd {server.members[0].endpoint}"].text
    assert found["etcd"].state == FAILED
    assert "did not answer" in found["etcd"].text


def full(metrics: str) -> float:
    """Calls that etcd refused to this broker for want of space."""
    (value,) = re.findall(r"(?m)^engine_etcd_full_total (\S+)$", metrics)
    return float(value)
