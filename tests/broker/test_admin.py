"""The admin API, in process and over HTTP, and the broker's pages."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from engine.broker.admin.classic import LISTS, ROUTES
from engine.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, SubscriptionNotFoundError
from engine.wire.commands import Command
from tests.broker.over_http import BASE, call
from tests.kit.peer import Peer, make_entries


async def test_topics_over_http(http):
    await call(http, "PUT", f"{BASE}/orders", json={"segments": 4, "properties": {"a": "b"}, "entryBuckets": 8})
    await call(http, "PUT", f"{BASE}/plain")
    assert await call(http, "GET", BASE, 200) == ["topic://public/default/orders", "topic://public/default/plain"]
    assert await call(http, "GET", f"{BASE}?property=a=b", 200) == ["topic://public/default/orders"]
    metadata = await call(http, "GET", f"{BASE}/orders", 200)
    assert len(metadata["segments"]) == 4
    assert metadata["properties"] == {"a": "b"}
    stats = await call(http, "GET", f"{BASE}/orders/stats", 200)
    assert isinstance(stats, dict)
    await call(http, "DELETE", f"{BASE}/orders")
    answer = await call(http, "GET", f"{BASE}/orders", 404)
    assert answer["code"] == NotFoundError.code
    assert "orders" in answer["reason"]


async def test_errors_are_json_with_reason_and_code(http):
    await call(http, "PUT", f"{BASE}/orders")
    answer = await call(http, "PUT", f"{BASE}/orders", 409)
    assert answer["code"] == AlreadyExistsError.code
    for body in ({"segments": "many"}, {"colour": 1}, {"segments": 0}, {"keyHash": "md5"}, [1]):
        answer = await call(http, "PUT", f"{BASE}/other", 400, json=body)
        assert answer["code"] == InvalidArgumentError.code
    await call(http, "PUT", f"{BASE}/other", 400, data=b"{", headers={"Content-Type": "application/json"})
    await call(http, "GET", f"{BASE}?property=x", 400)
    assert "reason" in await call(http, "GET", "/nowhere", 404)
    assert "reason" in await call(http, "PATCH", BASE, 405)


async def test_names_with_reserved_characters(http):
    await call(http, "PUT", f"{BASE}/a%26b%3Fc%2Bd")
    assert await call(http, "GET", BASE, 200) == ["topic://public/default/a&b?c+d"]
    await call(http, "PUT", f"{BASE}/a%2Fb", 400)


async def test_subscriptions_over_http(http, broker):
    peer = await Peer.connect(broker)
    segment = await peer.segment("orders")
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([b"x"] * 10))
    await peer.receipts(producer, 10)
    path = f"{BASE}/orders/subscriptions/billing"
    await call(http, "PUT", path, json={"initialPosition": "earliest"})
    await call(http, "PUT", path, 409)
    (hosted,) = broker.segments
    found = await broker.subscriptions.open(hosted, "billing")
    assert found.backlog == 10
    await call(http, "POST", f"{path}/clear-backlog")
    assert found.backlog == 0
    await call(http, "POST", f"{path}/seek", json={"when": 0})
    assert found.backlog == 10
    await call(http, "POST", f"{path}/seek", json={"when": "latest"})
    assert found.backlog == 0
    await call(http, "POST", f"{path}/seek", 400)
    await call(http, "POST", f"{path}/seek", 400, json={"when": "noon"})
    await call(http, "DELETE", path)
    await call(http, "DELETE", path, 404)


async def test_seek_moves_attached_consumers(broker):
    peer = await Peer.connect(broker)
    segment = await peer.segment("orders")
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([b"x"] * 10))
    await peer.receipts(producer, 10)
    consumer = await peer.consumer(segment, "exclusive")
    await peer.messages(consumer, 10)
    await peer.ack(consumer, position=10)
    await broker.admin.seek_subscription("orders", "s", datetime(2000, 1, 1, tzinfo=UTC))
    await peer.take(Command.CLOSE_CONSUMER, consumer_id=consumer)
    again = await peer.consumer(segment, "exclusive")
    assert len(await peer.messages(again, 10)) == 10
    with pytest.raises(InvalidArgumentError, match="time zone"):
        await broker.admin.seek_subscription("orders", "s", datetime(2000, 1, 1))


async def test_deleting_tells_those_who_are_attached(broker):
    peer = await Peer.connect(broker)
    session = await peer.lookup("orders")
    segment = await peer.segment("orders")
    producer, consumer = await peer.producer(segment), await peer.consumer(segment, "exclusive")
    queue = await peer.consumer(segment, "queue", "q")
    await broker.admin.delete_subscription("orders", "s")
    _, closing, _ = await peer.take(Command.CLOSE_CONSUMER, consumer_id=consumer)
    assert closing["code"] == SubscriptionNotFoundError.code
    await broker.admin.delete_topic("orders")
    await peer.take(Command.CLOSE_CONSUMER, consumer_id=queue)
    await peer.take(Command.CLOSE_PRODUCER, producer_id=producer)
    _, gone, _ = await peer.take(Command.ERROR, session_id=session["session_id"])
    assert (gone["code"], gone["request_id"]) == (NotFoundError.code, 0)
    assert len(broker.segments) == 0


async def test_namespace_policies(http):
    path = "/admin/v2/namespaces/public/default/policies"
    before = await call(http, "GET", path, 200)
    await call(http, "PATCH", path, json={"retention_time_s": -1})
    answer = await call(http, "PUT", path, 400, json={"durability": "os"})
    assert "got none for retention_time_s; to change some, merge them with PATCH" in answer["reason"]
    await call(http, "PATCH", path, json={"durability": "os"})
    assert await call(http, "GET", path, 200) == before | {"retention_time_s": -1, "durability": "os"}
    assert await call(http, "GET", f"{path}?own=true", 200) == {
        "retention_time_s": -1,
        "retention_size_bytes": None,
        "message_ttl_s": None,
        "encryption_required": None,
        "flush_interval_ms": None,
        "durability": "os",
        "auto_create_topics": None,
    }
    await call(http, "PUT", path, json=dict.fromkeys(before) | {"retention_time_s": 5})
    assert await call(http, "GET", path, 200) == before | {"retention_time_s": 5}
    await call(http, "PATCH", path, json={"retention_time_s": None})
    assert await call(http, "GET", path, 200) == before
    await call(http, "PATCH", path, 400, json={"retention": 5})
    answer = await call(http, "PATCH", path, 400, json={"retention_time_s": -5})
    assert answer["reason"] == "retention_time_s must be an integer >= 0, or -1 for no limit, got -5"
    await call(http, "DELETE", path)
    assert await call(http, "GET", path, 200) == before


async def test_topic_policies_and_properties(http):
    topic = "/admin/v2/scalable/public/default/orders"
    path = f"{topic}/policies"
    await call(http, "GET", path, 404)
    await call(http, "PATCH", path, 404, json={"retention_time_s": 5})
    await call(http, "PUT", topic, json={"autoScalePolicy": {"maxSegments": 3}})
    assert await call(http, "GET", f"{topic}/autoScalePolicy", 200) == {"maxSegments": 3}
    await call(http, "PATCH", "/admin/v2/namespaces/public/default/policies", json={"retention_size_bytes": 7})
    await call(http, "PATCH", path, json={"retention_time_s": -1})
    assert await call(http, "GET", path, 200) == {
        "retention_time_s": -1,
        "retention_size_bytes": 7,
        "message_ttl_s": -1,
        "encryption_required": False,
        "flush_interval_ms": 100,
    }
    await call(http, "PATCH", path, json={"retention_size_bytes": 9})
    own = await call(http, "GET", f"{path}?own=true", 200)
    said = {"retention_time_s": -1, "retention_size_bytes": 9}
    assert own == said | {"message_ttl_s": None, "encryption_required": None, "flush_interval_ms": None}
    assert (await call(http, "GET", topic, 200))["policies"] == {"retentionTimeSeconds": -1, "retentionSizeBytes": 9}
    await call(http, "PATCH", path, 400, json={"durability": "os"})
    await call(http, "DELETE", path)
    assert (await call(http, "GET", path, 200))["retention_size_bytes"] == 7
    await call(http, "PUT", f"{topic}/properties", json={"team": "billing"})
    await call(http, "PUT", f"{topic}/properties", 400, json={"team": 5})
    assert (await call(http, "GET", topic, 200))["properties"] == {"team": "billing"}
    assert await call(http, "GET", "/admin/v2/scalable/public/default?property=team%3Dbilling", 200) != []
    await call(http, "PUT", f"{topic}/properties", json={})
    assert (await call(http, "GET", topic, 200))["properties"] == {}
    await call(http, "PUT", f"{topic}x", 400, json={"autoScalePolicy": {"maxSegments": 0}})


async def test_where_a_namespace_has_no_policies_the_configuration_is_in_effect(start_broker):
    async with start_broker(retention_time=None, retention_size=10, message_ttl="1h", durability="os") as broker:
        in_effect = {
            "retention_time_s": -1,
            "retention_size_bytes": 10,
            "message_ttl_s": 3600,
            "encryption_required": False,
            "flush_interval_ms": 100,
            "durability": "os",
            "auto_create_topics": True,
        }
        assert await broker.admin.get_namespace_policies("public/default") == in_effect


async def test_pages(http, broker):
    peer = await Peer.connect(broker)
    segment = await peer.segment("orders")
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([b"x"] * 10))
    await peer.receipts(producer, 10)
    await peer.consumer(segment, "exclusive")
    assert (await call(http, "GET", "/health", 200))["status"] == "ok"
    metrics = await call(http, "GET", "/metrics", 200)
    place, topic = 'namespace="public/default",segment="0"', 'topic="topic://public/default/orders"'
    lines = metrics.splitlines()
    assert f"engine_in_messages_total{{{place},{topic}}} 10.0" in lines
    assert f'engine_subscription_back_log{{{place},subscription="s",{topic}}} 10.0' in lines
    document = await call(http, "GET", "/openapi.json", 200)
    assert document["openapi"].startswith("3.")
    routes = {(m, p) for p, methods in document["paths"].items() for m in methods}
    served = {
        (route.method.lower(), route.resource.canonical)
        for route in broker.addresses.admin_server._runner.app.router.routes()
        if route.method not in ("HEAD", "*")  # the second are those that have no counterpart in classic.py
    }
    classic = {(route.verb.lower(), route.path) for route in ROUTES} | {("get", path) for path in LISTS}
    assert routes == served - classic


async def test_metrics_keep_every_digit(http, broker):
    peer = await Peer.connect(broker)
    await peer.producer(await peer.segment("orders"))
    (hosted,) = broker.segments
    hosted.incoming.count(123_456_789, 9_876_543_210_123)
    hosted.incoming.messages_per_s = 1234567.25
    metrics = await call(http, "GET", "/metrics", 200)
    assert re.search(r"^engine_in_messages_total\{.*\} 1\.23456789e\+08$", metrics, re.MULTILINE)
    assert re.search(r"^engine_in_bytes_total\{.*\} 9\.876543210123e\+12$", metrics, re.MULTILINE)
    assert re.search(r"^engine_rate_in\{.*\} 1\.23456725e\+06$", metrics, re.MULTILINE)


async def test_the_admin_address_is_told_in_the_handshake(http, broker):
    peer = await Peer.connect(broker, hello=False)
    assert (await peer.hello())["admin"] == broker.admin_url


async def test_in_process(broker):
    admin = broker.admin
    await admin.create_topic("orders", segments=2)
    assert await admin.list_topics() == ["topic://public/default/orders"]
    assert len((await admin.get_metadata("orders"))["segments"]) == 2
    await admin.create_subscription("orders", "s", initial_position="earliest")
    await admin.clear_backlog("orders", "s")
    assert (await admin.merge_segments("orders", 0, 1))["epoch"] == 1
    await admin.delete_topic("orders")
    assert await admin.list_topics() == []


async def test_every_namespace_with_topics_or_policies_is_listed(http, broker):
    admin = broker.admin
    assert await call(http, "GET", "/admin/v2/namespaces", 200) == []
    for n in range(3):
        for topic in ("a", "b", "c"):
            await admin.create_topic(f"tenant{n}/name-space/{topic}")
    await admin.set_namespace_policies("tenant9/policies", {"retention_time_s": 60})
    await admin.set_namespace_policies("tenant8/nothing", {"retention_time_s": 60})
    await admin.remove_namespace_policies("tenant8/nothing")
    found = [*(f"tenant{n}/name-space" for n in range(3)), "tenant9/policies"]
    assert await admin.list_namespaces() == found
    assert await call(http, "GET", "/admin/v2/namespaces", 200) == found
    for topic in ("a", "b", "c"):
        await admin.delete_topic(f"tenant1/name-space/{topic}")
    assert "tenant1/name-space" not in await admin.list_namespaces()
