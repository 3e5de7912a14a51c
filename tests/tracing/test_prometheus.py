"""The metrics of an engine in a program's own registry of prometheus_client."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

import engine
from engine.prometheus import Collector


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
