"""The service on one broker: topics, subscriptions, consumers, stats."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from engine.control.base.config import ControlConfig
from engine.control.service import ScalableTopicService
from engine.errors import (
    AlreadyClosedError,
    AlreadyExistsError,
    ConsumerBusyError,
    InvalidArgumentError,
    InvalidConfigurationError,
    NotFoundError,
)
from engine.metadata import keys
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName
from engine.model.policies import NamespacePolicies
from engine.model.reshape import split_segment
from engine.model.subscriptions import InitialPosition, SubscriptionKind, SubscriptionState
from tests.kit.control_fakes import TOPIC, Brokers, Channel, ids, reshape, settle, subscribe, virtual

NOTHING = {
    "buckets": {},
    "unackedMessages": 0,
    "msgRateOut": 0.0,
    "bytesRateOut": 0.0,
}  # of a consumer that is attached nowhere


@virtual
async def test_a_topic_is_created_read_listed_and_deleted(brokers: Brokers, service: ScalableTopicService) -> None:
    view = await service.create_topic("orders", segments=2, properties={"team": "ads"}, durability="os")
    assert (view.layout.epoch, len(view.layout.active), view.controller_url) == (0, 2, "engine://a")
    metadata = await service.get_metadata("topic://public/default/orders")
    assert metadata["properties"] == {"team": "ads"}
    assert metadata["durability"] == "os"
    assert metadata["createdAtMs"] == brokers.clock.time_ms()
    with pytest.raises(AlreadyExistsError):
        await service.create_topic("orders")
    assert await service.list_topics("public/default") == ["topic://public/default/orders"]
    await service.delete_topic("orders")
    assert sorted(brokers.host.deleted) == [
        "segment://public/default/orders/0000-7fff-0",
        "segment://public/default/orders/8000-ffff-1",
    ]
    assert await brokers.store.list_keys("/", "0") == []
    for gone in (service.get_metadata("orders"), service.delete_topic("orders"), service.get_stats("orders")):
        with pytest.raises(NotFoundError):
            await gone
    assert await service.list_topics("public/default") == []
    await service.create_topic("orders")
    await service.close()


@virtual
async def test_topics_are_listed_by_namespace_and_properties() -> None:
    service = await Brokers().start("a")
    for name, team in [("b", "x"), ("a", "x"), ("c", "y"), ("other/ns/a", "x"), ("public/default2/a", "x")]:
        await service.create_topic(name, properties={"team": team, "tier": "1"})
    assert await service.list_topics("public/default") == [f"topic://public/default/{n}" for n in "abc"]
    assert await service.list_topics("public/default", {"team": "x"}) == [f"topic://public/default/{n}" for n in "ab"]
    assert await service.list_topics("public/default", {"team": "z"}) == []
    assert await service.list_topics("other/ns", {"team": "x", "tier": "1"}) == ["topic://other/ns/a"]
    with pytest.raises(InvalidArgumentError):
        await service.list_topics("public")
    await service.close()


@virtual
async def test_ensure_topic_creates_once_and_only_where_it_may(brokers: Brokers, service: ScalableTopicService) -> None:
    views = await asyncio.gather(*(service.ensure_topic("orders") for _ in range(10)))
    assert {v.layout.created_at_ms for v in views} == {brokers.clock.time_ms()}
    with pytest.raises(NotFoundError):
        await service.ensure_topic("other", create=False)
    strict = await brokers.start("b", auto_create_topics=False)
    with pytest.raises(NotFoundError):
        await strict.ensure_topic("other")
    assert (await strict.ensure_topic("orders")).layout == views[0].layout
    await service.close()
    await strict.close()


@pytest.mark.parametrize(
    "wrong", [{"segments": 0}, {"key_hash": "md5"}, {"durability": "x"}, {"entry_buckets": 0}, {"properties": {"a": 1}}]
)
@virtual
async def test_create_topic_refuses_bad_arguments_and_leaves_nothing(
    wrong: dict[str, Any], brokers: Brokers, service: ScalableTopicService
) -> None:
    with pytest.raises(InvalidArgumentError):
        await service.create_topic("orders", **wrong)
    with pytest.raises(InvalidArgumentError):
        await service.create_topic("orders/x")
    assert await brokers.store.list_keys("/", "0") == []
    await service.close()


@virtual
async def test_namespace_policies_give_topics_their_durability() -> None:
    service = await Brokers().start("a")
    await service.set_namespace_policies("public/default", NamespacePolicies(durability="interval"))
    assert (await service.create_topic("t1")).layout.durability == "interval"
    assert (await service.create_topic("t2", durability="os")).layout.durability == "os"
    await service.set_namespace_policies("public/default", None)
    assert await service.get_namespace_policies("public/default") == NamespacePolicies()
    assert (await service.create_topic("t3")).layout.durability == "fsync"
    await service.close()


@virtual
async def test_semantics_39_a_subscription_touches_active_segments_and_its_end_sealed_ones_too(
    brokers: Brokers, service: ScalableTopicService
) -> None:
    layout = (await service.create_topic("orders", segments=2)).layout
    await reshape(brokers, split_segment(layout, 0, 1))
    facts = await service.create_subscription("orders", "sub", initial_position="latest", kind="queue")
    assert (facts.kind, facts.state) == (SubscriptionKind.QUEUE, SubscriptionState.ACTIVE)
    assert brokers.host.cursors == {i: {"sub": InitialPosition.LATEST} for i in (1, 2, 3)}
    assert [s.name for s in await service.list_subscriptions("orders")] == ["sub"]
    with pytest.raises(AlreadyExistsError):
        await service.create_subscription("orders", "sub")
    assert await service.ensure_subscription("orders", "sub", initial_position="earliest") == facts
    brokers.host.calls.clear()
    await service.delete_subscription("orders", "sub")
    assert sorted(c[1] for c in brokers.host.calls) == [0, 1, 2, 3]
    assert await service.list_subscriptions("orders") == []
    with pytest.raises(NotFoundError):
        await service.delete_subscription("orders", "sub")
    await service.close()


@virtual
async def test_the_earliest_message_is_the_earliest_that_is_kept_however_often_the_topic_was_split(
    brokers: Brokers, service: ScalableTopicService
) -> None:
    await service.create_topic("orders")
    await service.split_segment("orders", 0)
    await service.create_subscription("orders", "all", initial_position="earliest")
    await service.create_subscription("orders", "new", initial_position="latest")
    assert {i: sorted(names) for i, names in brokers.host.cursors.items()} == {
        0: ["all"],
        1: ["all", "new"],
        2: ["all", "new"],
    }
    await service.close()


@virtual
async def test_subscriptions_of_a_missing_topic_and_bad_names() -> None:
    service = await Brokers().start("a")
    for call in (
        service.create_subscription("orders", "s"),
        service.list_subscriptions("orders"),
        subscribe(service, "c"),
    ):
        with pytest.raises(NotFoundError):
            await call
    await service.create_topic("orders")
    for wrong in ("", "a/b", "x" * 300):
        with pytest.raises(InvalidArgumentError):
            await service.create_subscription("orders", wrong)
    with pytest.raises(InvalidArgumentError, match="checkpoint groups"):
        await service.create_subscription("orders", "s", kind="checkpoint")
    with pytest.raises(InvalidArgumentError, match="earliest"):
        await service.create_subscription("orders", "s", initial_position="middle")
    with pytest.raises(InvalidArgumentError, match="queue consumers"):
        await subscribe(service, "c", kind="queue")
    await service.close()


@virtual
async def test_consumers_share_a_topic_through_the_service(brokers: Brokers, service: ScalableTopicService) -> None:
    await service.create_topic("orders", segments=4)
    channel = Channel()
    assert await subscribe(service, "one", channel, initial_position="earliest") == [0, 1, 2, 3]
    assert brokers.host.cursors[0] == {"sub": InitialPosition.EARLIEST}
    assert await subscribe(service, "two") == [1, 3]
    assert ids(channel.pushed[-1]) == [0, 2]
    assert str(channel.pushed[-1].segments[0].name) == "segment://public/default/orders/0000-3fff-0"
    stats = await service.get_stats("orders")
    assert stats["subscriptions"]["sub"]["consumers"] == {
        "one": {"connected": True, "segments": [0, 2], **NOTHING},
        "two": {"connected": True, "segments": [1, 3], **NOTHING},
    }
    service.disconnect_consumer("orders", "sub", "one", channel=channel)
    assert await service.unregister_consumer("orders", "sub", "two", instance="two")
    assert not await service.unregister_consumer("orders", "sub", "two", instance="two")
    await asyncio.sleep(61)
    assert (await service.get_stats("orders"))["subscriptions"]["sub"]["consumerCount"] == 0
    await service.close()


@virtual
async def test_semantics_29_a_checkpoint_group_has_no_subscription_and_no_cursor(
    brokers: Brokers, service: ScalableTopicService
) -> None:
    await service.create_topic("orders", segments=2)
    assert await subscribe(service, "one", kind="checkpoint") == [0, 1]
    assert await subscribe(service, "two", kind="checkpoint") == [1]
    assert brokers.host.cursors == {}
    assert await service.list_subscriptions("orders") == []
    with pytest.raises(ConsumerBusyError, match="checkpoint consumers"):
        await subscribe(service, "three")
    for name in ("one", "two"):
        await service.unregister_consumer("orders", "sub", name, instance=name)
    assert await subscribe(service, "three") == [0, 1]
    await service.close()


@virtual
async def test_checkpoint_groups_without_members_are_forgotten(brokers: Brokers, service: ScalableTopicService) -> None:
    await service.create_topic("orders", segments=2)
    for group in ("a", "b", "c"):
        await service.register_consumer("orders", group, "c", instance="c", channel=Channel(), kind="checkpoint")
        if group != "a":
            await service.unregister_consumer("orders", group, "c", instance="c")
    controller = service._controllers.get(TopicName.parse("orders"))
    assert controller is not None
    assert list(controller._coordinators) == ["a", "c"]
    await service.close()


@virtual
async def test_stats_add_up(brokers: Brokers, service: ScalableTopicService) -> None:
    await service.create_topic("orders", segments=2)
    await service.create_subscription("orders", "sub")
    brokers.host.backlogs |= {(0, "sub"): 3, (1, "sub"): 4}
    stats = await service.get_stats("orders")
    assert (stats["segmentCount"], stats["activeSegmentCount"], stats["sealedSegmentCount"]) == (2, 2, 0)
    assert (stats["msgRateIn"], stats["msgRateOut"], stats["storageSize"]) == (4.0, 2.0, 200)
    assert stats["subscriptions"]["sub"]["backlog"] == 7
    assert stats["segments"]["1"]["nextOffset"] == 10
    assert json.loads(json.dumps(stats)) == stats
    await service.close()


@virtual
async def test_semantics_38_seek_is_decided_by_each_segments_lifetime(
    brokers: Brokers, service: ScalableTopicService
) -> None:
    layout = SegmentLayout.create(2, now_ms=1_000)
    layout = split_segment(layout, 0, 2_000)  # 0: 1000 to 2000, 1: from 1000, 2 and 3: from 2000
    await service.create_topic("orders", segments=2)
    await reshape(brokers, layout)
    await service.create_subscription("orders", "sub")
    brokers.host.times = {0: [1_100, 1_900], 1: [1_500, 2_500]}
    expected = {
        900: {0: "earliest", 1: "earliest", 2: "earliest", 3: "earliest"},
        1_200: {0: 1, 1: 0, 2: "earliest", 3: "earliest"},
        2_100: {0: "latest", 1: 1, 2: 0, 3: 0},
    }
    for when, positions in expected.items():
        await service.seek_subscription("orders", "sub", when)
        assert {i: c["sub"] for i, c in brokers.host.cursors.items()} == positions
    await service.clear_backlog("orders", "sub")
    assert {c["sub"] for c in brokers.host.cursors.values()} == {"latest"}
    with pytest.raises(InvalidArgumentError):
        await service.seek_subscription("orders", "sub", "yesterday")
    with pytest.raises(NotFoundError):
        await service.seek_subscription("orders", "nobody", "latest")
    await service.close()


@virtual
async def test_closing_tells_consumers_and_keeps_their_sessions(
    brokers: Brokers, service: ScalableTopicService
) -> None:
    await service.create_topic("orders", segments=2)
    channel = Channel()
    await subscribe(service, "one", channel)
    await subscribe(service, "two")
    await settle()
    await service.close()
    await service.close()
    assert isinstance(channel.closed[0], AlreadyClosedError)
    assert await brokers.store.get(keys.controller(TOPIC)) is None
    with pytest.raises(AlreadyClosedError):
        await subscribe(service, "three")
    again = await brokers.start("a")
    assert await subscribe(again, "two") == [1]  # the absent one keeps its share
    await asyncio.sleep(61)
    assert (await again.get_stats("orders"))["subscriptions"]["sub"]["consumers"] == {
        "two": {"connected": True, "segments": [0, 1], **NOTHING}
    }
    await again.close()


@virtual
async def test_idle_controllers_resign_and_come_back() -> None:
    brokers = Brokers(controller_idle=10.0)
    service = await brokers.start("a")
    await service.create_topic("orders")
    await subscribe(service, "one")
    await asyncio.sleep(100)
    assert await brokers.store.get(keys.controller(TOPIC)) is not None
    await service.unregister_consumer("orders", "sub", "one", instance="one")
    await asyncio.sleep(100)
    assert await brokers.store.get(keys.controller(TOPIC)) is None
    assert await subscribe(service, "one") == [0]
    await service.close()


@virtual
async def test_topics_that_nobody_uses_cost_the_service_nothing() -> None:
    brokers = Brokers(controller_idle=10.0)
    service = await brokers.start("a")
    for i in range(50):
        await service.create_topic(f"t{i}")
        await service.create_subscription(f"t{i}", "sub")
    await asyncio.sleep(100)
    assert not service.controllers.keys()
    assert not service._watches._watched
    assert await brokers.store.list_index("topic-controllers", "", "~") == []
    await service.close()


@pytest.mark.parametrize(
    "key", ["segments", "entry_buckets", "durability", "key_hash", "grace_period", "controller_idle"]
)
def test_configuration_errors_name_the_key(key: str) -> None:
    wrong: dict[str, Any] = {"durability": "x", "key_hash": "x", "grace_period": -1.0}
    with pytest.raises(InvalidConfigurationError, match=key):
        ControlConfig(**{key: wrong.get(key, 0)})
