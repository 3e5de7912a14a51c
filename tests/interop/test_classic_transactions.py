"""Transactions of Java's classic client, on `persistent://` topics."""

from __future__ import annotations

import asyncio
from pathlib import Path

import engine
from tests.interop.agent import PULSAR
from tests.interop.conftest import service_url

CLIENT = Path(__file__).parent / "java" / "transactions" / "TransactionClient.java"
_SAID = "said:"


async def test_what_a_transaction_wrote_and_acknowledged_is_there_together_or_not() -> None:
    async with engine.open_async(":memory:", listen="127.0.0.1:0") as served:
        java = (PULSAR / "java").read_text()
        process = await asyncio.create_subprocess_exec(
            *(java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-cp", f"{PULSAR}/jars/*", str(CLIENT)),
            *(service_url(served), "persistent://acme/shop/orders"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        said: list[str] = []
        log: list[str] = []
        try:
            async with asyncio.timeout(110):
                while line := (await process.stdout.readline()).decode().strip():
                    (said if line.startswith(_SAID) else log).append(line.removeprefix(_SAID))
                    if line == f"{_SAID}done":
                        break
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        for kind in ("Exclusive", "Shared"):
            assert [line for line in said if line.startswith(kind)] == [
                f"{kind}-after-abort=[]",
                f"{kind}-before-commit=[]",
                f"{kind}-after-commit=[of-m0,of-m1,of-m2]",
                f"{kind}-left=[m3]",
                f"{kind}-late=refused",
            ], "\n".join(log[-20:])
        assert said[-1] == "done"
