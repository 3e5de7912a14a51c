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
from engine.wire import commands
from tests.kit.programs import environment

IMPORT_MAX = 40
OPEN_MAX = 430  # half of what it was before names were loaded when they are used
HTTP = {"aiohttp", "yarl", "multidict", "engine.broker.admin.rest", "engine.client.admin.admin_http"}
# Each is loaded by what it is for: columns, codecs, Avro, patterns, files of TOML, metrics, kinds of consumers.
SELDOM = HTTP | {
    "numpy", "pyarrow", "pandas", "lz4", "zstandard", "fastavro", "avro", "re2", "tomllib",
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
