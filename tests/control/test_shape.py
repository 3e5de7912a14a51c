"""`TopicShape` alone: what came of an attempt by the record, the moves of a reshape, and each failure's answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from engine.control.base.topic_records import ScalableTopicResources
from engine.control.shape.reshaping import MOVES, ReshapePhase, TopicReshaping
from engine.control.shape.shape import Outcome, TopicShape, outcome_of
from engine.errors import (
    EngineError,
    FencedError,
    InvalidArgumentError,
    NotOwnerError,
    StorageError,
    UnknownOutcomeError,
    UnsupportedError,
)
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import ABSENT, ConflictError
from engine.model.layout import DELETION, PendingChange, SegmentLayout
from engine.model.reshape import Reshape, commit, plan_merge, plan_rebucket, plan_split, reserve
from engine.model.subscriptions import InitialPosition, SubscriptionMetadata
from engine.testing.clock import FakeClock
from tests.kit.control_fakes import TOPIC, FakeHost

CHILDREN, TERMINATE, UNDO = ReshapePhase
DONE, UNDONE, WILL_FINISH, WILL_UNDO = Outcome

OLD = SegmentLayout.create(2, now_ms=1)
SPLIT = plan_split(OLD, 0)
OTHER = plan_split(OLD, 1)  # its children get the same ids
AGAIN = plan_split(replace(OLD, next_segment_id=9), 0)
REBUCKETS = [plan_rebucket(OLD, 0, buckets) for buckets in (3, 5)]


def deleting(layout: SegmentLayout) -> SegmentLayout:
    change = layout.change
    return replace(layout, change=PendingChange(DELETION, "segments", {} if change is None else change.details))


@pytest.mark.parametrize(
    ("layout", "planned", "outcome"),
    [
        (None, [SPLIT], UNDONE),
        (OLD, [], UNDONE),
        (OLD, [SPLIT], UNDONE),
        (reserve(OLD, SPLIT, CHILDREN), [SPLIT], WILL_UNDO),
        (reserve(OLD, SPLIT, UNDO), [SPLIT], WILL_UNDO),
        (reserve(OLD, SPLIT, TERMINATE), [SPLIT], WILL_FINISH),
        (commit(OLD, SPLIT, 2), [SPLIT], DONE),
        (commit(OLD, SPLIT, 2), [AGAIN, SPLIT], DONE),
        (commit(OLD, SPLIT, 2), [SPLIT, AGAIN], DONE),
        (commit(OLD, AGAIN, 2), [SPLIT], UNDONE),
        (reserve(OLD, AGAIN, TERMINATE), [SPLIT, AGAIN], WILL_FINISH),
        # Another leader's change, which got the ids that this attempt had planned for its own.
        (commit(OLD, OTHER, 2), [SPLIT], UNDONE),
        (reserve(OLD, OTHER, TERMINATE), [SPLIT], UNDONE),
        (commit(OLD, REBUCKETS[1], 2), [REBUCKETS[0]], UNDONE),
        # It is done, and another change is pending.
        (reserve(commit(OLD, SPLIT, 2), plan_split(commit(OLD, SPLIT, 2), 1), TERMINATE), [SPLIT], DONE),
        (deleting(commit(OLD, SPLIT, 2)), [SPLIT], UNDONE),
        (deleting(reserve(OLD, SPLIT, TERMINATE)), [SPLIT], UNDONE),
    ],
)
def test_the_record_tells_what_came_of_an_attempt(
    layout: SegmentLayout | None, planned: list[Reshape], outcome: Outcome
) -> None:
    assert outcome_of(planned, layout) is outcome


class Leads:
    """Confirms as it is told: the answers, the last of which stays. An error is raised."""

    term = 1

    def __init__(self) -> None:
        self.answers: list[bool | EngineError] = [True]

    async def confirm(self) -> bool:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, EngineError):
            raise answer
        return answer

    def not_owner(self, leader: object) -> NotOwnerError:
        return NotOwnerError("this broker does not lead")


class Bench:
    """The shape of a topic of two segments, in a store, and all that it reported."""

    def __init__(self, store: MemoryMetadataStore) -> None:
        self.clock = FakeClock()
        self.resources = ScalableTopicResources(store)
        self.host = FakeHost()
        self.leads = Leads()
        self.ended: list[tuple[str, Outcome]] = []
        self.unfinished = 0
        self.epochs: list[int] = []
        self.shape = TopicShape(
            TOPIC,
            leadership=self.leads,  # type: ignore[arg-type]
            resources=self.resources,
            host=self.host,
            clock=self.clock,
            changed=lambda layout: self.epochs.append(layout.epoch),
            unfinished=self._unfinished,
            ended=lambda topic, kind, outcome: self.ended.append((kind, outcome)),
        )

    def _unfinished(self, topic: object) -> None:
        self.unfinished += 1

    async def put(self, layout: SegmentLayout) -> None:
        record = await self.resources.load_topic(TOPIC)
        await self.resources.save_topic(TOPIC, layout, ABSENT if record is None else record.version)

    async def layout(self) -> SegmentLayout:
        record = await self.resources.load_topic(TOPIC)
        assert record is not None
        return record.layout

    async def reshaping(self) -> TopicReshaping:
        record = await self.resources.load_topic(TOPIC)
        assert record is not None
        return TopicReshaping(TOPIC, record, 1, self.resources, self.host, self.clock)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    store = MemoryMetadataStore(FakeClock())
    bench = Bench(store)
    await bench.put(OLD)
    yield bench
    await store.close()


@pytest.mark.parametrize("phase", ReshapePhase)
@pytest.mark.parametrize("target", ReshapePhase)
async def test_a_reshape_moves_as_its_table_says(bench: Bench, phase: ReshapePhase, target: ReshapePhase) -> None:
    await bench.put(reserve(OLD, SPLIT, phase))
    reshaping = await bench.reshaping()
    assert (reshaping.phase, reshaping.forward) == (phase, phase is TERMINATE)
    allowed = (phase, target) in [(CHILDREN, TERMINATE), (CHILDREN, UNDO)]
    assert (target in MOVES[phase]) == allowed
    if allowed:
        await reshaping.move_to(target)
    else:
        with pytest.raises(AssertionError, match=f"{phase} -> {target}"):
            await reshaping.move_to(target)
    change = (await bench.layout()).change
    assert change is not None
    assert change.phase == (target if allowed else phase)


@pytest.mark.parametrize(("phase", "epoch"), [(CHILDREN, 0), (UNDO, 0), (TERMINATE, 1)])
async def test_a_pending_reshape_is_settled_by_its_phase(bench: Bench, phase: ReshapePhase, epoch: int) -> None:
    await bench.put(reserve(OLD, SPLIT, phase))
    await bench.shape.reload()
    assert bench.shape.pending
    await bench.shape.settle()
    layout = await bench.layout()
    assert (layout.epoch, layout.change, bench.shape.pending) == (epoch, None, False)
    assert bench.ended == [("split", DONE if epoch else UNDONE)]
    methods = {call[0] for call in bench.host.calls}
    assert methods == ({"terminate_segment", "inherit"} if epoch else {"delete_segment"})


@pytest.mark.parametrize("phase", ["", "teleport"])
async def test_a_phase_of_a_newer_version_is_left_alone(bench: Bench, phase: str) -> None:
    await bench.put(reserve(OLD, SPLIT, phase))
    await bench.shape.reload()
    with pytest.raises(UnsupportedError, match="must be one of children, terminate, undo, got"):
        await bench.shape.settle()
    assert await bench.layout() == reserve(OLD, SPLIT, phase)
    assert not bench.host.calls


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        (partial(plan_split, segment_id=0), "split"),
        (partial(plan_merge, first_id=0, second_id=1), "merge"),
        (partial(plan_rebucket, segment_id=1, buckets=7), "rebucket"),
    ],
)
async def test_the_same_plan_again_finishes_what_is_pending(
    bench: Bench, plan: Callable[[SegmentLayout], Reshape], kind: str
) -> None:
    await bench.put(reserve(OLD, plan(OLD), TERMINATE))
    layout = await bench.shape.reshape(plan)
    assert (layout.epoch, bench.ended) == (1, [(kind, DONE)])


async def test_another_plan_comes_behind_what_is_pending(bench: Bench) -> None:
    await bench.put(reserve(OLD, SPLIT, TERMINATE))
    layout = await bench.shape.reshape(partial(plan_split, segment_id=1))
    assert (layout.epoch, bench.ended) == (2, [("split", DONE)] * 2)


async def test_a_plan_that_cannot_be_touches_nothing(bench: Bench) -> None:
    with pytest.raises(InvalidArgumentError):
        await bench.shape.reshape(partial(plan_split, segment_id=5))
    assert await bench.layout() == OLD
    assert not bench.ended
    assert not bench.host.calls


SPLIT_0 = partial(plan_split, segment_id=0)
FENCED, BROKEN = FencedError("a newer term"), StorageError("the disk")


@pytest.mark.parametrize(
    ("fails", "error", "leads", "raised", "ended", "epoch", "unfinished"),
    [
        # Before the point of no return: undone at once by a leader, left to the next by a broker that leads no more.
        ("create_segment", BROKEN, [True], StorageError, [("split", UNDONE)], 0, 0),
        ("create_segment", FENCED, [True, False], FencedError, [], 0, 1),
        ("create_segment", FENCED, [True, BROKEN], FencedError, [], 0, 1),
        # Behind it: finished later. A broker that leads no more must not say that nothing was done.
        ("terminate_segment", BROKEN, [True], StorageError, [], 0, 1),
        ("terminate_segment", BROKEN, [True, False], StorageError, [], 0, 1),
        ("terminate_segment", FENCED, [True], FencedError, [], 0, 1),
        ("terminate_segment", FENCED, [True, False], UnknownOutcomeError, [], 0, 1),
        ("inherit", FENCED, [True, False], UnknownOutcomeError, [], 0, 1),
        ("inherit", FENCED, [True, BROKEN], UnknownOutcomeError, [], 0, 1),
        # The leadership was lost right behind the intent: asked nothing of a host.
        ("", None, [False], NotOwnerError, [], 0, 1),
    ],
)
async def test_each_failure_has_its_answer(
    bench: Bench,
    fails: str,
    error: EngineError | None,
    leads: list[bool | EngineError],
    raised: type[EngineError],
    ended: list[tuple[str, Outcome]],
    epoch: int,
    unfinished: int,
) -> None:
    bench.leads.answers = leads
    if error is not None:
        bench.host.failures[fails] = error
    with pytest.raises(EngineError) as found:
        await bench.shape.reshape(SPLIT_0)
    assert type(found.value) is raised
    assert (bench.ended, bench.unfinished) == (ended, unfinished)
    assert (await bench.layout()).epoch == epoch
    assert bench.shape.pending == bool(unfinished)


@pytest.mark.parametrize("finished", [True, False])
async def test_a_change_that_the_next_leader_completed_is_done(bench: Bench, finished: bool) -> None:
    """The error of this broker tells nothing; the record does."""

    async def replaced() -> None:
        layout = await bench.layout()
        pending = layout.change
        assert pending is not None
        await bench.put(commit(layout, Reshape.of(pending), 2) if finished else replace(layout, change=None))
        bench.leads.answers = [False]
        raise FENCED

    bench.host.before["inherit"] = replaced
    if finished:
        assert (await bench.shape.reshape(SPLIT_0)).epoch == 1
    else:
        with pytest.raises(FencedError):
            await bench.shape.reshape(SPLIT_0)
    assert (bench.ended, bench.unfinished) == ([], 0)


@pytest.mark.parametrize(("races", "epoch"), [(1, 1), (2, 0)])
async def test_a_lost_race_for_the_record_is_run_once_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, races: int, epoch: int
) -> None:
    save, left = bench.resources.save_topic, races

    async def racing(*arguments: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise ConflictError("another writer was faster")
        return await save(*arguments)

    monkeypatch.setattr(bench.resources, "save_topic", racing)
    if epoch:
        assert (await bench.shape.reshape(SPLIT_0)).epoch == epoch
    else:
        with pytest.raises(ConflictError):
            await bench.shape.reshape(SPLIT_0)
    assert ((await bench.layout()).epoch, bench.unfinished) == (epoch, 0)


async def test_a_caller_that_gives_up_leaves_the_rest_to_be_finished(bench: Bench) -> None:
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    bench.host.before["create_segment"] = hang
    caller = asyncio.ensure_future(bench.shape.reshape(SPLIT_0))
    await asyncio.wait_for(begun.wait(), 20)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (bench.unfinished, bench.shape.pending) == (1, True)


async def test_an_older_record_changes_nothing(bench: Bench) -> None:
    old = await bench.resources.load_topic(TOPIC)
    assert old is not None
    await bench.put(commit(OLD, SPLIT, 2))
    await bench.shape.reload()
    bench.shape.apply(old)
    assert (bench.shape.current.layout.epoch, bench.epochs) == (1, [1])


@pytest.mark.parametrize(
    ("backlog", "segment_id", "pruned"), [(0, 0, True), (1, 0, False), (0, 2, False), (0, 77, False)]
)
async def test_a_sealed_segment_is_pruned_once_it_is_drained(
    bench: Bench, backlog: int, segment_id: int, pruned: bool
) -> None:
    await bench.resources.save_subscription(
        TOPIC, SubscriptionMetadata("sub", InitialPosition.EARLIEST, 1, None), ABSENT
    )
    await bench.put(commit(OLD, SPLIT, 2))
    await bench.shape.reload()
    bench.host.backlogs[0, "sub"] = backlog
    assert await bench.shape.prune(segment_id) is pruned
    assert (0 in (await bench.layout()).segments) is not pruned
    assert len(bench.host.deleted) == pruned
