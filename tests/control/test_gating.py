"""Sealed segments and consumers: which waits for which (semantics 7 to 10)."""

from __future__ import annotations

import asyncio

from engine.errors import AlreadyClosedError, StorageError
from engine.model.reshape import merge_segments, prune_segment, split_segment
from engine.model.subscriptions import SubscriptionKind
from tests.control.consumer_group import Group
from tests.kit.control_fakes import ids, settle, virtual


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
    assert group.shares() == {"a": (0,), "b": (0,)}  # they drain it together (PIP-486)
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
async def test_semantics_9_the_first_share_is_right_at_once_and_needs_no_push() -> None:
    group = Group(segments=1)
    group.layout = split_segment(group.layout, 0, 1)
    group.coordinator = group.make(term=2)
    assert await group.join("a") == [1, 2]
    assert await group.join("b") == [2]
    await settle()
    assert [ids(p) for p in group.channels["a"].pushed] == [[1]]


@virtual
async def test_an_owner_that_does_not_answer_holds_its_children_back_until_it_does() -> None:
    group = Group(segments=1)
    group.layout = split_segment(group.layout, 0, 1)
    down = StorageError("no owner just now")
    group.host.failures |= {"backlog": down, "watch_drained": down}
    group.coordinator = group.make(term=2)
    assert await group.join("a") == [0]  # no owner says that it is drained
    await asyncio.sleep(60)
    assert group.shares() == {"a": (0,)}
    group.host.failures.clear()
    await asyncio.sleep(6)
    assert group.last("a") == [1, 2]
    group.coordinator.end(AlreadyClosedError("done"))


@virtual
async def test_a_slow_owner_does_not_hold_up_a_registration() -> None:
    group = Group(segments=1)
    group.layout = split_segment(group.layout, 0, 1)

    async def slow(*_: object) -> int:
        await asyncio.sleep(100)
        return 0

    group.host.backlog = slow  # type: ignore[method-assign]
    group.host.failures["watch_drained"] = StorageError("no owner just now")
    group.coordinator = group.make(term=2)
    loop = asyncio.get_running_loop()
    before = loop.time()
    assert await group.join("a") == [0]
    assert await group.join("b") == [0]
    assert loop.time() - before < 2
    group.coordinator.end(AlreadyClosedError("done"))


@virtual
async def test_a_watch_that_is_lost_with_its_owner_is_set_up_anew() -> None:
    group = Group(segments=1)
    group.host.backlogs[0, "sub"] = 5
    await group.join("a")
    group.reshape(split_segment(group.layout, 0, 1))
    group.host.waiting.clear()  # the owner died, and with it what it was to tell
    group.host.acknowledge_all(0, "sub")
    await asyncio.sleep(10)
    assert group.last("a") == [1, 2]
    assert not any(group.host.waiting.values())
    group.coordinator.end(AlreadyClosedError("done"))


@virtual
async def test_a_seek_wins_over_what_was_asked_before_it() -> None:
    group = Group(segments=1)
    group.layout = split_segment(group.layout, 0, 1)
    answer = asyncio.Event()

    async def late(*_: object) -> int:
        await answer.wait()
        return 0

    group.host.backlog = late  # type: ignore[method-assign]
    group.host.backlogs[0, "sub"] = 9
    group.coordinator = group.make(term=2)
    joining = asyncio.ensure_future(group.join("a"))
    await settle()
    group.coordinator.cursors_moved()
    answer.set()
    assert await joining == [0]
    group.coordinator.end(AlreadyClosedError("done"))


@virtual
async def test_a_coordinator_that_ended_watches_nothing() -> None:
    group = Group(segments=1)
    group.host.backlogs[0, "sub"] = 5
    await group.join("a")
    group.reshape(split_segment(group.layout, 0, 1))
    group.coordinator.end(AlreadyClosedError("done"))
    await asyncio.sleep(60)
    assert not any(group.host.waiting.values())


@virtual
async def test_children_are_let_go_before_a_seek_moves_their_cursors() -> None:
    group = Group(segments=1)
    await group.join("a")
    group.reshape(split_segment(group.layout, 0, 1))
    await settle()
    assert group.shares() == {"a": (1, 2)}
    group.coordinator.cursors_move()
    assert group.last("a") == [0]
    await asyncio.sleep(100)  # what its owner says of the parent now is of before the seek
    await group.join("b")
    assert group.shares()["a"] == (0,)
    group.coordinator.cursors_moved()
    await settle()
    assert group.shares() == {"a": (1,), "b": (2,)}  # nothing came of it: the parent is drained still
