"""Split, merge, rebucket and single segments over HTTP and in process; what a leader elsewhere is asked for."""

from __future__ import annotations

import pytest

from engine.broker.admin.leader import LeaderAdmin
from engine.broker.admin.service import AdminService
from engine.broker.settings.config import BrokerConfig
from engine.errors import InvalidArgumentError, NotFoundError, NotOwnerError
from engine.model.names import TopicName
from tests.broker.over_http import BASE, call
from tests.kit.peer import Peer, make_entries

SEGMENTS = "/admin/v2/segments/public/default"
WHOLE, LOW, HIGH = "0000-ffff-0", "0000-7fff-1", "8000-ffff-2"


def active(metadata):
    return sorted(int(i) for i, s in metadata["segments"].items() if s["state"] == "ACTIVE")


async def test_split_merge_and_rebucket_answer_with_the_new_metadata(http):
    await call(http, "PUT", f"{BASE}/orders")
    metadata = await call(http, "POST", f"{BASE}/orders/split/0", 200)
    assert (metadata["epoch"], active(metadata)) == (1, [1, 2])
    assert metadata["segments"]["0"]["childIds"] == [1, 2]
    metadata = await call(http, "POST", f"{BASE}/orders/merge/2/1", 200)
    assert (metadata["epoch"], active(metadata)) == (2, [3])
    metadata = await call(http, "POST", f"{BASE}/orders/rebucket/3?buckets=16", 200)
    assert len(metadata["segments"]["4"]["bucketBoundaries"]) == 16
    metadata = await call(http, "POST", f"{BASE}/orders/rebucket/4", 200, json={"buckets": 2})
    assert (metadata["epoch"], active(metadata)) == (4, [5])
    assert await call(http, "GET", f"{BASE}/orders", 200) == metadata


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("split/0", "sealed since epoch 1"),
        ("split/7", "not in the layout"),
        ("split/-1", "must be a whole number"),
        ("split/one", "must be a whole number"),
        ("split/99999999999999999999", "must be a whole number"),
        ("merge/2/2", "must be two neighbours"),
        ("merge/2/9", "not in the layout"),
        ("merge/3/2", "must be neighbours"),
        ("rebucket/2", "buckets"),
        ("rebucket/2?buckets=0", "1 to 1024, got 0"),
        ("rebucket/2?buckets=1", "already"),
        ("rebucket/2?buckets=1025", "1025"),
        ("rebucket/2?buckets=two", "must be a whole number"),
    ],
)
async def test_a_change_that_cannot_be_is_refused_and_nothing_is_touched(http, path, said):
    await call(http, "PUT", f"{BASE}/orders", json={"entryBuckets": 2})
    await call(http, "POST", f"{BASE}/orders/split/0", 200)
    before = await call(http, "POST", f"{BASE}/orders/split/1", 200)
    answer = await call(http, "POST", f"{BASE}/orders/{path}", 400)
    assert (answer["code"], said in answer["reason"]) == (InvalidArgumentError.code, True), answer
    assert await call(http, "GET", f"{BASE}/orders", 200) == before


async def test_a_missing_topic_and_a_wrong_body(http):
    for path in ("split/0", "merge/0/1", "rebucket/0?buckets=2"):
        assert (await call(http, "POST", f"{BASE}/nothing/{path}", 404))["code"] == NotFoundError.code
    await call(http, "PUT", f"{BASE}/orders")
    assert "nothing goes into" in (await call(http, "POST", f"{BASE}/orders/split/0", 400, json={"at": 1}))["reason"]
    await call(http, "POST", f"{BASE}/orders/rebucket/0", 400, json={"buckets": "2"})
    await call(http, "POST", f"{BASE}/orders/rebucket/0", 400, json={"colour": 2})


@pytest.fixture
async def split(http):
    """A topic with a sealed segment and two active ones, and a subscription from the earliest."""
    await call(http, "PUT", f"{BASE}/orders")
    await call(http, "PUT", f"{BASE}/orders/subscriptions/s", json={"initialPosition": "earliest"})
    await call(http, "POST", f"{BASE}/orders/split/0", 200)
    return f"{SEGMENTS}/orders"


async def test_creating_a_segment_repeats_what_is_there(http, split):
    for body in (None, [], ["s"]):
        await call(http, "PUT", f"{split}/{LOW}", json=body or [])
    await call(http, "PUT", f"{split}/{LOW}")
    assert len((await call(http, "GET", f"{BASE}/orders", 200))["segments"]) == 3


@pytest.mark.parametrize(
    ("descriptor", "body", "status", "said"),
    [
        (WHOLE, [], 400, "got a sealed segment"),
        ("0000-ffff-9", [], 400, "splits and merges make segments"),
        ("0000-7ffe-1", [], 400, "must have the hash range of 0000-7fff-1"),
        ("7fff-0000-1", [], 400, ""),
        ("one", [], 400, "ssss-eeee-id"),
        (LOW, ["nobody"], 404, "no subscription 'nobody'"),
        (LOW, {"subscriptions": []}, 400, "array"),
        (LOW, [1], 400, "array"),
    ],
)
async def test_creating_what_the_layout_does_not_call_for_is_refused(http, split, descriptor, body, status, said):
    answer = await call(http, "PUT", f"{split}/{descriptor}", status, json=body)
    assert said in answer["reason"]


async def test_terminating(http, split):
    await call(http, "POST", f"{split}/{WHOLE}/terminate")
    await call(http, "POST", f"{split}/{WHOLE}/terminate")
    assert "is active" in (await call(http, "POST", f"{split}/{LOW}/terminate", 400))["reason"]
    await call(http, "POST", f"{split}/0000-7fff-9/terminate", 404)
    await call(http, "POST", f"{SEGMENTS}/nothing/{WHOLE}/terminate", 404)
    assert active(await call(http, "GET", f"{BASE}/orders", 200)) == [1, 2]


async def test_deleting(http, split):
    assert "is active" in (await call(http, "DELETE", f"{split}/{LOW}", 400))["reason"]
    await call(http, "DELETE", f"{split}/{WHOLE}?force=maybe", 400)
    await call(http, "DELETE", f"{split}/{WHOLE}")
    assert sorted((await call(http, "GET", f"{BASE}/orders", 200))["segments"]) == ["1", "2"]
    await call(http, "DELETE", f"{split}/{WHOLE}")  # the layout does not name it: there is nothing left of it
    await call(http, "DELETE", f"{SEGMENTS}/nothing/{WHOLE}", 404)


async def test_a_segment_that_is_not_drained_goes_only_by_force(http, broker):
    peer = await Peer.connect(broker)
    segment = await peer.segment("orders")
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([b"x"] * 10))
    await peer.receipts(producer, 10)
    await call(http, "PUT", f"{BASE}/orders/subscriptions/s", json={"initialPosition": "earliest"})
    await call(http, "POST", f"{BASE}/orders/split/0", 200)
    await call(http, "POST", f"{BASE}/orders/split/1", 200)
    path = f"{SEGMENTS}/orders"
    assert "parents" in (await call(http, "DELETE", f"{path}/{LOW}?force=true", 400))["reason"]
    assert "not drained" in (await call(http, "DELETE", f"{path}/{WHOLE}", 400))["reason"]
    assert (await call(http, "GET", f"{BASE}/orders/stats", 200))["subscriptions"]["s"]["backlog"] == 10
    await call(http, "DELETE", f"{path}/{WHOLE}?force=true")
    stats = await call(http, "GET", f"{BASE}/orders/stats", 200)
    assert (stats["subscriptions"]["s"]["backlog"], sorted(stats["segments"])) == (0, ["1", "2", "3", "4"])


async def test_metrics_tell_the_shape_and_count_the_changes(http):
    await call(http, "PUT", f"{BASE}/orders")
    await call(http, "POST", f"{BASE}/orders/split/0", 200)
    await call(http, "POST", f"{BASE}/orders/merge/1/2", 200)
    metrics = await call(http, "GET", "/metrics", 200)
    namespace, topic = 'namespace="public/default"', 'topic="topic://public/default/orders"'
    labels = f"{namespace},{topic}"
    for line in (
        f"engine_scalable_topic_active_segments{{{labels}}} 1.0",
        f"engine_scalable_topic_sealed_segments{{{labels}}} 3.0",
        f"engine_scalable_topic_change_pending{{{labels}}} 0.0",
        f"engine_scalable_topic_splits_total{{{labels}}} 1.0",
        f"engine_scalable_topic_merges_total{{{labels}}} 1.0",
        f'engine_segment_buckets{{{namespace},segment="3",{topic}}} 4.0',
        f'engine_segment_sealed{{{namespace},segment="1",{topic}}} 1.0',
    ):
        assert line in metrics.splitlines()


class ElsewhereLed:
    """A control plane that leads nothing."""

    def __getattr__(self, name):
        async def refuse(*arguments, **options):
            raise NotOwnerError("this broker does not lead it")

        return refuse

    @property
    def segments(self):
        return self

    @property
    def scaling(self):
        return self


CALLS = {
    "get_auto_scale_history": ("orders",),
    "get_stats": ("orders",),
    "delete_topic": ("orders",),
    "split_segment": ("orders", 0),
    "merge_segments": ("orders", 0, 1),
    "rebucket_segment": ("orders", 0, 2),
    "create_segment": (f"segment://public/default/orders/{WHOLE}", ["s"]),
    "terminate_segment": (f"segment://public/default/orders/{WHOLE}",),
    "prune_segment": ("orders", 0),
    "delete_segment": (f"segment://public/default/orders/{WHOLE}",),
    "create_subscription": ("orders", "s"),
    "delete_subscription": ("orders", "s"),
    "seek_subscription": ("orders", "s", 0),
    "clear_backlog": ("orders", "s"),
    "skip_messages": ("orders", "s", 0, 0, 0),
    "set_auto_scale_policy": ("orders", {"enabled": False}),
    "set_topic_policies": ("orders", {"retention_time_s": 60}),
    "set_topic_properties": ("orders", {"team": "a"}),
}


async def test_what_another_broker_leads_is_asked_for_there_once():
    asked = []

    async def forward(topic, method, arguments):
        asked.append((str(topic), method))
        with pytest.raises(NotOwnerError):  # the arguments are those of the method there
            await LeaderAdmin(ElsewhereLed()).call(method, topic, arguments)
        return {}

    alone = AdminService(ElsewhereLed(), BrokerConfig())
    together = AdminService(ElsewhereLed(), BrokerConfig(), forward)
    assert set(CALLS) == LeaderAdmin.METHODS
    for method, arguments in CALLS.items():
        with pytest.raises(NotOwnerError):
            await getattr(alone, method)(*arguments)
        await getattr(together, method)(*arguments)
    assert asked == [("topic://public/default/orders", method) for method in CALLS]


async def test_a_leader_refuses_methods_and_arguments_that_it_does_not_know(broker):
    topic = TopicName.parse("orders")
    for method, arguments in (("call", {}), ("_service", {}), ("close", {}), ("split_segment", {"buckets": 1})):
        with pytest.raises(InvalidArgumentError):
            await broker.admin.leading.call(method, topic, arguments)


async def test_buckets_are_said_once_or_alike(http):
    await call(http, "PUT", f"{BASE}/orders")
    path = f"{BASE}/orders/rebucket/0"
    answer = await call(http, "POST", f"{path}?buckets=2", 400, json={"buckets": 3})
    assert answer["reason"] == "buckets must be given once, got 2 and 3"
    await call(http, "POST", f"{path}?buckets=2&buckets=5", 400)
    await call(http, "POST", path, 400)
    assert (await call(http, "POST", f"{path}?buckets=8", 200, json={"buckets": 8}))["epoch"] == 1


async def test_statistics_of_one_segment(broker, http, split):
    peer = await Peer.connect(broker)
    name = f"segment://public/default/orders/{LOW}"
    producer, consumer = await peer.producer(name), await peer.consumer(name, "queue", "s", name="worker")
    peer.publish(producer, make_entries([b"1", b"2", b"3"]))
    await peer.receipts(producer, 3)
    await peer.messages(consumer, 3)
    found = await call(http, "GET", f"{split}/{LOW}/stats", 200)
    assert found["segment"] == f"segment://public/default/orders/{LOW}"
    assert (found["state"], found["owner"], found["nextOffset"]) == ("ACTIVE", broker.service_url, 3)
    assert (found["consumerCount"], found["consumers"], found["backlog"]) == (1, {"s": ["worker"]}, {"s": 3})
    part = found["subscriptions"]["s"]
    assert (part["mode"], part["backlog"], part["consumerCount"]) == ("queue", 3, 1)
    assert part["consumers"]["worker"]["unackedMessages"] == 3
    sealed = await call(http, "GET", f"{split}/{WHOLE}/stats", 200)
    assert (sealed["state"], sealed["childIds"], sealed["consumers"]) == ("SEALED", [1, 2], {})
    assert await broker.admin.get_segment_stats(sealed["segment"]) == sealed
    stats = await call(http, "GET", f"{BASE}/orders/stats", 200)
    assert {i: s["owner"] for i, s in stats["segments"].items()} == dict.fromkeys("012", broker.service_url)
    assert {i: s["consumers"] for i, s in stats["segments"].items()} == {"0": {}, "1": {"s": ["worker"]}, "2": {}}


@pytest.mark.parametrize("path", [f"orders/{HIGH}9", "orders/0000-7fff-2", "orders/0000-0001-1", f"nothing/{WHOLE}"])
async def test_statistics_of_an_unknown_segment_are_not_found(http, split, path):
    answer = await call(http, "GET", f"{SEGMENTS}/{path}/stats", 404)
    assert answer["code"] == NotFoundError.code


async def test_a_malformed_segment_is_refused(http, split):
    await call(http, "GET", f"{split}/7fff-0000/stats", 400)
