"""Living with sealed segments: pruned when they may go, sought through, counted, restored to the next leader."""

from __future__ import annotations

import asyncio

import pytest

from engine.control.service import ScalableTopicService
from engine.errors import NotOwnerError, StorageError
from engine.metadata import keys
from engine.model.subscriptions import InitialPosition
from tests.kit.control_fakes import TOPIC, Brokers, Channel, deafen, ids, settle, subscribe, virtual
from tests.kit.reshape_bench import Bench, stored


@virtual
async def test_prune_goes_from_the_oldest_and_takes_only_what_is_drained(
    brokers: Brokers, service: ScalableTopicService
) -> None:
    await service.create_topic("orders")
    await service.create_subscription("orders", "sub", initial_position="earliest")
    await service.split_segment("orders", 0)
    await service.split_segment("orders", 1)
    brokers.host.backlogs[0, "sub"] = 3
    assert not await service.prune_segment("orders", 0)  # not drained
    assert not await service.prune_segment("orders", 1)  # has a parent
    assert not await service.prune_segment("orders", 77)  # unknown
    assert (await stored(brokers)).epoch == 2
    brokers.host.backlogs.clear()
    assert await service.prune_segment("orders", 0)
    brokers.host.failures["delete_segment"] = StorageError("no")
    assert await service.prune_segment("orders", 1)  # its owner sweeps the store that stays
    layout = await stored(brokers)
    assert (layout.epoch, sorted(layout.segments)) == (4, [2, 3, 4])
    assert not any(s.parent_ids for s in layout.segments.values())
    assert not await service.prune_segment("orders", 0)
    await service.close()


@virtual
async def test_a_prune_that_meets_another_leaders_write_changes_nothing() -> None:
    bench = Bench("split")
    service = await bench.start()
    await bench.change(service)
    await settle()
    deafen(service)
    record = await bench.brokers.store.get(keys.topic(TOPIC))
    assert record is not None
    await bench.brokers.store.put(record.key, record.value)
    with pytest.raises(NotOwnerError):
        await service.prune_segment("orders", 0)
    assert bench.host.deleted == set()
    await service.close()


@virtual
async def test_stats_tell_the_whole_dag_with_its_backlogs_and_consumers() -> None:
    bench = Bench("split")
    service = await bench.start()
    bench.host.backlogs |= {(0, "sub"): 7, (0, "other"): 2, (1, "sub"): 1}
    layout = (await bench.change(service)).layout
    stats = await service.get_stats("orders")
    assert (stats["epoch"], stats["segmentCount"], stats["activeSegmentCount"], stats["sealedSegmentCount"]) == (
        1,
        4,
        3,
        1,
    )
    assert stats["pendingChange"] is None
    parent, child = stats["segments"]["0"], stats["segments"]["2"]
    assert (parent["state"], parent["parentIds"], parent["childIds"]) == ("SEALED", [], [2, 3])
    assert (child["state"], child["parentIds"], child["childIds"]) == ("ACTIVE", [0], [])
    assert parent["sealedAtMs"] == child["createdAtMs"] == layout.segment(2).created_at_ms
    assert child["sealedAtMs"] is None
    assert child["hashRange"] == {"start": 0, "end": 16383}
    assert [stats["segments"][i]["bucketCount"] for i in "0123"] == [2, 2, 1, 1]
    assert parent["backlog"] == {"other": 2, "sub": 7}
    assert child["backlog"] == {"other": 0, "sub": 0}
    sub = stats["subscriptions"]["sub"]
    assert (sub["backlog"], sub["segmentBacklog"]["0"]) == (8, 7)
    assert sub["consumers"]["one"]["segments"] == [0, 1]  # the children wait for their parent
    bench.host.failures["inherit"] = StorageError("no")
    with pytest.raises(StorageError):
        await service.split_segment("orders", 1)
    assert (await service.get_stats("orders"))["pendingChange"] == "split"
    bench.host.failures.clear()
    await service.close()


@virtual
async def test_semantics_38_seeking_over_the_dag_gates_anew_and_skipping_needs_no_detour() -> None:
    bench = Bench("split")
    service = await bench.start()
    host = bench.host
    await bench.change(service)
    await settle()
    assert ids(bench.channel.pushed[-1]) == [2, 3, 1]
    count = len(bench.channel.pushed)
    await service.clear_backlog("orders", "sub")
    await settle()
    assert len(bench.channel.pushed) == count
    assert {i: cursors["sub"] for i, cursors in host.cursors.items()} == dict.fromkeys(range(4), InitialPosition.LATEST)
    host.backlogs[0, "sub"] = 9
    await service.seek_subscription("orders", "sub", "earliest")
    await settle()
    assert ids(bench.channel.pushed[-1]) == [0, 1]
    host.acknowledge_all(0, "sub")
    await settle()
    assert ids(bench.channel.pushed[-1]) == [2, 3, 1]
    await service.close()


@virtual
async def test_semantics_10_checkpoint_groups_get_parents_and_children_of_a_new_layout(
    service: ScalableTopicService,
) -> None:
    await service.create_topic("orders", segments=2)
    channels = [Channel(), Channel()]
    for name, channel in zip(("x", "y"), channels, strict=True):
        await subscribe(service, name, channel, kind="checkpoint")
    await service.split_segment("orders", 0)
    await service.merge_segments("orders", 3, 1)
    await settle()
    shares = [ids(channel.pushed[-1]) for channel in channels]
    assert sorted(shares[0] + shares[1]) == [0, 1, 2, 3, 4]  # no segment is shared (semantics 29)
    assert shares[1] == [3, 1, 4] or shares[1] == [3, 4, 1]
    await service.prune_segment("orders", 0)
    await settle()
    assert sorted(ids(channels[0].pushed[-1])) == [2]
    await service.close()


@virtual
async def test_semantics_14_shares_over_sealed_segments_survive_a_leader_change_without_a_detour() -> None:
    brokers = Brokers(controller_idle=1000.0)
    first, second = await brokers.start("a"), await brokers.start("b")
    await first.create_topic("orders")
    for name in ("one", "two"):
        await subscribe(first, name)
    await first.split_segment("orders", 0)
    await settle()
    await first.split_segment("orders", 1)
    brokers.host.backlogs[1, "sub"] = 5
    await settle()
    before = (await first.get_stats("orders"))["subscriptions"]["sub"]["consumers"]
    await brokers.kill("a")
    channels = {name: Channel() for name in ("one", "two")}
    shares = {name: await subscribe(second, name, channel) for name, channel in channels.items()}
    assert shares == {name: facts["segments"] for name, facts in before.items()}
    assert sorted(i for share in shares.values() for i in share) in ([1, 2], [2, 3, 4])
    await asyncio.sleep(20)
    assert [c.pushed for c in channels.values()] == [[], []]
    brokers.host.acknowledge_all(1, "sub")
    await settle()
    assert sorted(i for c in channels.values() for i in ids(c.pushed[-1])) == [2, 3, 4]
    await second.close()
