"""The metrics of an engine in a program's own registry of prometheus_client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import engine
import engine.prometheus
from engine.prometheus import Collector
from tests.cli.cli_server import start_server, stop_server


def test_an_engine_is_scraped_with_the_program(tmp_path: Path):
    registry = CollectorRegistry()
    with engine.open(tmp_path) as e:
        registry.register(Collector(e))
        with e.producer("orders") as producer:
            producer.send(b"x")
            text = generate_latest(registry).decode()
    assert "engine_up 1.0" in text
    assert registry.get_sample_value("engine_up") == 0.0, "it is closed"
    ours = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert len(ours) > 30
    assert not [name for name in ours if name.startswith(("process_", "python_"))]
    assert "public/default/orders" in text


def up(registry: CollectorRegistry) -> float | None:
    """`engine_up` of a scrape of the whole registry."""
    (line,) = [line for line in generate_latest(registry).decode().splitlines() if line.startswith("engine_up ")]
    return float(line.split()[1])


def test_a_served_client_and_a_server_that_is_gone(tmp_path: Path):
    registry = CollectorRegistry()
    server = start_server(tmp_path / "d")
    try:
        with engine.Client(server.url, operation_timeout=5.0) as client:
            registry.register(Collector(client))
            with client.producer("orders") as producer:
                producer.send(b"x")
                text = generate_latest(registry).decode()
            assert "engine_up 1.0" in text
            assert "public/default/orders" in text
            stop_server(server)
            assert up(registry) == 0.0
    finally:
        if server.process.poll() is None:
            stop_server(server)


async def test_an_asynchronous_engine_is_scraped_by_another_thread(tmp_path: Path):
    registry = CollectorRegistry()
    async with engine.open_async(tmp_path) as e, e.producer("orders") as producer:
        registry.register(Collector(e))
        await producer.send(b"x")
        text = (await asyncio.to_thread(generate_latest, registry)).decode()
        assert "engine_up 1.0" in text
        assert "public/default/orders" in text
        with pytest.raises(engine.UnsupportedError, match="from another thread"):
            generate_latest(registry)
    assert await asyncio.to_thread(up, registry) == 0.0, "it is closed"


async def test_an_asynchronous_client_of_a_server(tmp_path: Path):
    registry = CollectorRegistry()
    async with (
        engine.open_async(tmp_path, listen="127.0.0.1:0", admin="127.0.0.1:0") as served,
        engine.AsyncClient(served.service_url) as client,
    ):
        registry.register(Collector(client))
        assert await asyncio.to_thread(up, registry) == 1.0


def test_a_loop_that_does_not_answer_or_has_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine.prometheus, "LOOP_S_MAX", 0.05)
    registry = CollectorRegistry()

    async def made() -> engine.AsyncClient:
        client = engine.AsyncClient("engine://127.0.0.1:1")
        registry.register(Collector(client))
        return client

    with asyncio.Runner() as runner:
        client = runner.run(made())
        assert up(registry) == 0.0, "nothing runs the loop"
        runner.run(client.close())
    assert up(registry) == 0.0


def test_what_cannot_be_collected_is_refused_at_once(tmp_path: Path):
    for wrong, said in (
        (engine.open_async(tmp_path), "an engine that is open, .*got Opening"),
        ("engine://127.0.0.1", "got str"),
        (object.__new__(engine.AsyncClient), "got no running loop; or pass a blocking engine.Client"),
    ):
        given: Any = wrong
        with pytest.raises(engine.InvalidArgumentError, match=said):
            Collector(given)
