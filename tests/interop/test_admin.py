"""Apache Pulsar's own admin client, of Java, against a broker's admin API: what `pulsar-admin` is made of."""

from __future__ import annotations

import asyncio
from pathlib import Path

import engine
from tests.interop.agent import PULSAR

CLIENT = Path(__file__).parent / "java" / "admin" / "AdminClient.java"
PARTS = "persistent://acme/orders/p"
LIST = [
    *(PARTS, *(f"{PARTS}-partition-{n}" for n in range(3)), f"{PARTS}2", f"{PARTS}2-partition-0"),
    "persistent://acme/orders/x",
]
SAID = {
    "clusters": "[standalone]",
    "cluster": "true",
    "brokers": "1",
    "version": "true",
    "tenants": "true",
    "namespaces": "[acme/orders]",
    "policies": "[standalone]",
    "create topic again": "409",
    "properties": "{team=x}",
    "properties now": "{more=y}",
    "partitions": "3",
    "no topic": "404",
    "list": f"[{', '.join(LIST)}]",
    "namespace list": "7",
    "subscriptions": "[s]",
    "subscriptions of partitions": "[s]",
    "backlog": "0",
    "stats": "3",
    "lookup": "true",
    "terminate": "501",
    "compact": "501",
    "nothing is left": "[]",
    "scalable list": "[topic://acme/orders/x, topic://acme/orders/x2]",
    "scalable by properties": "[topic://acme/orders/x2]",
    "segments": "[0, 1]",
    "auto-scale": "true",
    "migrate": "501",
}


async def test_each_step_of_the_admin_client_is_answered() -> None:
    async with engine.open_async(":memory:", listen="127.0.0.1:0", admin="127.0.0.1:0") as served:
        java = (PULSAR / "java").read_text()
        process = await asyncio.create_subprocess_exec(
            *(java, "-Xmx256m", "-cp", f"{PULSAR}/server/*", str(CLIENT), str(served.admin_url)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(110):
                out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    said = dict(line.split(" = ", 1) for line in out.decode().splitlines() if " = " in line)
    lists = said.pop("partitioned list")
    assert sorted(lists.strip("[]").split(", ")) == [PARTS, f"{PARTS}2"]
    assert {name: said.get(name) for name in SAID} == SAID
    assert {what for name, what in said.items() if name not in SAID} == {"done"}
    assert len(said) == 58
