"""A classic consumer of Java that subscribes by a pattern is told of topics that come and go."""

from __future__ import annotations

import asyncio
from pathlib import Path

import engine
from tests.interop.agent import PULSAR
from tests.interop.conftest import service_url

CLIENT = Path(__file__).parent / "java" / "patterns" / "PatternClient.java"


async def test_a_consumer_of_a_pattern_is_told_of_topics() -> None:
    async with engine.open_async(":memory:", listen="127.0.0.1:0") as served:

        async def publish(local: str, value: str) -> None:
            async with served.producer(f"persistent://acme/regex/{local}") as producer:
                await producer.send(value.encode())

        await publish("a1", "first")
        java = (PULSAR / "java").read_text()
        process = await asyncio.create_subprocess_exec(
            *(java, "-Xmx256m", "-cp", f"{PULSAR}/jars/*", str(CLIENT)),
            *(service_url(served), "persistent://acme/regex/a.*"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None

        async def said() -> str:
            """The next value; lines of the client's log have white space."""
            assert process.stdout is not None
            while True:
                line = (await process.stdout.readline()).decode().strip()
                assert line, "the client has ended"
                if " " not in line:
                    return line

        try:
            async with asyncio.timeout(110):
                assert [await said(), await said()] == ["ready", "first"]
                await publish("b1", "other")
                await publish("a2", "second")
                assert await said() == "second"
                await served.admin.delete_topic("persistent://acme/regex/a1")
                await publish("a3", "third")
                assert await said() == "third"
                await publish("a2", "fourth")
                assert await said() == "fourth"
        finally:
            process.kill()
            await process.wait()
