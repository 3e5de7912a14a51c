"""`faststream run`, FastAPI, OpenTelemetry and Prometheus with EngineBroker, as their users start them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from faststream_engine import EngineBroker, TestEngineBroker
from faststream_engine.fastapi import EngineRouter
from faststream_engine.opentelemetry import EngineTelemetryMiddleware
from faststream_engine.prometheus import EnginePrometheusMiddleware
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

import engine

LONG_S = 60.0
HERE = Path(__file__).parent


class Running:
    """`faststream run` of the bar against an engine of this process."""

    def __init__(self, url: str, notes: Path, *more: str) -> None:
        self.notes = notes
        environment = dict(os.environ, ENGINE_URL=url, BAR_NOTES=str(notes), PYTHONPATH=str(HERE))
        command = [sys.executable, "-m", "faststream", "run", "bar_application:app", *more]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def until(self, *lines: str) -> None:
        """Wait until all of these were noted."""
        deadline = time.monotonic() + LONG_S
        while not set(lines) <= set(self.read()):
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline, self.read()
            time.sleep(0.02)

    def read(self) -> list[str]:
        return self.notes.read_text().split("\n") if self.notes.exists() else []

    def end(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        said, _ = self.process.communicate(timeout=LONG_S)
        return said


@pytest.fixture
def served() -> Iterator[engine.Engine]:
    with engine.open(":memory:", listen="127.0.0.1:0") as e:
        yield e


@pytest.mark.parametrize(
    "more",
    [pytest.param((), id="alone"), pytest.param(("--workers", "2"), id="two workers", marks=pytest.mark.fuzz)],
)
def test_an_application_runs_until_sigterm_and_loses_nothing(served: engine.Engine, tmp_path: Path, more: tuple[str]):
    running = Running(served.service_url, tmp_path / "notes", *more)
    with served.producer("orders") as p:
        running.until("started")
        p.send(b'{"table": 1}', properties={"content-type": "application/json"})
        running.until("done 1")
        p.send(b'{"table": 2}', properties={"content-type": "application/json", "slow": "yes"})
        running.until("begun 2")
        said = running.end()
        assert "done 2" in running.read(), said  # the handler that ran was waited for
        assert running.read()[-2] == "ended", said
        assert running.process.returncode == 0, said
        assert "Traceback" not in said, said
        p.send(b'{"table": 3}', properties={"content-type": "application/json"})
    with served.queue_consumer("orders", "kitchen") as c:
        left = c.receive(timeout=LONG_S)
        assert left is not None
        assert left.value == b'{"table": 3}'  # the others are acknowledged


def test_the_document_is_made_by_the_command(tmp_path: Path):
    environment = dict(os.environ, ENGINE_URL="engine://127.0.0.1:1", BAR_NOTES="none", PYTHONPATH=str(HERE))
    command = [sys.executable, "-m", "faststream", "docs", "gen", "bar_application:app", "--out", "bar.json"]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, timeout=LONG_S)
    document = json.loads((tmp_path / "bar.json").read_text())
    assert (document["info"]["title"], document["servers"]["development"]["protocol"]) == ("Bar", "engine")


def test_a_router_of_fastapi_publishes_and_handles(tmp_path: Path):
    router = EngineRouter(data=":memory:", logger=None)
    handled: list[tuple[int, str]] = []

    @router.subscriber("orders", subscription="kitchen")
    @router.publisher("served")
    async def cook(table: int) -> int:
        handled.append((table, "cooked"))
        return table

    @router.post("/orders/{table}")
    async def order(table: int) -> dict[str, str]:
        await router.broker.publish(table, "orders")
        return {"status": "ordered"}

    app = FastAPI()
    app.include_router(router)
    with TestClient(app) as client:
        assert client.post("/orders/7").json() == {"status": "ordered"}
        assert client.get("/asyncapi").status_code == 200
        deadline = time.monotonic() + LONG_S
        while not handled and time.monotonic() < deadline:
            client.get("/asyncapi.json")
    assert handled == [(7, "cooked")]


async def test_spans_and_metrics_of_a_handler():
    spans, registry = InMemorySpanExporter(), CollectorRegistry()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    middlewares: list[Any] = [
        EngineTelemetryMiddleware(tracer_provider=provider),
        EnginePrometheusMiddleware(registry=registry, app_name="bar"),
    ]
    broker = EngineBroker(middlewares=middlewares)

    @broker.subscriber("orders", subscription="kitchen", batch=True)
    async def cook(tables: list[int]) -> None: ...

    async with TestEngineBroker(broker) as test:
        await test.publish_batch(1, 2, topic="orders")
    found = spans.get_finished_spans()
    assert {span.name for span in found} >= {"orders publish", "orders process"}
    assert all((span.attributes or {}).get("messaging.system", "engine") == "engine" for span in found)
    text = generate_latest(registry).decode()
    assert 'faststream_received_messages_total{app_name="bar",broker="engine",handler="orders"} 2.0' in text
