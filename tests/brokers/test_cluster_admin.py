"""Operations on brokers over HTTP, and `engine brokers`: real sockets and files, a metadata store in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engine.broker.metrics.catalogue import metrics_text
from engine.broker.server import Broker
from engine.cli.main import main
from engine.client.client import AsyncClient
from tests.brokers.test_tcp import TOKEN, brokers


async def used(found: list[Broker]) -> AsyncClient:
    """A client, once all 6 segments of a topic are open."""
    client = AsyncClient(found[0].service_url, token=TOKEN)
    producer = await client.producer("orders")
    await asyncio.gather(*(producer.send(b"x", key=f"k{i}") for i in range(60)))
    assert sum(len(broker.segments) for broker in found) == 6
    return client


async def nothing_left(broker: Broker) -> None:
    while broker.cluster.draining.left:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_over_http(tmp_path: Path) -> None:
    async with brokers(tmp_path) as found, await used(found):
        _, port = await found[1].serve_admin("127.0.0.1", 0)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as http:

            async def ask(method: str, path: str, status: int = 200, json: Any = None) -> Any:
                async with http.request(method, f"/admin/v2{path}", json=json) as response:
                    assert response.status == status, await response.text()
                    return await response.json() if response.content_type == "application/json" else None

            rows = await ask("GET", "/brokers")
            assert [row["url"] for row in rows] == sorted(broker.service_url for broker in found)
            assert sum(row["segments"] for row in rows) == 6
            to, before = {"to": found[2].service_url}, len(found[2].segments)
            moves = await ask("POST", "/scalable/public/default/orders/unload", json=to)
            assert [move["target"] for move in moves] == (6 - before) * [found[2].service_url]
            would = await ask("POST", "/brokers/balance?dryRun=true")
            assert (would["imbalance"], len(would["moves"])) == (2.0, 4)
            assert len(found[2].segments) == 6
            assert await ask("POST", "/brokers/balance") == would
            assert [len(broker.segments) for broker in found] == [2, 2, 2]
            descriptor = next(iter(found[0].segments)).name.descriptor
            (move,) = await ask("POST", f"/segments/public/default/orders/{descriptor}/unload", json=to)
            assert move["source"] == found[0].service_url
            await ask("POST", "/brokers/drain", 404, {"broker": "engine://nowhere:1"})
            await ask("POST", "/brokers/drain", 204, {"broker": found[2].service_url})
            await nothing_left(found[2])
            await ask("POST", "/brokers/undrain", 204, {"broker": found[2].service_url})
        text = metrics_text(found[2])
        for line in (
            "engine_segments_handed_over_total 7.0",
            f"engine_segments_taken_over_total {7.0 - before}",
            "engine_segment_handovers_failed_total 0.0",
            "engine_segment_handover_seconds_count 7.0",
            'engine_brokers{state="live"} 3.0',
            'engine_brokers{state="draining"} 0.0',
        ):
            assert f"\n{line}\n" in text, line


async def test_from_the_command_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands block, so they run on a thread; their clients dial the brokers of this loop."""
    monkeypatch.setenv("ENGINE_TOKEN", TOKEN)
    async with brokers(tmp_path) as found, await used(found):
        await found[0].serve_admin("127.0.0.1", 0)
        other = found[1].service_url

        async def engine(*words: str, code: int = 0) -> str:
            arguments = ["brokers", *words, "--url", found[0].service_url]
            ended = await asyncio.to_thread(main, arguments)
            shown = "".join(capfd.readouterr())
            assert ended == code, shown
            return shown

        shown = await engine("list")
        assert all(broker.service_url in shown for broker in found)
        assert "has nothing left" in await engine("drain", other)
        assert len(found[1].segments) == 0
        assert "draining" in await engine("list")
        assert "takes segments again" in await engine("undrain", other)
        assert (await engine("unload", "orders", "--to", other)).count(f" to {other}") == 6
        assert (await engine("balance", "--dry-run")).count(" would go ") == 4
        assert len(found[1].segments) == 6
        assert (await engine("balance")).count(" went ") == 4
        name = str(next(iter(found[1].segments)).name)
        assert f"{name} went from {other} to " in await engine("unload", name)
        assert "a broker must be one of" in await engine("drain", "engine://nowhere:1", code=1)
        assert '"imbalance"' in await engine("balance", "--json")
