"""The service on one broker: topics, subscriptions, stats, watches, and changes that were cut short."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from control_fakes import TOPIC, Brokers, Channel, Listener, ids, settle, virtual

from engine.control.config import ControlConfig
from engine.control.service import ScalableTopicService
from engine.errors import (
    AlreadyClosedError,
    AlreadyExistsError,
    ConsumerBusyError,
    InvalidArgumentError,
    InvalidConfigurationError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from engine.metadata import keys
from engine.model.layout import PendingChange, SegmentLayout
from engine.model.policies import NamespacePolicies
from engine.model.reshape import split_segment
from engine.model.subscriptions import InitialPosition, SubscriptionKind, SubscriptionMetadata, SubscriptionState


async def subscribe(service: ScalableTopicService, name: str, channel: Channel | None = None, **more: Any) -> list[int]:
    """Register a stream consumer of subscription "sub"; its share."""
    return ids(
        await service.register_consumer("orders", "sub", name, instance=name, channel=channel or Channel(), **more)
    )


async def reshape(brokers: Brokers, layout: SegmentLayout) -> None:
    """What a split on some broker leaves in the store."""
    record = await brokers.store.get(keys.topic(TOPIC))
    assert record is not None
    indexes = {"topics": "public/default/orders"}
    await brokers.store.put(keys.topic(TOPIC), layout.to_json(), record.stat.version, indexes=indexes)


@virtual
async def test_a_topic_is_created_read_listed_and_deleted() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
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
async def test_ensure_topic_creates_once_and_only_where_it_may() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
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
async def test_create_topic_refuses_bad_arguments_and_leaves_nothing(wrong: dict[str, Any]) -> None:
    brokers = Brokers()
    service = await brokers.start("a")
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
async def test_semantics_39_a_subscription_touches_active_segments_and_its_end_sealed_ones_too() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
    layout = (await service.create_topic("orders", segments=2)).layout
    await reshape(brokers, split_segment(layout, 0, 1))
    facts = await service.create_subscription("orders", "sub", initial_position="earliest", kind="queue")
    assert (facts.kind, facts.state) == (SubscriptionKind.QUEUE, SubscriptionState.ACTIVE)
    assert brokers.host.cursors == {i: {"sub": InitialPosition.EARLIEST} for i in (1, 2, 3)}
    assert [s.name for s in await service.list_subscriptions("orders")] == ["sub"]
    with pytest.raises(AlreadyExistsError):
        await service.create_subscription("orders", "sub")
    assert await service.ensure_subscription("orders", "sub", initial_position="latest") == facts
    brokers.host.calls.clear()
    await service.delete_subscription("orders", "sub")
    assert sorted(c[1] for c in brokers.host.calls) == [0, 1, 2, 3]
    assert await service.list_subscriptions("orders") == []
    with pytest.raises(NotFoundError):
        await service.delete_subscription("orders", "sub")
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
async def test_consumers_share_a_topic_through_the_service() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
    await service.create_topic("orders", segments=4)
    channel = Channel()
    assert await subscribe(service, "one", channel, initial_position="earliest") == [0, 1, 2, 3]
    assert brokers.host.cursors[0] == {"sub": InitialPosition.EARLIEST}
    assert await subscribe(service, "two") == [1, 3]
    assert ids(channel.pushed[-1]) == [0, 2]
    assert str(channel.pushed[-1].segments[0].name) == "segment://public/default/orders/0000-3fff-0"
    stats = await service.get_stats("orders")
    assert stats["subscriptions"]["sub"]["consumers"] == {
        "one": {"connected": True, "segments": [0, 2]},
        "two": {"connected": True, "segments": [1, 3]},
    }
    service.disconnect_consumer("orders", "sub", "one", channel=channel)
    assert await service.unregister_consumer("orders", "sub", "two", instance="two")
    assert not await service.unregister_consumer("orders", "sub", "two", instance="two")
    await asyncio.sleep(61)
    assert (await service.get_stats("orders"))["subscriptions"]["sub"]["consumerCount"] == 0
    await service.close()


@virtual
async def test_semantics_29_a_checkpoint_group_has_no_subscription_and_no_cursor() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
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
async def test_stats_add_up() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
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
async def test_semantics_38_seek_is_decided_by_each_segments_lifetime() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
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
async def test_deleting_tells_consumers_and_watchers() -> None:
    service = await Brokers().start("a")
    await service.create_topic("orders")
    listener, channels = Listener(), [Channel(), Channel()]
    watch = await service.watch_topic("orders", listener)
    await subscribe(service, "one", channels[0])
    await service.delete_subscription("orders", "sub")
    assert isinstance(channels[0].closed[0], NotFoundError)
    await subscribe(service, "two", channels[1])
    await service.delete_topic("orders")
    assert isinstance(channels[1].closed[0], NotFoundError)
    await settle()
    assert listener.deleted == 1
    assert watch.view.layout.epoch == 0
    with pytest.raises(NotFoundError):
        await service.watch_topic("orders", listener)
    await service.close()


@virtual
async def test_semantics_37_a_watch_hears_of_newer_layouts_only_and_of_each_state_once() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
    listener = Listener()
    watch = await service.watch_topic("orders", listener, create=True)
    assert watch.view.layout.epoch == 0
    layout = watch.view.layout
    for now in range(3):  # written in one go: events collapse
        layout = split_segment(layout, layout.active[0].segment_id, now)
        await reshape(brokers, layout)
    await settle()
    assert listener.views[-1].layout == layout == watch.view.layout
    assert [v.layout.epoch for v in listener.views] == sorted({v.layout.epoch for v in listener.views})
    await reshape(brokers, layout)
    await settle()
    assert len([v for v in listener.views if v.layout.epoch == 3]) == 1
    watch.close()
    watch.close()
    await reshape(brokers, split_segment(layout, layout.active[0].segment_id, 9))
    await settle()
    assert listener.views[-1].layout.epoch == 3
    await service.close()


@virtual
async def test_a_topic_deleted_and_created_anew_is_not_taken_for_the_old_one() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
    old, new = Listener(), Listener()
    await service.watch_topic("orders", old, create=True)
    await asyncio.sleep(1)
    await service.delete_topic("orders")
    await service.create_topic("orders", segments=3)
    watch = await service.watch_topic("orders", new)
    await settle()
    assert (old.deleted, old.views) == (1, [])
    assert (new.deleted, new.views) == (0, [])
    assert len(watch.view.layout.active) == 3
    await service.close()


@virtual
async def test_a_new_layout_reaches_the_consumers() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
    layout = (await service.create_topic("orders")).layout
    channel = Channel()
    await subscribe(service, "one", channel)
    await reshape(brokers, split_segment(layout, 0, 1))
    await settle()
    assert (channel.pushed[-1].layout_epoch, ids(channel.pushed[-1])) == (1, [1, 2])
    await service.close()


@virtual
async def test_segment_spec_follows_the_layout() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
    layout = (await service.create_topic("orders", entry_buckets=2)).layout
    await service.watch_topic("orders", Listener())
    spec = await service.segment_spec("orders", 0)
    assert (spec.name.descriptor, spec.durability, spec.bucket_ends) == ("0000-ffff-0", "fsync", (32767, 65535))
    await reshape(brokers, split_segment(layout, 0, 1))
    assert (await service.segment_spec("orders", 2)).name.descriptor == "8000-ffff-2"
    with pytest.raises(NotFoundError):
        await service.segment_spec("orders", 3)
    await service.close()


@virtual
async def test_a_deletion_that_fails_hides_the_topic_and_is_finished_later() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
    await service.create_topic("orders")
    brokers.host.failures["delete_segment"] = StorageError("disk")
    with pytest.raises(StorageError):
        await service.delete_topic("orders")
    with pytest.raises(NotFoundError):
        await service.ensure_topic("orders", create=False)
    with pytest.raises(NotFoundError):
        await service.watch_topic("orders", Listener())
    assert await service.list_topics("public/default") == []
    with pytest.raises(StorageError):
        await service.create_topic("orders")
    brokers.host.failures.clear()
    await service.delete_topic("orders")
    assert await brokers.store.list_keys("/", "0") == []
    await service.close()


@pytest.mark.parametrize("phase", ["segments", "records", "topic"])
@virtual
async def test_a_deletion_cut_short_is_finished_at_the_next_start(phase: str) -> None:
    brokers = Brokers()
    service = await brokers.start("a")
    layout = (await service.create_topic("orders", segments=2)).layout
    await subscribe(service, "one")
    await service.close()
    record = await brokers.store.get(keys.topic(TOPIC))
    assert record is not None
    marked = json.loads(layout.to_json()) | {"change": PendingChange("delete", phase).to_json()}
    indexes = {"topics": "public/default/orders", "topic-changes": "public/default/orders"}
    await brokers.store.put(keys.topic(TOPIC), json.dumps(marked).encode(), indexes=indexes)
    if phase == "topic":
        await brokers.store.delete_range(keys.topic(TOPIC) + "/", keys.topic(TOPIC) + "0")
    again = await brokers.start("a")
    await asyncio.sleep(1)
    assert await brokers.store.list_keys("/", "0") == []
    assert len(brokers.host.deleted) == (2 if phase == "segments" else 0)
    await again.close()


@virtual
async def test_creating_a_topic_anew_finishes_its_deletion_first() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
    await service.create_topic("orders")
    brokers.host.failures["delete_segment"] = StorageError("disk")
    with pytest.raises(StorageError):
        await service.delete_topic("orders")
    brokers.host.failures.clear()
    view = await service.ensure_topic("orders")
    assert len(brokers.host.deleted) == 1
    assert view.layout.epoch == 0
    await service.close()


@virtual
async def test_a_change_of_a_newer_version_is_left_alone() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
    layout = (await service.create_topic("orders")).layout
    marked = json.loads(layout.to_json()) | {"change": PendingChange("teleport", "x").to_json()}
    await brokers.store.put(keys.topic(TOPIC), json.dumps(marked).encode())
    with pytest.raises(UnsupportedError, match="teleport"):
        await service.create_topic("orders")
    await service.close()


@pytest.mark.parametrize("state", [SubscriptionState.CREATING, SubscriptionState.DELETING])
@virtual
async def test_a_subscription_cut_short_is_finished_by_the_next_leader(state: SubscriptionState) -> None:
    brokers = Brokers()
    service = await brokers.start("a")
    await service.create_topic("orders", segments=2)
    half = SubscriptionMetadata("half", InitialPosition.EARLIEST, 1, None, state)
    await brokers.store.put(keys.subscription(TOPIC, "half"), half.to_json())
    assert await service.list_subscriptions("orders") == []
    await service.create_subscription("orders", "other")
    found = [s.name for s in await service.list_subscriptions("orders")]
    assert found == (["half", "other"] if state is SubscriptionState.CREATING else ["other"])
    assert ("half" in brokers.host.cursors[0]) == (state is SubscriptionState.CREATING)
    await service.close()


@virtual
async def test_a_subscription_that_fails_midway_is_completed_by_trying_again() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
    await service.create_topic("orders")
    brokers.host.failures["create_subscription"] = StorageError("disk")
    with pytest.raises(StorageError):
        await subscribe(service, "one")
    assert await service.list_subscriptions("orders") == []
    brokers.host.failures.clear()
    assert await subscribe(service, "one") == [0]
    await service.close()


@virtual
async def test_closing_tells_consumers_and_keeps_their_sessions() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
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
        "two": {"connected": True, "segments": [0, 1]}
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
    assert not service._controllers._by_key
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
