"""Consumers that join, drop, come back, leave and expire, on virtual time (semantics 13 to 15)."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.control.base.topic_records import ScalableTopicResources
from engine.errors import ConsumerBusyError, EngineError, NotOwnerError, StorageError
from engine.metadata import keys
from engine.model.subscriptions import ConsumerAssignment, DeliveryMode, Share
from tests.control.consumer_group import GRACE_S, Group
from tests.kit.control_fakes import TOPIC, settle, virtual


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
    group = Group(segments=4)  # of one bucket each
    for name in "abcd":
        await group.join(name)
    before = [len(group.channels[name].pushed) for name in "abcd"]
    assert await group.join("e") == []
    assert await group.join("f") == []
    assert [len(group.channels[name].pushed) for name in "abcd"] == before
    assert not group.channels["e"].pushed
    assert await group.coordinator.leave("d", "1")
    assert group.last("e") == [3]
    assert not group.channels["f"].pushed


def modes(assignment: ConsumerAssignment) -> list[tuple[int, DeliveryMode, int]]:
    """Segment, mode and how many bucket ends are told."""
    return [(s.segment_id, s.mode, len(s.bucket_ends)) for s in assignment.segments]


@virtual
async def test_semantics_16_sharers_are_told_all_boundaries_and_the_modes_are_kept() -> None:
    group = Group(segments=1)  # of four buckets
    assert modes(await group.join_whole("a")) == [(0, DeliveryMode.EXCLUSIVE, 0)]
    assert modes(await group.join_whole("b")) == [(0, DeliveryMode.SHARED, 4)]
    [told] = group.channels["a"].pushed
    assert modes(told) == [(0, DeliveryMode.SHARED, 4)]
    assert told.segments[0].bucket_ends == group.layout.segments[0].bucket_ends
    await group.join("c")  # the others share it as before
    assert len(group.channels["a"].pushed) == 1
    assert not group.channels["b"].pushed
    await group.coordinator.written()
    found = await ScalableTopicResources(group.store).list_consumers(TOPIC)
    assert {facts.consumer_name: facts.shares for _, facts, _ in found} == dict.fromkeys(
        "abc", (Share(0, DeliveryMode.SHARED),)
    )


@virtual
async def test_semantics_14_a_new_leader_flips_nothing() -> None:
    group = Group(segments=1)
    await group.join("a")
    await group.join("b")
    await group.coordinator.written()
    found = await ScalableTopicResources(group.store).list_consumers(TOPIC)
    group.coordinator = group.make(term=2)
    group.coordinator.restore([(facts, version) for _, facts, version in found])
    assert modes(await group.join_whole("a")) == [(0, DeliveryMode.SHARED, 4)]
    assert not group.channels["a"].pushed


@virtual
async def test_the_last_sharer_reads_alone_again() -> None:
    group = Group(segments=1)
    await group.join("a")
    await group.join("b")
    assert await group.coordinator.leave("a", "1")
    assert modes(group.channels["b"].pushed[-1]) == [(0, DeliveryMode.EXCLUSIVE, 0)]


@virtual
async def test_who_must_let_go_is_told_first() -> None:
    """Of an exclusive reader that becomes a sharer, and the one that is to share with it."""
    group = Group(segments=2)
    told: list[str] = []
    for name in "ab":
        await group.join(name)
        group.channels[name].push_assignment = lambda _, name=name: told.append(name)  # type: ignore[method-assign]
    told.clear()
    await group.join("0")  # shares the first; the second stays as it is
    assert told == ["a"]
    await group.join("1")  # takes the place of `a`, which goes to the second
    assert told == ["a", "a", "b"]
    shares = {name: group.coordinator._sessions[name].shares for name in "01ab"}
    assert shares == {name: (Share(i, DeliveryMode.SHARED),) for name, i in {"0": 0, "1": 0, "a": 1, "b": 1}.items()}


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
    assert [type(e) for e in first.closed] == [NotOwnerError]  # if a consumer still listens there: register again


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
