"""The metrics of an engine in a program's own registry of prometheus_client."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

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
        with monkeypatch.context() as patched:
            patched.setattr(engine.prometheus, "LOOP_S_MAX", 600.0)  # it is not waited for
            assert up(registry) == 0.0, "nothing runs the loop"
        runner.run(client.close())
    assert up(registry) == 0.0


def test_what_cannot_be_collected_is_refused_at_once(tmp_path: Path):
    for wrong, said in (
        (engine.open_async(tmp_path), "an engine that is open, .*got Opening"),
        ("engine://127.0.0.1", "got str"),
        (engine.AsyncClient("engine://127.0.0.1:1"), "got no running loop; or pass a blocking engine.Client"),
    ):
        given: Any = wrong
        with pytest.raises(engine.InvalidArgumentError, match=said):
            Collector(given)


def test_a_loop_that_is_busy_is_not_waited_for_any_longer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine.prometheus, "LOOP_S_MAX", 0.05)
    registry = CollectorRegistry()

    async def busy() -> float | None:
        client = engine.AsyncClient("engine://127.0.0.1:1")
        registry.register(Collector(client))
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(up, registry).result()  # the loop stands still meanwhile
        await client.close()
        return found

    assert asyncio.run(busy()) == 0.0


async def test_an_asynchronous_client_that_works_on_another_loop_is_refused(tmp_path: Path):
    async with engine.open_async(tmp_path) as e:

        async def elsewhere() -> None:
            with pytest.raises(engine.InvalidArgumentError, match="on its event loop, got another loop"):
                Collector(e)

        await asyncio.to_thread(asyncio.run, elsewhere())
        registry = CollectorRegistry()
        await asyncio.to_thread(lambda: registry.register(Collector(e)))
        assert await asyncio.to_thread(up, registry) == 1.0, "its loop is known"


@pytest.mark.parametrize("failing", [OSError("a token's file"), RuntimeError("Session is closed"), "no metrics {"])
def test_whatever_fails_a_program_keeps_its_own_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: Exception | str
):
    registry = CollectorRegistry()
    Counter("own", "Of the program", registry=registry).inc()

    def get_metrics(admin: Any) -> str:
        if isinstance(failing, Exception):
            raise failing
        return failing

    with engine.open(tmp_path) as e:
        registry.register(Collector(e))
        monkeypatch.setattr(type(e.admin), "get_metrics", get_metrics)
        text = generate_latest(registry).decode()
    assert "own_total 1.0" in text
    assert "engine_up 0.0" in text
    assert "could not be collected" in caplog.text
