"""Schemas of Java's classic client, Protobuf native, primitive and of pairs: on a broker of ours, and on Apache Pulsar
itself.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import engine
from tests.interop.agent import PULSAR
from tests.interop.conftest import service_url
from tests.interop.scenes.servers import JARS, Standalone

pytestmark = pytest.mark.timeout(900)
CLIENTS = Path(__file__).parent / "java" / "schemas"
TOPIC = "persistent://public/default/typed"
PRIMITIVES = [
    *("BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE", "DATE", "TIME", "TIMESTAMP", "INSTANT"),
    *("LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME"),
]


def _pairs(encoding: str, unlike: str) -> list[str]:
    """Of a key and a record, of a key alone, of a record alone: whether the message has the key. `unlike`: what becomes
    of a schema whose key is elsewhere, or of another type.
    """
    found = []
    for key, record, keyed in (("ünïcödé", "7 no sugar", True), ("only", "null", True), ("null", "7 no sugar", False)):
        in_message = "true" if keyed and encoding == "SEPARATED" else "false"
        found += [f"{encoding} {key} {record} {in_message}", f"any {key} {record.split()[0]}"]
    return [*found, unlike, unlike, "refused"]


def _all_pairs(unlike: str) -> list[str]:
    """By records of JSON and of Avro."""
    return [*(line for kind in ("SEPARATED", "INLINE") for _ in range(2) for line in _pairs(kind, unlike)), "done"]


# A primitive comes to a consumer of its type and to one of any type; producers and consumers of another are refused.
SAID = {
    "ProtobufClient": ["1000.0", "1001.1", "1002.2", "refused", "refused", "done"],
    "PrimitiveClient": [*(line for kind in PRIMITIVES for line in (f"{kind} true true", *["refused"] * 2)), "done"],
    "PairClient": _all_pairs("refused"),
}
SAID_THERE = {**SAID, "PairClient": _all_pairs("taken")}


async def said_by_java(url: str, client: str) -> list[str]:
    """The library of Protobuf is that of the server's jars: the client does not bring it, and of Jackson it brings two
    versions that do not go together.
    """
    java = (PULSAR / "java").read_text().strip()
    process = await asyncio.create_subprocess_exec(
        *(java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *(
            "-cp",
            ":".join(
                map(
                    str,
                    [*JARS.glob("jackson-core-[0-9]*.jar"), f"{PULSAR}/jars/*", *JARS.glob("protobuf-java-[0-9]*.jar")],
                )
            ),
            str(CLIENTS / f"{client}.java"),
        ),
        *(url, TOPIC),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(300):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = output.decode().splitlines()
    found = [line.removeprefix("said:") for line in lines if line.startswith("said:")]
    assert found, "\n".join(lines[-20:])
    return found


@pytest.mark.parametrize("client", SAID)
async def test_on_a_broker_of_ours(client: str) -> None:
    async with engine.open_async(":memory:", listen="127.0.0.1:0") as served:
        assert await said_by_java(service_url(served), client) == SAID[client]


async def test_on_apache_pulsar(tmp_path: Path) -> None:
    side = Standalone(tmp_path)
    await asyncio.to_thread(side.start)
    try:
        assert {client: await said_by_java(side.url, client) for client in SAID} == SAID_THERE
    finally:
        side.close()
