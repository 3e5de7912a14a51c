"""Apache Pulsar's admin REST, with the paths and bodies that its own admin client sends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import engine
from engine.broker.admin.classic import LISTS, ROUTES
from engine.broker.rights.table import OPERATIONS
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from tests.broker.over_http import call

TOPICS = "/admin/v2/persistent/public/default"
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}
EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
MULTI = {"Content-Type": "application/vnd.partitioned-topic-metadata+json"}


def name(local: str) -> str:
    return f"persistent://public/default/{local}"


async def test_a_cluster_and_its_brokers(broker: Broker, http: aiohttp.ClientSession) -> None:
    assert await call(http, "GET", "/admin/v2/clusters", 200) == ["standalone"]
    found = await call(http, "GET", "/admin/v2/clusters/standalone", 200)
    assert found["brokerServiceUrl"] == broker.service_url.replace("engine://", "pulsar://")
    assert await call(http, "GET", "/admin/v2/brokers/standalone", 200) == [broker.service_url.partition("://")[2]]
    await call(http, "GET", "/admin/v2/brokers/other", 404)
    for path in ("health", "ready"):
        assert await call(http, "GET", f"/admin/v2/brokers/{path}", 200) == "ok"
    assert await call(http, "GET", "/admin/v2/brokers/version", 200)


async def test_tenants_and_namespaces(http: aiohttp.ClientSession) -> None:
    await call(http, "PUT", "/admin/v2/tenants/acme", json={"adminRoles": ["boss"], "allowedClusters": ["standalone"]})
    assert "acme" in await call(http, "GET", "/admin/v2/tenants", 200)
    (grant,) = await call(http, "GET", "/admin/v2/grants/acme", 200)
    assert (grant["role"], grant["rights"]) == ("boss", ["admin"])
    await call(http, "PUT", "/admin/v2/tenants/bad", 400, json={"adminRoles": "boss"})
    await call(http, "PUT", "/admin/v2/namespaces/acme/orders", json={"bundles": {"numBundles": 4}})
    assert await call(http, "GET", "/admin/v2/namespaces/acme", 200) == ["acme/orders"]
    found = await call(http, "GET", "/admin/v2/namespaces/acme/orders", 200)
    assert found["replication_clusters"] == ["standalone"]
    await call(http, "GET", "/admin/v2/namespaces/acme/none", 404)
    await call(http, "DELETE", "/admin/v2/namespaces/acme/orders")


async def test_topics_and_their_properties(broker: Broker, http: aiohttp.ClientSession) -> None:
    await call(http, "PUT", f"{TOPICS}/a", json={"team": "x"})
    await call(http, "PUT", f"{TOPICS}/a", 409, json={})
    await call(http, "PUT", f"{TOPICS}/b")
    await broker.admin.create_topic("topic://public/default/scalable")
    assert await call(http, "GET", TOPICS, 200) == [name("a"), name("b")]
    assert await call(http, "GET", "/admin/v2/namespaces/public/default/topics?mode=ALL", 200) == [name("a"), name("b")]
    assert await call(http, "GET", f"{TOPICS}/a/partitions?checkAllowAutoCreation=false", 200) == {
        "partitions": 0, "deleted": False, "properties": {"team": "x"},
    }  # fmt: skip
    await call(http, "GET", f"{TOPICS}/none/partitions", 404)
    await call(http, "PUT", f"{TOPICS}/a/properties", json={"more": "y"})
    assert await call(http, "GET", f"{TOPICS}/a/properties", 200) == {"team": "x", "more": "y"}
    await call(http, "DELETE", f"{TOPICS}/a/properties?key=team")
    await call(http, "DELETE", f"{TOPICS}/a/properties?key=team", 404)
    assert await call(http, "GET", f"{TOPICS}/a/properties", 200) == {"more": "y"}
    for body in ({"pulsar.partitions": "3"}, {"n": 3}, [1]):
        await call(http, "PUT", f"{TOPICS}/a/properties", 400, json=body)
    await call(http, "DELETE", f"{TOPICS}/a?force=false")
    assert await call(http, "GET", TOPICS, 200) == [name("b")]


async def test_topics_with_partitions(http: aiohttp.ClientSession) -> None:
    await call(http, "PUT", f"{TOPICS}/p/partitions?createLocalTopicOnly=false", json=2)
    parts = [name(f"p-partition-{n}") for n in range(3)]
    assert await call(http, "GET", TOPICS, 200) == [name("p"), *parts[:2]]
    assert await call(http, "GET", f"{TOPICS}/partitioned", 200) == [name("p")]
    assert (await call(http, "GET", f"{TOPICS}/p/partitions", 200))["partitions"] == 2
    await call(http, "POST", f"{TOPICS}/p/partitions?updateLocalTopicOnly=false&force=false", json=3)
    await call(http, "POST", f"{TOPICS}/p/partitions", 400, json=2)
    await call(http, "PUT", f"{TOPICS}/p/subscription/s?replicated=false", json=EARLIEST)
    assert await call(http, "GET", f"{TOPICS}/p/subscriptions", 200) == ["s"]
    found = await call(http, "GET", f"{TOPICS}/p/partitioned-stats?perPartition=true", 200)
    assert sorted(found["partitions"]) == parts
    assert found["metadata"]["partitions"] == 3
    assert found["subscriptions"]["s"]["msgBacklog"] == 0
    await call(http, "GET", f"{TOPICS}/p/stats", 404)
    await call(http, "DELETE", f"{TOPICS}/p", 501)
    await call(http, "DELETE", f"{TOPICS}/p/partitions?force=false")
    assert await call(http, "GET", TOPICS, 200) == []
    await call(http, "DELETE", f"{TOPICS}/p/partitions", 404)
    body = '{"partitions": 1, "properties": {"team": "x"}}'
    await call(http, "PUT", f"{TOPICS}/q/partitions", data=body, headers=MULTI)
    found = await call(http, "GET", f"{TOPICS}/q/partitions", 200)
    assert (found["partitions"], found["properties"]) == (1, {"team": "x"})
    for count in (0, -1, 10_001, "2", True, None, 1.5):
        await call(http, "PUT", f"{TOPICS}/r/partitions", 400, json=count)
    await call(http, "PUT", f"{TOPICS}/r-partition-0/partitions", 400, json=1)


@pytest.fixture(scope="module")
def served() -> Iterator[engine.Engine]:
    with engine.open(":memory:", listen="127.0.0.1:0", admin="127.0.0.1:0") as opened:
        yield opened


async def test_subscriptions_of_a_topic_with_messages(served: engine.Engine) -> None:
    served.admin.create_topic(name("m"))
    with served.producer(name("m")) as producer:
        for number in range(10):
            producer.send(b"%d" % number)
    async with aiohttp.ClientSession(served.admin_url) as http:
        path = f"{TOPICS}/m/subscription/s"
        await call(http, "PUT", path, json=EARLIEST)
        await call(http, "PUT", path, 409, json=EARLIEST)
        await call(http, "PUT", f"{TOPICS}/m/subscription/end", json=LATEST)
        await call(http, "PUT", f"{TOPICS}/m/subscription/x", 501, json={"ledgerId": 0, "entryId": 3})
        await call(http, "PUT", f"{TOPICS}/m/subscription/x", 400, json={"ledgerId": 0})
        await call(http, "PUT", f"{TOPICS}/m/subscription/x?replicated=true", 501, json=LATEST)
        assert await call(http, "GET", f"{TOPICS}/m/subscriptions", 200) == ["end", "s"]

        async def backlog() -> int:
            found = await call(http, "GET", f"{TOPICS}/m/stats?getPreciseBacklog=true", 200)
            assert found["subscriptions"]["end"]["msgBacklog"] == 0
            count: int = found["subscriptions"]["s"]["msgBacklog"]
            return count

        assert await backlog() == 10
        await call(http, "POST", f"{path}/skip/3")
        assert await backlog() == 7
        served.admin.skip_messages(name("m"), "s", 0, 4, 5)  # 3, 6, 7, 8, 9 are left
        await call(http, "POST", f"{path}/skip/3")
        assert await backlog() == 2
        await call(http, "POST", f"{path}/skip/100")
        assert await backlog() == 0
        await call(http, "POST", f"{path}/resetcursor/0")
        assert await backlog() == 10
        await call(http, "POST", f"{path}/skip_all")
        assert await backlog() == 0
        await call(http, "POST", f"{path}/resetcursor", json=EARLIEST)
        assert await backlog() == 10
        await call(http, "POST", f"{path}/resetcursor", json=LATEST)
        assert await backlog() == 0
        await call(http, "POST", f"{path}/resetcursor", 501, json={"ledgerId": 0, "entryId": 3})
        await call(http, "POST", f"{path}/resetcursor/soon", 400)
        await call(http, "POST", f"{TOPICS}/m/subscription/none/skip/1", 404)
        await call(http, "DELETE", f"{path}?force=false")
        await call(http, "DELETE", path, 404)
        found = await call(http, "GET", "/lookup/v2/topic/persistent/public/default/m", 200)
        assert found["brokerUrl"] == served.service_url.replace("engine://", "pulsar://")


async def test_what_clients_are_attached_to_is_deleted_by_force(served: engine.Engine) -> None:
    async with aiohttp.ClientSession(served.admin_url) as http:
        await call(http, "PUT", f"{TOPICS}/used")
        with served.producer(name("used")) as producer, served.stream_consumer(name("used"), "s"):
            producer.send(b"v")
            found = await call(http, "GET", f"{TOPICS}/used/stats", 200)
            assert found["publishers"][0]["accessMode"] == "Shared"
            assert [one["unackedMessages"] for one in found["subscriptions"]["s"]["consumers"]]
            await call(http, "DELETE", f"{TOPICS}/used/subscription/s", 412)
            await call(http, "DELETE", f"{TOPICS}/used", 412)
            await call(http, "DELETE", f"{TOPICS}/used/subscription/s?force=true")
        await call(http, "DELETE", f"{TOPICS}/used")


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("POST", f"{TOPICS}/a/terminate"),
        ("GET", f"{TOPICS}/a/internalStats"),
        ("PUT", f"{TOPICS}/a/compaction"),
        ("GET", "/admin/v2/non-persistent/public/default/a/stats"),
        ("POST", "/admin/v2/namespaces/public/default/retention"),
        ("PUT", "/admin/v2/clusters/other"),
        ("GET", "/admin/v3/functions/public/default"),
    ],
)
async def test_what_has_no_counterpart_says_so(http: aiohttp.ClientSession, verb: str, path: str) -> None:
    found = await call(http, verb, path, 501)
    assert "has no counterpart here" in found["reason"]


def test_each_route_has_its_right() -> None:
    assert all(route.need is None or route.need in OPERATIONS for route in ROUTES)
    open_to_all = {route.path for route in ROUTES if route.need is None}
    assert open_to_all == {
        "/admin/v2/clusters", "/admin/v2/clusters/{cluster}",
        *(f"/admin/v2/brokers/{path}" for path in ("version", "health", "ready")),
    }  # fmt: skip


PARTS = {
    "tenant": "public", "namespace": "default", "topic": "x", "subscription": "s", "cluster": "standalone",
    "count": "1", "time": "0",
}  # fmt: skip


async def test_no_route_is_open_to_a_role_without_rights_or_to_nobody(start_broker: Any, tmp_path: Path) -> None:
    path = tmp_path / "roles"
    path.write_text("".join(line_of(who, f"token-{who}") + "\n" for who in ("root", "nothing", "owner")))
    async with start_broker(roles_file=str(path), superusers=["root"]) as broker:
        await broker.serve_admin("127.0.0.1", 0)
        await broker.admin.create_topic(name("x"), properties={"pulsar.partitions": "1"})
        await broker.admin.create_topic(name("x-partition-0"))
        await broker.admin.grant("public/default/persistent:x", "owner", ["admin"])
        rows = [(one.verb, one.path, one.need) for one in ROUTES] + [("GET", one, "list_topics") for one in LISTS]
        async with aiohttp.ClientSession(broker.admin_url) as http:
            for verb, route, need in rows:
                url = route.format(**PARTS)
                await call(http, verb, url, 401)
                async with http.request(verb, url, headers={"Authorization": "Bearer token-nothing"}) as answer:
                    refused = need is not None and need != "list_namespaces"
                    assert (answer.status == 403) is refused, (verb, url, answer.status)
            owner = {"Authorization": "Bearer token-owner"}
            assert await call(http, "GET", TOPICS, 200, headers=owner) == [name("x")]
            # A partition is a topic of its own, which a right on the other topic does not reach.
            for verb, rest in (("DELETE", "/partitions"), ("GET", "/subscriptions"), ("GET", "/partitioned-stats")):
                await call(http, verb, f"{TOPICS}/x{rest}", 403, headers=owner)
            await call(http, "POST", f"{TOPICS}/x/subscription/s/skip_all", 403, headers=owner)
            assert await broker.admin.list_topics("public/default") == [name("x"), name("x-partition-0")]


async def test_scalable_topics_in_the_form_of_the_admin_client(broker: Broker, http: aiohttp.ClientSession) -> None:
    path, first = "/admin/v2/scalable/public/default", {"User-Agent": "Pulsar-Java-v5.0.0-M1"}
    await call(http, "PUT", f"{path}/x?numInitialSegments=2", json={"a": "b"}, headers=first)
    found = await broker.admin.get_metadata("topic://public/default/x")
    assert (len(found["segments"]), found["properties"], found["keyHash"]) == (2, {"a": "b"}, "murmur3-low")
    await call(http, "PUT", f"{path}/y?numInitialSegments=1")
    assert (await broker.admin.get_metadata("topic://public/default/y"))["keyHash"] == "murmur3"
    for count in ("0", "-1", "many", "9" * 18):
        await call(http, "PUT", f"{path}/z?numInitialSegments={count}", 400)
    await call(http, "PUT", f"{path}/x/subscriptions/s?type=QUEUE")
    await call(http, "PUT", f"{path}/x/subscriptions/t?type=OTHER", 400)
    assert (await broker.admin.get_stats("topic://public/default/x"))["subscriptions"]["s"]["kind"] == "queue"
    await call(http, "POST", f"{path}/x/subscriptions/s/seek?timestamp=0")
    await call(http, "POST", f"{path}/x/subscriptions/s/skip-all")
    await call(http, "POST", f"{path}/x/migrate", 501)
