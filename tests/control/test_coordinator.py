"""Consumers that join, drop, come back, leave and expire, on virtual time (SEMANTICS 7 to 9, 13 to 15)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from control_fakes import TOPIC, Channel, FakeHost, ids, settle, virtual

from engine.control.coordinator import SubscriptionCoordinator
from engine.control.resources import ScalableTopicResources
from engine.errors import ConsumerBusyError, EngineError, NotOwnerError, StorageError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import Stat
from engine.model.layout import SegmentLayout
from engine.model.reshape import merge_segments, prune_segment, split_segment
from engine.model.subscriptions import SubscriptionKind
from engine.testing.clock import FakeClock

GRACE_S = 60.0


class Group:
    """One subscription's coordinator, its store and its host."""

    def __init__(self, segments: int = 4, kind: SubscriptionKind = SubscriptionKind.STREAM) -> None:
        self.store = MemoryMetadataStore(FakeClock())
        self.host = FakeHost()
        self.layout = SegmentLayout.create(segments, now_ms=0)
        self.kind = kind
        self.leads = True
        self.channels: dict[str, Channel] = {}
        self.coordinator = self.make(term=1)

    def make(self, term: int) -> SubscriptionCoordinator:
        async def confirm() -> bool:
            return self.leads

        return SubscriptionCoordinator(
            TOPIC,
            "sub",
            self.kind,
            self.layout,
            term=term,
            confirm=confirm,
            resources=ScalableTopicResources(self.store),
            host=self.host,
            grace_s=GRACE_S,
        )

    async def join(self, name: str, instance: str = "1") -> list[int]:
        channel = self.channels[name] = Channel()
        return ids(await self.coordinator.register(name, instance, channel))

    def drop(self, name: str) -> None:
        self.coordinator.disconnect(name, self.channels[name])

    def shares(self) -> dict[str, tuple[int, ...]]:
        return {name: share for name, (_, share) in self.coordinator.consumers.items()}

    async def registered(self) -> dict[str, tuple[int, ...]]:
        """What the store says."""
        await self.coordinator.written()
        found = await ScalableTopicResources(self.store).list_consumers(TOPIC)
        return {facts.consumer_name: facts.segment_ids for _, facts, _ in found}

    def slow_writes(self) -> None:
        """Writes take a second from now on."""
        put = self.store.put

        async def slow(*args: Any, **kwargs: Any) -> Stat:
            await asyncio.sleep(1)
            return await put(*args, **kwargs)

        self.store.put = slow  # type: ignore[method-assign]

    def reshape(self, layout: SegmentLayout) -> None:
        self.layout = layout
        self.coordinator.layout_changed(layout)

    def last(self, name: str) -> list[int]:
        return ids(self.channels[name].pushed[-1])


@virtual
async def test_join_and_leave_redistribute_and_push() -> None:
    group = Group()
    assert await group.join("b") == [0, 1, 2, 3]
    assert await group.join("a") == [0, 2]
    assert group.last("b") == [1, 3]
    assert not group.channels["a"].pushed  # its first share was the answer
    assert await group.registered() == {"a": (0, 2), "b": (1, 3)}
    assert await group.coordinator.leave("a", "1")
    assert group.last("b") == [0, 1, 2, 3]
    assert await group.registered() == {"b": (0, 1, 2, 3)}


@virtual
async def test_semantics_15_surplus_consumers_are_idle_and_undisturbed() -> None:
    group = Group(segments=1)
    assert await group.join("a") == [0]
    assert await group.join("b") == []
    assert await group.join("c") == []
    assert not group.channels["a"].pushed
    assert not group.channels["b"].pushed
    assert await group.coordinator.leave("a", "1")
    assert group.last("b") == [0]
    assert not group.channels["c"].pushed


@virtual
async def test_reconnecting_within_grace_resumes_the_share_without_a_rebalance() -> None:
    group = Group()
    await group.join("a")
    await group.join("b")
    before = len(group.channels["b"].pushed)
    version = group.store.version
    group.drop("a")
    await asyncio.sleep(GRACE_S - 1)
    assert await group.join("a", "1") == [0, 2]
    await asyncio.sleep(GRACE_S * 2)
    assert group.shares() == {"a": (0, 2), "b": (1, 3)}
    assert len(group.channels["b"].pushed) == before
    await group.coordinator.written()
    assert group.store.version <= version + 2  # no more than the shares that were still unwritten


@virtual
async def test_a_restarted_process_resumes_under_its_name() -> None:
    group = Group()
    await group.join("a", "1")
    await group.join("b")
    group.drop("a")
    assert await group.join("a", "2") == [0, 2]
    assert not await group.coordinator.leave("a", "1")
    assert await group.coordinator.leave("a", "2")


@virtual
async def test_expiry_redistributes_and_forgets() -> None:
    group = Group()
    await group.join("a")
    await group.join("b")
    group.drop("a")
    await asyncio.sleep(GRACE_S - 0.1)
    assert group.shares() == {"a": (0, 2), "b": (1, 3)}
    await asyncio.sleep(0.2)
    assert group.shares() == {"b": (0, 1, 2, 3)}
    assert group.last("b") == [0, 1, 2, 3]
    assert await group.registered() == {"b": (0, 1, 2, 3)}


@virtual
async def test_each_drop_starts_a_fresh_grace_period() -> None:
    group = Group()
    await group.join("a")
    for _ in range(5):
        group.drop("a")
        await asyncio.sleep(GRACE_S - 1)
        await group.join("a")
    assert group.shares() == {"a": (0, 1, 2, 3)}


@virtual
async def test_semantics_13_a_stale_leave_does_not_evict_a_newer_consumer() -> None:
    group = Group()
    await group.join("a", "old")
    older = group.channels["a"]
    await group.join("a", "new")
    assert isinstance(older.closed[0], ConsumerBusyError)
    assert not await group.coordinator.leave("a", "old")
    assert not await group.coordinator.leave("nobody", "old")
    group.coordinator.disconnect("a", older)  # the old connection drops late
    await asyncio.sleep(GRACE_S * 2)
    assert group.shares() == {"a": (0, 1, 2, 3)}


@virtual
async def test_the_same_consumer_on_a_new_connection_is_not_hurt_by_the_old_one() -> None:
    group = Group()
    await group.join("a", "1")
    first = group.channels["a"]
    await group.join("a", "1")
    group.coordinator.disconnect("a", first)
    await asyncio.sleep(GRACE_S * 2)
    assert group.coordinator.consumers == {"a": (True, (0, 1, 2, 3))}
    assert not first.closed


@virtual
async def test_semantics_14_restored_sessions_are_disconnected_with_a_fresh_timer_and_keep_their_share() -> None:
    group = Group()
    await group.join("a")
    await group.join("b")
    await group.coordinator.written()
    group.coordinator.end(NotOwnerError("elsewhere"))
    await asyncio.sleep(GRACE_S * 5)

    found = await ScalableTopicResources(group.store).list_consumers(TOPIC)
    group.coordinator = group.make(term=2)
    group.coordinator.restore((facts, version) for _, facts, version in found)
    assert group.coordinator.consumers == {"a": (False, (0, 2)), "b": (False, (1, 3))}
    await asyncio.sleep(GRACE_S - 1)
    assert await group.join("a") == [0, 2]
    assert not group.channels["a"].pushed
    await asyncio.sleep(2)
    assert group.shares() == {"a": (0, 1, 2, 3)}
    assert await group.registered() == {"a": (0, 1, 2, 3)}


@virtual
async def test_semantics_14_a_leave_after_a_leader_change_is_told_by_its_instance() -> None:
    group = Group()
    await group.join("a", "7")
    await group.coordinator.written()
    found = await ScalableTopicResources(group.store).list_consumers(TOPIC)
    group.coordinator = group.make(term=2)
    group.coordinator.restore((facts, version) for _, facts, version in found)
    assert not await group.coordinator.leave("a", "6")
    assert await group.coordinator.leave("a", "7")
    assert await group.registered() == {}


@virtual
async def test_pushes_carry_the_layout_epoch_and_older_layouts_are_ignored() -> None:
    group = Group(segments=1)
    group.host.backlogs[0, "sub"] = 0
    await group.join("a")
    old = group.layout
    group.reshape(split_segment(old, 0, 1))
    await settle()
    assert [(p.layout_epoch, ids(p)) for p in group.channels["a"].pushed] == [(1, [1, 2])]
    group.coordinator.layout_changed(old)
    await settle()
    assert group.last("a") == [1, 2]


@virtual
async def test_semantics_7_and_8_children_wait_until_the_parents_backlog_is_acknowledged() -> None:
    group = Group(segments=1)
    group.host.backlogs[0, "sub"] = 5
    await group.join("a")
    await group.join("b")
    group.reshape(split_segment(group.layout, 0, 1))
    await settle()
    assert group.shares() == {"a": (0,), "b": ()}
    group.host.acknowledge_all(0, "sub")
    assert group.shares() == {"a": (1,), "b": (2,)}
    assert group.last("a") == [1]
    assert group.last("b") == [2]


@virtual
async def test_semantics_8_an_empty_middle_generation_does_not_open_its_children() -> None:
    group = Group(segments=1)
    group.host.backlogs[0, "sub"] = 5
    await group.join("a")
    group.reshape(split_segment(group.layout, 0, 1))
    group.reshape(split_segment(group.layout, 1, 2))
    await settle()
    assert group.shares() == {"a": (0,)}
    group.host.acknowledge_all(0, "sub")
    assert group.shares() == {"a": (3, 4, 2)}


@virtual
async def test_semantics_8_a_merged_child_waits_for_all_its_parents() -> None:
    group = Group(segments=2)
    group.host.backlogs |= {(0, "sub"): 1, (1, "sub"): 1}
    await group.join("a")
    group.reshape(merge_segments(group.layout, 0, 1, 1))
    group.host.acknowledge_all(1, "sub")
    await settle()
    assert group.shares() == {"a": (0,)}
    group.host.acknowledge_all(0, "sub")
    assert group.shares() == {"a": (2,)}


@virtual
async def test_semantics_9_a_new_coordinator_leaves_drained_segments_out() -> None:
    group = Group(segments=1)
    group.layout = split_segment(group.layout, 0, 1)
    group.coordinator = group.make(term=2)
    await settle()
    assert await group.join("a") == [1, 2]


@virtual
async def test_a_seek_back_gates_anew() -> None:
    group = Group(segments=1)
    await group.join("a")
    group.reshape(split_segment(group.layout, 0, 1))
    await settle()
    assert group.shares() == {"a": (1, 2)}
    group.host.backlogs[0, "sub"] = 9
    group.coordinator.cursors_moved()
    await settle()
    assert group.shares() == {"a": (0,)}


@virtual
async def test_pruned_segments_are_watched_no_more() -> None:
    group = Group(segments=1)
    group.host.backlogs[0, "sub"] = 9
    await group.join("a")
    group.reshape(split_segment(group.layout, 0, 1))
    assert len(group.host.waiting[0, "sub"]) == 1
    group.reshape(prune_segment(group.layout, 0))
    assert not group.host.waiting[0, "sub"]
    assert group.shares() == {"a": (1, 2)}


@virtual
async def test_semantics_10_checkpoint_groups_are_not_gated_and_ask_for_no_backlog() -> None:
    group = Group(segments=1, kind=SubscriptionKind.CHECKPOINT)
    await group.join("a")
    group.reshape(split_segment(group.layout, 0, 1))
    await settle()
    assert group.shares() == {"a": (0, 1, 2)}
    assert not group.host.waiting


@virtual
async def test_a_lost_leadership_is_noticed_by_the_write_and_leaves_nothing_behind() -> None:
    group = Group()
    group.leads = False
    with pytest.raises(NotOwnerError):
        await group.join("a")
    await settle()
    assert group.shares() == {}
    assert await group.store.list_keys("/", "0") == []


@virtual
async def test_an_old_leader_cannot_end_a_session_that_the_new_leader_resumed() -> None:
    group = Group()
    await group.join("a")
    await group.coordinator.written()
    old = group.coordinator
    group.drop("a")
    found = await ScalableTopicResources(group.store).list_consumers(TOPIC)
    group.coordinator = group.make(term=2)
    group.coordinator.restore((facts, version) for _, facts, version in found)
    await group.join("a")
    group.leads = False  # what the old one would be told
    await asyncio.sleep(GRACE_S * 2)
    await old.written()
    assert await group.registered() == {"a": (0, 1, 2, 3)}


@virtual
async def test_a_registration_that_cannot_be_stored_is_no_member() -> None:
    group = Group()
    await group.join("b")
    put = group.store.put

    async def broken(*args: object, **kwargs: object) -> object:
        raise StorageError("no")

    group.store.put = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(StorageError):
        await group.join("a")
    await settle()
    assert group.shares() == {"b": (0, 1, 2, 3)}
    group.store.put = put  # type: ignore[method-assign]
    assert await group.join("a") == [0, 2]


@virtual
async def test_a_cancelled_registration_leaves_no_ghost() -> None:
    group = Group()
    group.slow_writes()
    task = asyncio.create_task(group.join("a"))
    await asyncio.sleep(0.5)
    group.drop("a")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(GRACE_S * 2)
    assert group.shares() == {}
    assert await group.registered() == {}
    assert group.coordinator.idle


@virtual
async def test_a_consumer_that_drops_while_it_joins_expires() -> None:
    group = Group()
    group.slow_writes()
    task = asyncio.create_task(group.join("a"))
    await asyncio.sleep(0.5)
    group.drop("a")
    await task
    assert group.coordinator.consumers["a"][0] is False
    await asyncio.sleep(GRACE_S + 5)
    assert group.shares() == {}


@virtual
async def test_two_consumers_race_for_a_name_and_one_wins() -> None:
    group = Group()
    group.slow_writes()
    results = await asyncio.gather(group.join("a", "1"), group.join("a", "2"), return_exceptions=True)
    assert isinstance(results[0], ConsumerBusyError)
    assert results[1] == [0, 1, 2, 3]
    assert not await group.coordinator.leave("a", "1")
    assert group.shares() == {"a": (0, 1, 2, 3)}


@virtual
async def test_an_ended_coordinator_tells_consumers_and_serves_nobody() -> None:
    group = Group()
    await group.join("a")
    group.drop("a")
    await group.join("b")
    group.coordinator.end(NotOwnerError("elsewhere"))
    assert isinstance(group.channels["b"].closed[0], NotOwnerError)
    assert not group.channels["a"].closed
    with pytest.raises(NotOwnerError):
        await group.join("c")
    await asyncio.sleep(GRACE_S * 2)
    assert len(await group.registered()) == 2  # sessions outlive the leader


@virtual
async def test_expiry_is_tried_again_when_the_store_fails() -> None:
    group = Group()
    await group.join("a")
    group.drop("a")
    delete = group.store.delete

    async def broken(*args: object, **kwargs: object) -> bool:
        raise StorageError("no")

    group.store.delete = broken  # type: ignore[method-assign, assignment]
    await asyncio.sleep(GRACE_S + 1)
    assert group.shares() == {"a": (0, 1, 2, 3)}
    group.store.delete = delete  # type: ignore[method-assign]
    await asyncio.sleep(GRACE_S + 1)
    assert group.shares() == {}


@pytest.mark.parametrize("seed", range(20))
@virtual
async def test_churn_leaves_no_ghosts(seed: int) -> None:
    """Whatever happened: members hold every segment once, the store says the same, all gone means nothing is left."""
    rng = random.Random(seed)
    group = Group(segments=5)
    if seed % 2:
        group.slow_writes()
    alive: dict[str, str] = {}

    async def act(step: int) -> None:
        name = rng.choice("abcdef")
        kind = rng.choice(["join", "join", "drop", "leave", "stale", "wait"])
        try:
            if kind == "join":
                await group.join(name, str(step))
                alive[name] = str(step)
            elif kind == "drop" and name in group.channels:
                group.drop(name)
            elif kind == "leave" and name in alive:
                await group.coordinator.leave(name, alive[name])
            elif kind == "stale":
                assert not await group.coordinator.leave(name, "never")
            elif kind == "wait":
                await asyncio.sleep(rng.choice([0.1, 20.0, 70.0]))
        except EngineError:
            assert kind == "join"

    for step in range(60):
        if rng.random() < 0.3:
            await asyncio.gather(*(act(step * 10 + i) for i in range(4)))
        else:
            await act(step)
    await settle()
    shares = group.shares()
    assert sorted(i for share in shares.values() for i in share) == (list(range(5)) if shares else [])
    assert await group.registered() == shares
    for name, channel in list(group.channels.items()):
        group.coordinator.disconnect(name, channel)
    await asyncio.sleep(GRACE_S * 2)
    await group.coordinator.written()
    assert group.coordinator.idle
    prefix = keys.subscriptions(TOPIC)
    assert await group.store.list_keys(prefix, keys.prefix_end(prefix)) == []
