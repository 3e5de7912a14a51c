"""What `import engine` and `engine.open` load: a program pays for what it uses.

Modules are counted in a process of their own, without those that the interpreter loads by itself. How long it takes is
measured by `benchmarks/bench_start.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import engine
from engine.broker.session.handlers import HANDLERS, PLACES
from engine.cli.demo_servers import free_ports
from engine.wire import commands
from tests.kit.programs import environment

IMPORT_MAX = 40
OPEN_MAX = 440  # half of what it was before names were loaded when they are used
HTTP = {"aiohttp", "yarl", "multidict", "engine.broker.admin.rest", "engine.client.admin.admin_http"}
# Each is loaded by what it is for: columns, codecs, Avro, patterns, files of TOML, metrics, kinds of consumers.
SELDOM = HTTP | {
    "numpy", "pyarrow", "pandas", "cramjam", "zstandard", "fastavro", "avro", "re2", "tomllib",
    "grpc", "google.protobuf", "obstore",
    "cryptography", "engine.client.base.encryption", "engine.broker.metrics.catalogue",
    "engine.client.base.formed", "engine.client.many", "engine.client.ranges", "engine.client.transact",
    "engine.model.admin_operations", "engine.broker.upkeep.repair",
}  # fmt: skip
# What serves topics and clients: it is loaded with the first of them.
LATER = {
    "engine.broker.delivery.subscription", "engine.broker.hosting.statistics", "engine.broker.segment.hosted",
    "engine.broker.session.consumers", "engine.broker.session.producers", "engine.broker.transactions.buffer",
    "engine.control.topic.controller", "engine.control.transactions.coordinator", "engine.storage.segment",
    "engine._native.consume.entry_queue", "engine._native.produce.batcher", "engine._native.serve.dispatch",
}  # fmt: skip
COUNT = """
import json, sys
before = set(sys.modules)
{program}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
SEND_AND_RECEIVE = """
import engine
with engine.open({path!r}) as e, e.producer("t") as producer, e.queue_consumer("t", "s") as consumer:
    producer.send(b"x", key="k")
    consumer.acknowledge(consumer.receive(timeout=60))
"""

# `engine serve` as it is, with a client, and its page of metrics, in one process, until its signal.
SERVED = """
import asyncio, os, signal
from engine.broker.settings.config import BrokerConfig
from engine.cli.serve import serve
from engine.client.client import AsyncClient

async def use():
    try:
        async with AsyncClient("engine://127.0.0.1:{port}") as client:
            async with await client.producer("t") as producer, await client.queue_consumer("t", "s") as consumer:
                await producer.send(b"x", key="k")
                await consumer.acknowledge(await consumer.receive(timeout=60))
            assert "engine_in_messages_total" in await client.admin.get_metrics()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)

async def both():
    serving = asyncio.create_task(
        serve({path!r}, ("127.0.0.1", {port}), ("127.0.0.1", 0), BrokerConfig(), BrokerConfig)
    )
    while not serving.done():
        try:
            (await asyncio.open_connection("127.0.0.1", {port}))[1].close()
            break
        except ConnectionError:
            await asyncio.sleep(0.05)
    await use()
    await serving

asyncio.run(both())
"""


def loaded(program: str) -> set[str]:
    """The modules that a program loads."""
    command = [sys.executable, "-c", COUNT.format(program=program)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=100)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_engine_loads_little():
    found = loaded("import engine")
    assert {name for name in found if name.startswith("engine")} == {"engine", "engine.lazy"}
    assert len(found) <= IMPORT_MAX, sorted(found)


@pytest.mark.parametrize("where", ["directory", ":memory:"])
def test_an_engine_loads_what_it_needs(tmp_path: Path, where: str):
    path = str(tmp_path / "data") if where == "directory" else where
    found = loaded(f"import engine; engine.open({path!r}).close()")
    assert sorted(found & (SELDOM | LATER)) == []
    assert not found & {"engine.client.produce", "engine.client.consume"}
    assert len(found) <= OPEN_MAX, len(found)


def test_a_single_server_loads_nothing_of_etcd_and_of_object_stores(tmp_path: Path):
    (port,) = free_ports(1)
    found = loaded(SERVED.format(path=str(tmp_path / "data"), port=port))
    assert {"engine.broker.session.producers", "engine.broker.metrics.whole"} <= found
    ours = {"engine.metadata.etcd.store", "engine.metadata.etcd.cluster", "engine.storage.objects.remote"}
    assert sorted(found & ({"grpc", "google.protobuf", "obstore", "boto3"} | ours)) == []


def test_messages_load_what_sends_and_receives_them(tmp_path: Path):
    found = loaded(SEND_AND_RECEIVE.format(path=str(tmp_path / "data")))
    assert {"engine.client.produce.producer", "engine.client.consume.queue_consumer"} <= found
    assert sorted(found & SELDOM - {"engine.client.transact"}) == []  # a scope is part of what a producer takes


def test_every_command_has_its_handler():
    for module, name in PLACES.values():
        assert callable(getattr(import_module(f"engine.broker.session.{module}"), name))
    assert {*PLACES, commands.Ping, commands.Pong, commands.Authenticate} == set(HANDLERS)


def test_an_admin_port_loads_its_server(tmp_path: Path):
    found = loaded(f"import engine; engine.open({str(tmp_path / 'data')!r}, admin='127.0.0.1:0').close()")
    assert {"aiohttp", "engine.broker.admin.rest"} <= found


def test_every_name_is_listed_and_can_be_loaded():
    names = dir(engine)
    assert set(names) == {*engine.__all__, "__version__"}
    for name in names:
        assert getattr(engine, name) is not None
    for package in (engine.client, engine.sync):  # type: ignore[attr-defined]
        for name in package.__all__:
            assert getattr(package, name).__name__ == name or name == "When"


def test_a_name_that_is_not_there_says_so():
    with pytest.raises(AttributeError, match="module 'engine' has no attribute 'Konsumer'"):
        engine.Konsumer  # type: ignore[attr-defined]  # noqa: B018
