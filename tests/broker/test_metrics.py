"""Every documented name is served, every served name is documented, and the dashboard asks for no other."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metric_families
from prometheus_client.parser import text_string_to_metric_families

from engine.broker.metrics.catalogue import metrics_page, metrics_text
from engine.broker.metrics.exposition import exposition
from engine.broker.server import Broker
from engine.errors import ConnectError
from engine.processes.metrics import child_families
from engine.processes.supervision import Supervision
from engine.proxy.config import ProxyConfig
from engine.proxy.metrics import proxy_metrics_text
from engine.proxy.server import Proxy
from tests.broker.over_http import call
from tests.kit.peer import Peer, make_entries

DOCS = Path(__file__).parents[2] / "docs"
SPECIFIED = {
    *(
        f"engine_broker_topic_list_{kind}_{what}"
        for kind in ("heap", "direct")
        for what in (
            "memory_used_bytes", "memory_limit_bytes", "queue_size", "queue_max_size", "wait_time_ms", "timeout_total",
        )
    ),
    "engine_txn_metadata_store_op_writes_total",
    "engine_txn_metadata_store_header_cas_total",
    "engine_txn_metadata_store_index_query_seconds",
    "engine_txn_metadata_store_outstanding_op_records",
    "engine_scalable_topic_active_segments",
    "engine_scalable_topic_auto_splits_total",
    "engine_scalable_topic_auto_merges_total",
    "engine_scalable_topic_split_suppressed_max_segments_total",
    "engine_scalable_topic_merge_suppressed_max_depth_total",
    "engine_scalable_topic_rebuckets_total",
    "engine_segment_buckets",
    "engine_subscription_sharers",
    "engine_subscription_bucket_reassignments_total",
    "engine_subscription_withheld_buckets",
    "engine_subscription_drain_mode",
}  # fmt: skip


def rows() -> dict[str, str]:
    """{name: kind} of docs/metrics.md."""
    found = re.findall(r"^\| `(\w+)` \| (\w+) \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert len(found) == len({name for name, _ in found}), "a name is documented twice"
    return dict(found)


def documented() -> dict[str, str]:
    """Those of a broker."""
    return {name: kind for name, kind in rows().items() if not name.startswith(("engine_proxy_", "engine_process_"))}


def served(text: str) -> dict[str, str]:
    """{name: kind} of an exposition; every name once."""
    rows = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    assert len(rows) == len({name for name, _ in rows}), "a name is served twice"
    return dict(rows)


def dashboard() -> dict[str, Any]:
    return json.loads((DOCS / "grafana" / "engine.json").read_text())


def expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]


async def work(broker: Broker) -> None:
    """A little of everything: published, delivered, acknowledged."""
    peer = await Peer.connect(broker)
    segment = await peer.segment('or"ders')
    producer = await peer.producer(segment)
    consumer = await peer.consumer(segment, "exclusive")
    peer.publish(producer, make_entries([b"%d" % i for i in range(10)], per_entry=5))
    await peer.receipts(producer, 2)
    await peer.messages(consumer, 10)
    await peer.ack(consumer, position=10)


async def test_docs_and_broker_agree_on_names_and_kinds(broker):
    assert documented() == served(metrics_text(broker))


async def test_docs_and_proxy_agree_on_names_and_kinds():
    proxy = Proxy(ProxyConfig(brokers=("engine://broker:6650",)))
    expected = {name: kind for name, kind in rows().items() if name.startswith(("engine_proxy_", "process_"))}
    assert served(proxy_metrics_text(proxy)) == expected
    await proxy.close()


async def test_every_name_of_the_specification_is_served(broker):
    assert served(metrics_text(broker)).keys() >= SPECIFIED


async def test_a_parser_understands_all_of_it(broker, http):
    await work(broker)
    async with http.get("/metrics") as response:
        text = await response.text()
        assert response.headers["Content-Type"] == CONTENT_TYPE_PLAIN_0_0_4
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families) == len(served(text))  # also for a parser that knows counters without `_total`
    samples = [sample for family in families.values() for sample in family.samples]
    assert len(samples) == sum(1 for line in text.splitlines() if not line.startswith("#"))
    assert {family.type for family in families.values()} == {"counter", "gauge", "histogram"}
    for name, kind in served(text).items():
        assert (kind == "counter") == name.endswith("_total"), name
        if kind == "histogram":
            assert re.search(r"_(seconds|bytes|ms|appends)$", name), name


async def test_openmetrics_is_served_to_a_client_that_accepts_it(broker, http):
    await work(broker)
    async with http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}) as response:
        text = await response.text()
        assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    names = {family.name for family in open_metric_families(text)}
    assert names == {name.removesuffix("_total") for name in served(metrics_text(broker))}


async def test_what_happened_is_in_the_histograms(broker):
    await work(broker)
    families = {family.name: family for family in text_string_to_metric_families(metrics_text(broker))}

    def seen(name: str) -> float:
        return next(s.value for s in families[name].samples if s.name == f"{name}_count")

    assert seen("engine_publish_to_durable_seconds") == 1  # one frame
    assert 1 <= seen("engine_durable_to_delivered_seconds") <= 2
    assert seen("engine_storage_sync_seconds") >= 1
    assert seen("engine_storage_commit_appends") == seen("engine_storage_commit_size_bytes") == 1
    assert seen("engine_metadata_commit_seconds") >= 1
    (consumers,) = [s.value for s in families["engine_subscription_consumers"].samples]
    assert consumers == 1


async def test_what_is_delivered_again_is_not_measured_again(broker):
    peer = await Peer.connect(broker)
    segment = await peer.segment("orders")
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([b"1"]))
    await peer.receipts(producer, 1)
    first = await peer.consumer(segment, "queue")
    await peer.messages(first, 1)
    before = broker.metrics.durable_to_delivered_s.statistics().count
    await peer.close()
    peer = await Peer.connect(broker)
    await peer.messages(await peer.consumer(segment, "queue"), 1)
    assert broker.metrics.durable_to_delivered_s.statistics().count == before == 1


async def test_pools_say_how_full_they_are(broker):
    text = metrics_text(broker)
    for pool in ("publish", "reads", "receive", "read_cache", "topic_list_heap", "topic_list_direct"):
        assert f'engine_memory_pool_used_bytes{{pool="{pool}"}}' in text
        assert f'engine_memory_pool_limit_bytes{{pool="{pool}"}}' in text
    for pool in ("connections", "lookups", "topic_loads", "attachments"):
        assert f'engine_pool_limit{{pool="{pool}"}}' in text


async def test_refused_connections_are_counted(start_broker):
    async with start_broker(connections_max=1) as broker:
        await Peer.connect(broker)
        second = await Peer.connect(broker, hello=False)
        with pytest.raises(ConnectError):
            await second.hello()
        lines = metrics_text(broker).splitlines()
    assert "engine_connections_refused_total 1.0" in lines
    assert "engine_connections_accepted_total 2.0" in lines


async def test_a_broker_that_has_not_started_speaks_for_its_process(tmp_path):
    names = served(metrics_text(Broker(tmp_path)))
    assert names
    assert all(name.startswith("process_") for name in names)


async def test_the_admin_api_has_the_metrics_too(broker, http):
    assert served(await broker.admin.get_metrics()) == served(await call(http, "GET", "/metrics", 200))


async def test_others_get_their_turn_while_many_segments_are_written(broker):
    await broker.admin.create_topic("wide", segments=8)
    turns, page = 0, asyncio.ensure_future(metrics_page(broker))
    while not page.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > len(served((await page)[0])) / 2
    assert served(page.result()[0]) == served(metrics_text(broker))


# -- the dashboard ---------------------------------------------------------------------------------------------------


async def test_the_dashboard_asks_for_served_names_only(broker):
    kinds = served(metrics_text(broker)) | served(exposition(child_families(Supervision(2))))
    known = {name for name, kind in kinds.items() if kind != "histogram"}
    known |= {f"{n}_{part}" for n, kind in kinds.items() if kind == "histogram" for part in ("bucket", "sum", "count")}
    variables = [v["query"]["query"] for v in dashboard()["templating"]["list"] if v["type"] == "query"]
    asked = {name for text in [*expressions(), *variables] for name in re.findall(r"\b(?:engine|process)_\w+", text)}
    assert asked
    assert asked <= known, asked - known


def test_rates_are_of_counters_and_quantiles_of_buckets():
    for text in expressions():
        for name in re.findall(r"(?:rate|increase)\((\w+)", text):
            assert re.search(r"_(total|bucket|sum|count)$", name), text
        if "histogram_quantile" in text:
            assert "sum by (le" in text
            assert "_bucket" in text
        assert text.count("(") == text.count(")")
        assert text.count("{") == text.count("}")


def test_panels_are_whole_and_do_not_overlap():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["description"]
            assert panel["targets"]
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@pytest.mark.parametrize("variable", ["datasource", "instance", "topic"])
def test_the_dashboard_lets_one_choose(variable):
    board = dashboard()
    assert variable in [v["name"] for v in board["templating"]["list"]]
    assert f"${variable}" in json.dumps(board["panels"]) or f"${{{variable}}}" in json.dumps(board["panels"])
