"""The console: how long a page takes to be made, with many topics and with many segments."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from typing import ClassVar
from urllib.parse import quote

import aiohttp

import engine
from engine.client.client import AsyncClient
from engine.console.server import Console

TINY = bool(os.environ.get("ENGINE_BENCH_TINY"))
TOPICS, SEGMENTS = (10, 8) if TINY else (1_000, 200)
LOOKS = 2 if TINY else 20
WIDE = "topic://public/default/wide"
PATHS = {
    "overview": "/", "topics": "/topics", "filter": "/topics?text=t00", "brokers": "/brokers",
    "topic": f"/topic?name={quote(WIDE, safe='')}", "namespaces": "/namespaces",
}  # fmt: skip


class Page:
    """A page of 1,000 topics, or of a topic of 200 segments; the median of twenty looks, none of them shared."""

    params: ClassVar = list(PATHS)
    param_names = ("page",)
    unit = "ms"
    timeout = 600

    def track_page(self, page: str) -> float:
        return asyncio.run(_page(PATHS[page]))


async def _page(path: str) -> float:
    with tempfile.TemporaryDirectory() as data:
        async with engine.open_async(data, listen="127.0.0.1:0", admin="127.0.0.1:0", shared=False) as e:
            await e.admin.create_topic(WIDE, segments=SEGMENTS)
            for number in range(TOPICS):
                await e.admin.create_topic(f"t{number:04}")

            async def client(token: str | None) -> AsyncClient:
                return AsyncClient(e.service_url, token=token)

            console = Console(client, lambda: "session", e.service_url)
            host, port = await console.listen("127.0.0.1", 0)
            spent = []
            async with aiohttp.ClientSession() as session:
                for _ in range(LOOKS + 1):
                    if console._without is not None:
                        console._without._answers.clear()
                    started = time.perf_counter()
                    async with session.get(f"http://{host}:{port}{path}") as answer:
                        assert answer.status == 200
                        await answer.read()
                    spent.append((time.perf_counter() - started) * 1e3)
            await console.close()
            return statistics.median(spent[1:])
