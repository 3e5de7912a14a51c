"""Split, merge, rebucket and prune through the service: the order of things, what is refused, what is told of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import engine.model.layout
from engine.control.service import ScalableTopicService
from engine.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    NotOwnerError,
    StorageError,
)
from engine.metadata import keys
from engine.model.subscriptions import InitialPosition
from tests.kit.control_fakes import TOPIC, Brokers, Channel, Listener, ids, settle, subscribe, virtual
from tests.kit.reshape_bench import KINDS, Bench, stored


@virtual
async def test_semantics_42_a_merge_keeps_the_order_of_the_specification() -> None:
    bench = Bench("merge")
    service = await bench.start()
    journal = bench.host.calls
    journal.clear()

    async def written() -> None:
        layout = await bench.layout()
        journal.append(("write", None if layout.change is None else layout.change.phase, layout.epoch))

    bench.brokers.stores["a"].after = written
    bench.channel.pushed.clear()
    await bench.change(service)
    assert journal == [
        ("write", "children", 0),
        ("subscriptions", 0),
        ("subscriptions", 1),
        ("create_segment", 2),
        ("write", "terminate", 0),
        ("terminate_segment", 0),
        ("terminate_segment", 1),
        ("inherit", 2),
        ("write", None, 1),
    ]
    await settle()
    assert [ids(p) for p in bench.channel.pushed][-1] == [2]
    assert bench.host.inherited[2] == [b"known to 0", b"known to 1"]
    await service.close()


@virtual
async def test_semantics_42_a_merged_child_has_the_subscriptions_of_both_parents() -> None:
    bench = Bench("merge")
    service = await bench.start()
    bench.host.cursors[0]["left"] = bench.host.cursors[1]["right"] = InitialPosition.LATEST
    await bench.change(service)
    assert sorted(bench.host.cursors[2]) == ["left", "other", "right", "sub"]
    assert set(bench.host.cursors[2].values()) == {InitialPosition.EARLIEST}
    await service.close()


@pytest.mark.parametrize("kind", KINDS)
@virtual
async def test_watchers_hear_of_the_new_layout_once_and_of_nothing_that_is_pending(kind: str) -> None:
    bench = Bench(kind)
    service = await bench.start()
    second = await bench.brokers.start("b")
    listener = Listener()
    watch = await second.watch_topic("orders", listener)
    view = await bench.change(service)
    await settle()
    assert [v.layout.epoch for v in listener.views] == [1]
    assert listener.views[0].layout == view.layout == watch.view.layout
    assert listener.deleted == 0
    assert view.controller_url == "engine://a"
    await service.close()
    await second.close()


@virtual
async def test_semantics_4_children_are_born_in_the_moment_in_which_the_parent_is_sealed() -> None:
    bench = Bench("split")
    service = await bench.start()
    await asyncio.sleep(10)
    layout = (await bench.change(service)).layout
    now = bench.brokers.clock.time_ms()
    assert layout.segment(0).sealed_at_ms == layout.segment(2).created_at_ms == layout.segment(3).created_at_ms == now
    assert layout.segment(1).sealed_at_ms is None
    await service.close()


@virtual
async def test_semantics_3_ids_are_not_used_again_after_a_change_that_was_undone() -> None:
    bench = Bench("split")
    service = await bench.start()
    bench.host.failures["terminate_segment"] = StorageError("no")  # behind the point of no return: 2 and 3
    bench.host.failures["create_segment"] = StorageError("no")  # before it
    for _ in range(3):
        with pytest.raises(StorageError):
            await bench.change(service)
        assert (await bench.check()).epoch == 0
    bench.host.failures.clear()
    layout = (await bench.change(service)).layout
    assert sorted(layout.segments) == [0, 1, 8, 9]
    assert layout.next_segment_id == 10
    await service.close()


@virtual
async def test_semantics_5_bad_input_is_refused_and_nothing_is_touched(
    brokers: Brokers, service: ScalableTopicService
) -> None:
    await service.create_topic("orders", segments=3)
    await service.split_segment("orders", 0)  # 0 sealed; 3, 4, 1, 2 active
    before = await brokers.store.get(keys.topic(TOPIC))
    brokers.host.calls.clear()
    text: Any = "1"
    flag: Any = True
    refused = [
        (service.split_segment("orders", 0), "sealed since epoch 1"),
        (service.split_segment("orders", 99), "not in the layout"),
        (service.split_segment("orders", -1), "not in the layout"),
        (service.split_segment("orders", text), "must be an integer"),
        (service.split_segment("orders", flag), "must be an integer"),
        (service.merge_segments("orders", 3, 1), "must be neighbours"),
        (service.merge_segments("orders", 3, 3), "must be two neighbours"),
        (service.merge_segments("orders", 0, 1), "sealed"),
        (service.merge_segments("orders", 1, 99), "not in the layout"),
        (service.rebucket_segment("orders", 1, 1), "1 buckets already"),
        (service.rebucket_segment("orders", 1, 0), "1 to 1024, got 0"),
        (service.rebucket_segment("orders", 1, 1025), "1 to 1024"),
        (service.rebucket_segment("orders", 1, text), "integer"),
        (service.rebucket_segment("orders", 0, 4), "sealed"),
        (service.prune_segment("orders", 1), "active"),
        (service.split_segment("persistent://public/default/orders", 1), "cannot be reshaped"),
        (service.split_segment("queue://public/default/orders", 1), "topic://"),
    ]
    for call, why in refused:
        with pytest.raises(InvalidArgumentError, match=why):
            await call
    with pytest.raises(InvalidArgumentError, match=r"segments must be .*, got 0"):
        await service.create_topic("other", segments=0)
    for missing in (service.split_segment("nope", 0), service.prune_segment("nope", 0)):
        with pytest.raises(NotFoundError):
            await missing
    assert await brokers.store.get(keys.topic(TOPIC)) == before
    assert brokers.host.calls == []
    await service.close()


@virtual
async def test_a_topic_has_as_many_segments_as_it_may_have_and_no_more(service: ScalableTopicService) -> None:
    await service.create_topic("orders", segments=1024)
    with pytest.raises(InvalidArgumentError, match="at most 1024 active segments, got 1025"):
        await service.split_segment("orders", 0)
    await service.merge_segments("orders", 0, 1)
    await service.split_segment("orders", 1024)
    with pytest.raises(InvalidArgumentError, match="use fewer entry buckets"):
        await service.create_topic("large", segments=1024, entry_buckets=1024 * 1024)
    await service.close()


def test_a_layout_does_not_grow_beyond_what_a_client_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.model.layout, "LAYOUT_SIZE_MAX", 8 * 1024)
    grow_a_layout()


@virtual
async def grow_a_layout() -> None:
    brokers = Brokers()
    service = await brokers.start("a")
    await service.create_topic("orders", entry_buckets=100)
    for segment_id in range(9):
        await service.rebucket_segment("orders", segment_id, 99 + segment_id % 2)
    with pytest.raises(
        InvalidArgumentError, match="1 active and 10 sealed segments with their buckets must take at most"
    ):
        await service.rebucket_segment("orders", 9, 100)
    assert (await stored(brokers)).epoch == 9
    for segment_id in range(9):
        assert await service.prune_segment("orders", segment_id)
    await service.rebucket_segment("orders", 9, 100)
    await service.close()


@virtual
async def test_only_the_leader_changes_the_shape(brokers: Brokers) -> None:
    first, second = await brokers.start("a"), await brokers.start("b")
    await first.create_topic("orders", segments=2)
    await subscribe(first, "one")
    for refused in (
        second.split_segment("orders", 0),
        second.merge_segments("orders", 0, 1),
        second.rebucket_segment("orders", 0, 7),
        second.prune_segment("orders", 0),
    ):
        with pytest.raises(NotOwnerError, match="engine://a"):
            await refused
    await first.close()
    assert (await second.split_segment("orders", 0)).layout.epoch == 1
    await second.close()


@virtual
async def test_changes_of_one_topic_run_one_at_a_time_and_no_subscription_is_missed() -> None:
    bench = Bench("split")
    service = await bench.start()

    async def slow() -> None:
        await asyncio.sleep(5)

    for method in ("subscriptions", "create_segment", "terminate_segment", "inherit"):
        bench.host.before[method] = slow
    changes = [asyncio.ensure_future(bench.change(service))]  # type: ignore[arg-type]
    for step in range(8):
        await asyncio.sleep(2)
        changes.append(asyncio.ensure_future(service.create_subscription("orders", f"s{step}")))
    changes.append(asyncio.ensure_future(service.split_segment("orders", 1)))
    await asyncio.gather(*changes)
    layout = await stored(bench.brokers)
    assert [s.segment_id for s in layout.active] == [2, 3, 4, 5]
    for segment in layout.active:
        assert sorted(bench.host.cursors[segment.segment_id]) == ["other", *(f"s{i}" for i in range(8)), "sub"]
    await service.close()


@virtual
async def test_a_subscription_that_is_being_deleted_is_not_born_again_in_children() -> None:
    bench = Bench("split")
    service = await bench.start()
    bench.host.failures["delete_subscription"] = StorageError("no")
    with pytest.raises(StorageError):
        await service.delete_subscription("orders", "other")
    await bench.change(service)
    assert sorted(bench.host.cursors[2]) == ["sub"]
    bench.host.failures.clear()
    await service.delete_subscription("orders", "other")
    assert all("other" not in cursors for cursors in bench.host.cursors.values())
    await service.close()


@pytest.mark.parametrize("point", ["before create_segment", "after create_segment", "before terminate_segment"])
@virtual
async def test_deleting_a_topic_takes_the_children_of_a_pending_change_along(point: str) -> None:
    bench = Bench("split")
    service = await bench.start()

    async def fail() -> None:
        raise StorageError("no")

    bench.at(point, fail)
    bench.host.failures["delete_segment"] = StorageError("no")
    with pytest.raises(StorageError):
        await bench.change(service)
    assert (await stored(bench.brokers)).change is not None
    assert await service.list_topics("public/default") == [str(TOPIC)]  # it is alive
    with pytest.raises(AlreadyExistsError):
        await service.create_topic("orders")
    bench.host.failures.clear()
    await service.delete_topic("orders")
    assert bench.host.stores == {}
    assert {name[-1] for name in bench.host.deleted} == {"0", "1", "2", "3"}
    assert await bench.brokers.store.list_keys("/", "0") == []
    await service.close()


@virtual
async def test_asking_once_more_for_what_is_being_finished_finishes_it() -> None:
    bench = Bench("split")
    service = await bench.start()
    bench.host.failures["inherit"] = StorageError("no")
    for _ in range(2):
        with pytest.raises(StorageError):
            await service.split_segment("orders", 0)
    with pytest.raises(StorageError):  # what comes before must be finished first
        await service.split_segment("orders", 1)
    with pytest.raises(StorageError):
        await service.create_subscription("orders", "new")
    assert bench.brokers.store is not None
    bench.host.failures.clear()
    assert [s.segment_id for s in (await service.split_segment("orders", 0)).layout.active] == [2, 3, 1]
    await bench.check()
    await service.close()


@virtual
async def test_sessions_are_restored_and_served_while_a_change_is_pending() -> None:
    bench = Bench("split")
    first = await bench.start()
    second = await bench.brokers.start("b")
    bench.host.failures["inherit"] = StorageError("no")
    with pytest.raises(StorageError):
        await bench.change(first)
    await bench.brokers.kill("a")
    channel = Channel()
    await asyncio.sleep(50)
    assert await subscribe(second, "one", channel) == [0, 1]  # the old layout, and a fresh grace period
    await asyncio.sleep(100)
    assert channel.pushed == []
    bench.host.failures.clear()
    assert (await bench.settled()).epoch == 1
    assert ids(channel.pushed[-1]) == [2, 3, 1]
    await second.close()


@virtual
async def test_reshapes_are_counted() -> None:
    bench = Bench("split")
    service = await bench.start()
    bench.host.failures["create_segment"] = StorageError("no")
    with pytest.raises(StorageError):
        await bench.change(service)
    bench.host.failures.clear()
    await bench.change(service)
    await service.merge_segments("orders", 5, 1)
    topic = str(TOPIC)
    assert service.controllers.reshapes == {
        (topic, "split", "undone"): 1,
        (topic, "split", "done"): 1,
        (topic, "merge", "done"): 1,
    }
    await service.close()


@virtual
async def test_a_subscription_without_a_cursor_in_the_parent_has_one_in_its_children() -> None:
    bench = Bench("split")
    service = await bench.start()
    del bench.host.cursors[0]["other"]  # a host makes them when they are needed
    await bench.change(service)
    await bench.check()
    await service.close()
