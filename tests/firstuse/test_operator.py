"""An operator's first day: a restart, a kill, an hour without traffic; what the dashboard and the alarms are given."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker.metrics.catalogue import metrics_text
from engine.testing.cluster import DEFAULT_CONFIG, SimCluster, simulate
from tests.cli.cli_server import Server, stop_server
from tests.firstuse.wheels import Installed
from tests.kit.prometheus import Samples, samples_of

TOPICS = {"orders": 2, "payments": 1, "never-used": 3}
READ = 50
SENT = 300
# Segments at rest would be merged. An hour of the shorter intervals would take the test longer, and show no more.
QUIET = replace(
    DEFAULT_CONFIG,
    scalable_topic_auto_scale_enabled=False,
    scalable_topic_load_report_interval=60.0,
    transaction_sweep_interval=60.0,
    session_timeout=600.0,
    keep_alive=60.0,
)


def scrape(server: Server) -> str:
    """/metrics, once every closed segment was measured. No other request is made."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with urllib.request.urlopen(f"{server.admin_url}/metrics", timeout=30) as response:
            text = response.read().decode()
        if samples_of(text, "engine_topics_unmeasured") == {(): 0}:
            return text
    raise AssertionError("the segments were not measured within a minute")


def fill(client: Any) -> None:
    """Messages in two topics, one of them split; one subscription has read some, another none."""
    for topic, segments in TOPICS.items():
        client.admin.create_topic(topic, segments=segments)
        client.admin.create_subscription(topic, "audit", initial_position="earliest")
    for topic in ("orders", "payments"):
        send(client, topic)
    with client.stream_consumer("orders", "billing", initial_position="earliest") as consumer:
        for message in [consumer.receive(timeout=30) for _ in range(READ)]:
            last = message
        consumer.acknowledge_cumulative(last)
    client.admin.split_segment("orders", 0)


def send(client: Any, topic: str, count: int = SENT) -> None:
    with client.producer(topic) as producer:
        for i in range(count):
            producer.send_nowait(b"x" * 100, key=f"key-{i}")
        producer.flush()


def expected(client: Any) -> tuple[Samples, Samples]:
    """Backlogs and sizes by the statistics of the topics, which open every segment."""
    backlogs: Samples = {}
    sizes: Samples = {}
    for name in TOPICS:
        stats = client.admin.get_stats(name)
        for segment, numbers in stats["segments"].items():
            sizes[stats["topic"], segment] = numbers["storageSize"]
        for subscription, numbers in stats["subscriptions"].items():
            for segment, count in numbers["segmentBacklog"].items():
                backlogs[stats["topic"], segment, subscription] = count
    return backlogs, sizes


def check(text: str, backlogs: Samples, sizes: Samples, server: Server) -> None:
    """Every segment of every topic is there, with exactly these numbers; and none is open."""
    assert samples_of(text, "engine_segments_open") == {(): 0}
    assert samples_of(text, "engine_segments") == {(): len(sizes)}
    assert samples_of(text, "engine_storage_size") == sizes
    shown = samples_of(text, "engine_subscription_back_log")
    assert {at: count for at, count in shown.items() if at in backlogs} == backlogs
    assert not any(count for at, count in shown.items() if at not in backlogs)
    assert samples_of(text, "engine_segment_owner") == {(*at, server.url): 1 for at in sizes}
    sealed = [at for at, value in samples_of(text, "engine_segment_sealed").items() if value]
    assert sealed == [("topic://public/default/orders", "0")]


@pytest.mark.timeout(1800)  # the first test of each Python builds its wheel
def test_after_a_restart_and_after_a_kill_everything_is_shown_before_anything_is_touched(
    installed: Installed, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    server = installed.serve(data)
    try:
        with engine.Client(server.url) as client:
            fill(client)
            backlogs, sizes = expected(client)
        assert sum(backlogs.values()) == 4 * SENT - READ - SENT, "orders is read by two"
        stop_server(server)

        server = installed.serve(data)
        check(scrape(server), backlogs, sizes, server)

        with engine.Client(server.url) as client:
            send(client, "payments", 100)
            backlogs, sizes = expected(client)
        server.process.kill()
        server.process.communicate(timeout=30)
        server = installed.serve(data)
        check(scrape(server), backlogs, sizes, server)
    finally:
        stop_server(server)


def test_the_alarm_on_a_backlog_keeps_its_series_for_an_hour_without_traffic() -> None:
    """Scraped every minute: the segments are open, idle, closed, and opened again by a producer that reads nothing."""

    async def scenario(cluster: SimCluster) -> None:
        started = await cluster.start("b1")
        client = cluster.client("c")
        await started.broker.admin.create_topic("orders", segments=2)
        await started.broker.admin.create_subscription("orders", "audit", initial_position="earliest")
        producer = await client.producer("orders")
        await asyncio.gather(*(producer.send(b"%d" % i, key=f"key-{i}") for i in range(100)))
        await producer.close()
        was_closed, sent = False, 100
        for scrapes in range(60):
            await asyncio.sleep(60)
            if scrapes == 30:
                producer = await client.producer("orders")
                await asyncio.gather(*(producer.send(b"%d" % i, key=f"key-{i}") for i in range(10)))
                await producer.close()
                sent = 110
            text = metrics_text(started.broker)
            backlog = samples_of(text, "engine_subscription_back_log")
            assert backlog.keys() == {("topic://public/default/orders", id_, "audit") for id_ in "01"}
            assert sum(backlog.values()) == sent
            was_closed = was_closed or samples_of(text, "engine_segments_open") == {(): 0}
        assert was_closed

    simulate(1, scenario, config=QUIET, time_limit=7_200)
