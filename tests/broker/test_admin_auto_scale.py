"""Auto-scale policies of topics and namespaces: in process, over HTTP, from a client; and what stats say of them."""

from __future__ import annotations

import pytest

from engine.client import AsyncClient
from engine.errors import InvalidArgumentError, NotFoundError
from tests.kit.peer import Peer, make_entries

TOPIC = "/admin/v2/scalable/public/default/orders/autoScalePolicy"
NAMESPACE = "/admin/v2/namespaces/public/default/scalableTopicAutoScalePolicy"
OURS = {"enabled": False, "max_segments": 7, "split_cooldown": 5.5}
THEIRS = {"enabled": False, "maxSegments": 7, "splitCooldown": 5.5}
WRONG = [
    ({"colour": 1}, "must be of enabled, .*, got 'colour': unknown"),
    ({"max_segments": 0}, "max_segments must be an integer from 1.*, got 0"),
    ({"split_cooldown": "soon"}, "split_cooldown must be a number of seconds.*, got 'soon'"),
    ({"enabled": 1}, "enabled must be true or false.*, got 1"),
    ([], "mapping"),
]


@pytest.fixture(params=["in process", "http"])
async def admin(broker, http, request):
    """The same methods both ways."""
    if request.param == "in process":
        yield broker.admin
        return
    host, port = await broker.serve("127.0.0.1", 0)
    async with AsyncClient(f"engine://{host}:{port}") as client:
        yield client.admin


async def test_a_topics_policy_is_set_read_replaced_and_removed(admin):
    await admin.create_topic("orders")
    assert await admin.get_auto_scale_policy("orders") == {}
    await admin.set_auto_scale_policy("orders", OURS)
    assert await admin.get_auto_scale_policy("orders") == OURS
    await admin.set_auto_scale_policy("orders", {"min_segments": 2})
    assert await admin.get_auto_scale_policy("orders") == {"min_segments": 2}
    await admin.remove_auto_scale_policy("orders")
    assert await admin.get_auto_scale_policy("orders") == {}
    await admin.remove_auto_scale_policy("orders")


async def test_a_namespaces_policy_is_set_read_replaced_and_removed(admin):
    assert await admin.get_namespace_auto_scale_policy("public/default") == {}
    await admin.set_namespace_auto_scale_policy("public/default", OURS)
    assert await admin.get_namespace_auto_scale_policy("public/default") == OURS
    await admin.remove_namespace_auto_scale_policy("public/default")
    assert await admin.get_namespace_auto_scale_policy("public/default") == {}


async def test_a_namespaces_other_policies_stay_as_they_are(admin):
    before = await admin.get_namespace_policies("public/default")
    await admin.set_namespace_auto_scale_policy("public/default", OURS)
    assert await admin.get_namespace_policies("public/default") == before
    await admin.set_namespace_policies("public/default", {"retention_time_s": 5})
    assert await admin.get_namespace_auto_scale_policy("public/default") == OURS
    await admin.remove_namespace_auto_scale_policy("public/default")
    assert (await admin.get_namespace_policies("public/default"))["retention_time_s"] == 5


@pytest.mark.parametrize(("policy", "text"), WRONG)
async def test_what_is_wrong_is_named_and_nothing_is_set(admin, policy, text):
    await admin.create_topic("orders")
    with pytest.raises(InvalidArgumentError, match=text):
        await admin.set_auto_scale_policy("orders", policy)
    with pytest.raises(InvalidArgumentError, match=text):
        await admin.set_namespace_auto_scale_policy("public/default", policy)
    assert await admin.get_auto_scale_policy("orders") == {}
    assert await admin.get_namespace_auto_scale_policy("public/default") == {}


async def test_topics_that_are_not_there(admin):
    for refused in (
        admin.set_auto_scale_policy("nothing", {}),
        admin.get_auto_scale_policy("nothing"),
        admin.remove_auto_scale_policy("nothing"),
    ):
        with pytest.raises(NotFoundError):
            await refused


async def test_over_http_fields_have_the_specifications_names(http, broker):
    await broker.admin.create_topic("orders")
    for path in (TOPIC, NAMESPACE):
        async with http.put(path, json=THEIRS) as response:
            assert response.status == 204
        async with http.get(path) as response:
            assert await response.json() == THEIRS
        for body, text in (
            ({"max_segments": 1}, "'max_segments' is unknown"),
            ({"maxSegments": 0}, "max_segments must be an integer from 1 to 1024, got 0"),
        ):
            async with http.put(path, json=body) as response:
                assert response.status == 400
                assert text in (await response.json())["reason"]
        async with http.delete(path) as response:
            assert response.status == 204
        async with http.get(path) as response:
            assert await response.json() == {}


async def test_stats_say_what_is_in_effect(admin):
    await admin.create_topic("orders")
    await admin.set_namespace_auto_scale_policy("public/default", {"max_segments": 9, "min_segments": 2})
    await admin.set_auto_scale_policy("orders", {"max_segments": 5})
    policy = (await admin.get_stats("orders"))["autoScale"]["policy"]
    assert (policy["enabled"], policy["maxSegments"], policy["minSegments"], policy["problem"]) == (True, 5, 2, None)
    assert policy["splitMsgRateInThreshold"] == 10_000


async def test_semantics_34_what_is_wrong_together_switches_it_off_and_is_said(admin):
    await admin.create_topic("orders")
    await admin.set_namespace_auto_scale_policy("public/default", {"min_segments": 7})
    await admin.set_auto_scale_policy("orders", {"max_segments": 5})
    policy = (await admin.get_stats("orders"))["autoScale"]["policy"]
    assert policy["enabled"] is False
    assert policy["problem"] == "min_segments is 7, above max_segments, 5"


async def test_stats_have_the_last_load_report_of_each_segment_with_its_age(broker):
    admin = broker.admin
    await admin.create_topic("orders", segments=2)
    peer = await Peer.connect(broker)
    segment = await peer.segment("orders")
    producer = await peer.producer(segment)
    assert [s["load"] for s in (await admin.get_stats("orders"))["segments"].values()] == [None, None]
    await broker.parts.loads.report()
    peer.publish(producer, make_entries([b"x"] * 10))
    await peer.receipts(producer, 10)
    await broker.parts.loads.report()
    (load,) = [s["load"] for s in (await admin.get_stats("orders"))["segments"].values() if s["load"]]
    assert load["msgRateIn"] > 0
    assert load["bytesRateIn"] > load["msgRateIn"]
    assert (load["msgRateOut"], load["bytesRateOut"]) == (0.0, 0.0)
    assert 0 <= load["ageMs"] < 60_000
    assert load["modifiedAtMs"] > 0


async def test_stats_say_what_auto_scale_has_done(admin):
    await admin.create_topic("orders")
    await admin.create_subscription("orders", "s")
    scaling = (await admin.get_stats("orders"))["autoScale"]
    assert scaling["leading"] is True
    assert set(scaling["counts"].values()) == {0}
    assert {"decision", "lastChange"} < scaling.keys()


async def test_the_history_is_told_newest_first(admin):
    with pytest.raises(NotFoundError):
        await admin.get_auto_scale_history("nothing")
    await admin.create_topic("orders")
    assert await admin.get_auto_scale_history("orders") == {"leading": False, "decisions": []}
    await admin.create_subscription("orders", "s")  # it is led now
    assert (await admin.get_auto_scale_history("orders"))["leading"] is True


async def test_stats_say_how_segments_are_read(broker):
    peer = await Peer.connect(broker)
    await peer.consumer(await peer.segment("orders"), "exclusive")
    (sharing,) = (await broker.admin.get_stats("orders"))["subscriptions"]["s"]["segmentSharing"].values()
    assert sharing == {"mode": "exclusive", "sharers": 0, "reassignments": 0, "withheldBuckets": 0, "drain": False}
