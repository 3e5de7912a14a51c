"""Changes that were cut short: resumed at a start, by the next leader, or by trying again."""

from __future__ import annotations

import asyncio
import json

import pytest

from engine.control.base.topic_records import ScalableTopicResources
from engine.control.service import ScalableTopicService
from engine.errors import (
    AlreadyClosedError,
    EngineError,
    NotFoundError,
    NotOwnerError,
    StorageError,
    UnsupportedError,
)
from engine.metadata import keys
from engine.model.hashrange import HashRange
from engine.model.layout import PendingChange
from engine.model.subscriptions import InitialPosition, SubscriptionMetadata, SubscriptionState
from tests.kit.control_fakes import TOPIC, Brokers, Listener, subscribe, virtual


@virtual
async def test_a_deletion_that_fails_hides_the_topic_and_is_finished_later(
    brokers: Brokers, service: ScalableTopicService
) -> None:
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


@virtual
async def test_what_left_the_layout_before_is_deleted_with_the_topic(
    brokers: Brokers, service: ScalableTopicService
) -> None:
    await service.create_topic("orders")
    left = TOPIC.segment(HashRange(0, 0x7FFF), 7)
    brokers.host.leftovers.append(left)
    await service.delete_topic("orders")
    assert str(left) in brokers.host.deleted
    await service.close()


@pytest.mark.parametrize("phase", ["segments", "records", "topic"])
@virtual
async def test_a_deletion_cut_short_is_finished_at_the_next_start(
    phase: str, brokers: Brokers, service: ScalableTopicService
) -> None:
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
async def test_creating_a_topic_anew_finishes_its_deletion_first(
    brokers: Brokers, service: ScalableTopicService
) -> None:
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
async def test_a_change_of_a_newer_version_is_left_alone(brokers: Brokers, service: ScalableTopicService) -> None:
    layout = (await service.create_topic("orders")).layout
    marked = json.loads(layout.to_json()) | {"change": PendingChange("teleport", "x").to_json()}
    await brokers.store.put(keys.topic(TOPIC), json.dumps(marked).encode())
    for change in (service.split_segment("orders", 0), service.create_subscription("orders", "sub")):
        with pytest.raises(UnsupportedError, match="teleport"):
            await change
    assert (await service.get_metadata("orders"))["change"] == {"kind": "teleport", "phase": "x"}
    assert await subscribe(service, "one", kind="checkpoint") == [0]  # the topic serves
    await service.close()


@pytest.mark.parametrize("state", [SubscriptionState.CREATING, SubscriptionState.DELETING])
@virtual
async def test_a_subscription_cut_short_is_finished_by_the_next_leader(
    state: SubscriptionState, brokers: Brokers, service: ScalableTopicService
) -> None:
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
async def test_a_subscription_that_fails_midway_is_completed_by_trying_again(
    brokers: Brokers, service: ScalableTopicService
) -> None:
    await service.create_topic("orders")
    brokers.host.failures["create_subscription"] = StorageError("disk")
    with pytest.raises(StorageError):
        await subscribe(service, "one")
    assert await service.list_subscriptions("orders") == []
    brokers.host.failures.clear()
    assert await subscribe(service, "one") == [0]
    await service.close()


@pytest.mark.parametrize("error", [StorageError("down"), NotOwnerError("in between owners"), AlreadyClosedError("bye")])
@virtual
async def test_what_is_unfinished_is_tried_again_with_pauses_while_hosts_are_away(
    error: EngineError, brokers: Brokers, service: ScalableTopicService
) -> None:
    await service.create_topic("orders")
    await service.create_topic("gone")
    brokers.host.failures |= {"inherit": error, "delete_segment": error}
    for call in (service.split_segment("orders", 0), service.delete_topic("gone")):
        with pytest.raises(type(error)):
            await call
    await asyncio.sleep(100)
    assert 20 < sum(c[0] == "inherit" for c in brokers.host.calls) < 250  # every two seconds, two children
    assert 20 < sum(c[0] == "delete_segment" for c in brokers.host.calls) < 250
    brokers.host.failures.clear()
    await asyncio.sleep(3)
    assert (await service.get_metadata("orders"))["epoch"] == 1
    assert await ScalableTopicResources(brokers.store).unfinished() == []
    await service.close()


@virtual
async def test_what_is_unfinished_is_looked_for_until_the_store_answers(brokers: Brokers) -> None:
    brokers.scripted = True
    service = await brokers.start("a")
    await service.create_topic("orders")
    brokers.host.failures["inherit"] = StorageError("down")
    with pytest.raises(StorageError):
        await service.split_segment("orders", 0)
    await service.close()
    brokers.host.failures.clear()
    again = await brokers.start("b")
    brokers.stores["b"].partition()
    await asyncio.sleep(60)
    brokers.stores["b"].heal()
    await asyncio.sleep(5)
    assert (await again.get_metadata("orders"))["epoch"] == 1
    await again.close()


@virtual
async def test_a_leader_with_an_unfinished_change_does_not_resign_for_idleness() -> None:
    brokers = Brokers(controller_idle=5.0)
    service = await brokers.start("a")
    await service.create_topic("orders")
    brokers.host.failures["inherit"] = StorageError("down")
    with pytest.raises(StorageError):
        await service.split_segment("orders", 0)
    record = await brokers.store.get(keys.controller(TOPIC))
    await asyncio.sleep(60)
    assert record is not None
    assert await brokers.store.get(keys.controller(TOPIC)) == record
    brokers.host.failures.clear()
    await asyncio.sleep(200)  # the new segments might have reported load that calls for more
    assert await brokers.store.get(keys.controller(TOPIC)) is None
    await service.close()
