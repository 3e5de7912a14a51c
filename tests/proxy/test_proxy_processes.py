"""Real processes: `engine proxy` in front of `engine serve`, which is killed and comes back."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import engine
from tests.proxy.proxies import free_url

READY = re.compile(r"(?:serving .* on|passing on to .* from) (engine://\S+), (?:admin on (http://\S+))?")
START_S_MAX = 30.0


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, str]]:
    """`engine …` that has said where it is: with its URL, and that of its admin API."""
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engine", *arguments, "--admin", "127.0.0.1:0", stderr=asyncio.subprocess.PIPE
    )
    assert made.stderr is not None
    try:
        async with asyncio.timeout(START_S_MAX):
            while not (match := READY.search(line := (await made.stderr.readline()).decode())):
                assert line, "it ended without a word"
        yield made, match[1], match[2]
    finally:
        if made.returncode is None:
            made.kill()
        await made.communicate()


async def test_a_broker_dies_and_comes_back_behind_its_proxy(tmp_path: Path) -> None:
    address = free_url().removeprefix("engine://")
    serve = ("serve", "--data", str(tmp_path / "data"), "--listen", address)
    async with process("proxy", "--broker", f"engine://{address}", "--listen", "127.0.0.1:0") as (proxy, url, _):
        async with process(*serve) as (broker, _, _), engine.AsyncClient(url) as client:
            producer = await client.producer("orders")
            stream = await client.stream_consumer("orders", "s", initial_position="earliest")
            for i in range(50):
                await producer.send(b"%d" % i)
            broker.send_signal(signal.SIGKILL)
            await broker.wait()
            waiting = asyncio.create_task(producer.send(b"50"))
            async with process(*serve):
                await waiting
                assert await client.admin.list_topics("public/default") == ["topic://public/default/orders"]
                got = set()
                while len(got) < 51:
                    message = await stream.receive(timeout=20)
                    assert message is not None
                    got.add(int(message.value))
                await stream.close()
                await producer.close()
                await client.close()
        proxy.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(proxy.wait(), 20) == 0
