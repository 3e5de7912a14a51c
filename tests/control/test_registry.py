"""`Controllers` alone: which controller a broker has after each event, and which term it leads with."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from engine.aio.tasks import Supervisor
from engine.control.base.config import ControlConfig
from engine.control.base.leadership import LeaderState
from engine.control.base.topic_records import LeaderRecord, ScalableTopicResources
from engine.control.shape.reshaping import ReshapePhase
from engine.control.shape.shape import Outcome
from engine.control.topic.registry import Controllers
from engine.errors import AlreadyClosedError, EngineError, NotFoundError, NotOwnerError, StorageError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import ABSENT, MetadataStore, Session
from engine.model.layout import SegmentLayout
from engine.model.reshape import plan_split, reserve
from engine.model.subscriptions import SubscriptionKind
from engine.testing.clock import LoopClock
from tests.kit.control_fakes import TOPIC, FakeHost, settle, virtual

KEY = keys.topic(TOPIC)
FOLLOWING, LEADING, CLOSED = LeaderState
IDLE_S = 10.0


class World:
    """A topic in a store, and the controllers of brokers "a" and "b"; nothing watches the store for them."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self.idle_s = idle_s
        self.clock = LoopClock(asyncio.get_running_loop())
        self.store = MemoryMetadataStore(self.clock)
        self.host = FakeHost(self.store)
        self.tasks = Supervisor("test")
        self.resources = ScalableTopicResources(self.store)
        self.handles: list[MemoryMetadataStore] = []
        self.a, self.b = self.controllers("a"), self.controllers("b")

    def controllers(self, name: str) -> Controllers:
        self.handles.append(handle := self.store.client())
        return self.controllers_on(handle, name)

    def controllers_on(self, store: MetadataStore, name: str) -> Controllers:
        return Controllers(
            ScalableTopicResources(store),
            self.host,
            clock=self.clock,
            config=ControlConfig(controller_idle=self.idle_s),
            broker_url=f"engine://{name}",
            tasks=self.tasks,
        )

    async def create(self, layout: SegmentLayout | None = None) -> None:
        await self.resources.save_topic(TOPIC, layout or SegmentLayout.create(2, now_ms=1), ABSENT)

    async def resign(self) -> None:
        """The leader's record goes, as when a session expires."""
        await self.store.delete(keys.controller(TOPIC))

    async def leader(self) -> LeaderRecord | None:
        return await self.resources.load_leader(TOPIC)

    async def close(self) -> None:
        await self.tasks.close()
        for controllers in (self.a, self.b):
            await controllers.close()
        await self.store.close()


def stands(controllers: Controllers) -> LeaderState | None:
    """The state of the topic's controller here, if there is one."""
    found = controllers.get(TOPIC)
    return None if found is None else found.leadership.state


async def kept(*steps: str) -> tuple[LeaderState | None, bool]:
    """What "a" has of the topic after these steps, and whether the last one raised."""
    world, raised = World(), False
    acts = {
        "create": lambda: world.create(),
        "delete": lambda: world.store.delete(KEY),
        "lead": lambda: world.a.lead(TOPIC),
        "b leads": lambda: world.b.lead(TOPIC),
        "b releases": lambda: world.b.release(TOPIC),
        "release": lambda: world.a.release(TOPIC),
        "close": lambda: world.a.close(),
    }
    for step in steps:
        raised = False
        try:
            await acts[step]()
        except (NotFoundError, NotOwnerError, AlreadyClosedError):
            raised = True
    state = stands(world.a)
    await world.close()
    return state, raised


@pytest.mark.parametrize(
    ("steps", "state", "raised"),
    [
        (["lead"], None, True),
        (["create", "lead"], LEADING, False),
        (["create", "lead", "lead"], LEADING, False),
        (["create", "b leads", "lead"], FOLLOWING, True),
        (["create", "b leads", "lead", "b releases", "lead"], LEADING, False),
        (["create", "lead", "release"], None, False),
        (["create", "lead", "release", "release"], None, False),
        (["create", "lead", "release", "b leads", "lead"], FOLLOWING, True),
        (["create", "b leads", "lead", "release"], None, False),
        (["create", "b leads", "lead", "delete", "lead"], None, True),
        (["create", "lead", "close"], None, False),
        (["create", "lead", "close", "close"], None, False),
        (["create", "close", "lead"], None, True),
    ],
)
@virtual
async def test_a_broker_has_the_controllers_that_it_needs(
    steps: list[str], state: LeaderState | None, raised: bool
) -> None:
    assert await kept(*steps) == (state, raised)


@pytest.mark.parametrize(
    ("leads", "seen", "in_store", "state", "elected"),
    [
        # Where this broker leads, only the store's own answer counts: events may be older than its term.
        (True, "nobody", "own", LEADING, False),
        (True, "own", "own", LEADING, False),
        (True, "older", "own", LEADING, False),
        (True, "newer", "own", LEADING, False),
        (True, "nobody", "nobody", LEADING, True),
        (True, "newer", "other", FOLLOWING, False),
        # Where it follows, it stands for election as soon as there is no leader.
        (False, "nobody", "nobody", LEADING, True),
        (False, "nobody", "other", FOLLOWING, False),
        (False, "newer", "other", FOLLOWING, False),
    ],
)
@virtual
async def test_each_leader_seen_has_its_effect(
    leads: bool, seen: str, in_store: str, state: LeaderState, elected: bool
) -> None:
    world = World()
    await world.create()
    if leads:
        await world.a.lead(TOPIC)
    else:
        await world.b.lead(TOPIC)
        with pytest.raises(NotOwnerError, match="engine://b does"):
            await world.a.lead(TOPIC)
    before = await world.leader()
    assert before is not None
    if in_store != "own":
        await world.resign()
    if in_store == "other":
        await world.resources.elect(TOPIC, "engine://c", await world.handles[1].session())
    terms = {"nobody": None, "own": before.term, "older": before.term - 1, "newer": before.term + 1_000}
    term = terms[seen]
    world.a.leader_seen(KEY, None if term is None else LeaderRecord("engine://c", term, None))
    await settle()
    found, now = world.a.get(TOPIC), await world.leader()
    assert found is not None
    assert found.leadership.state is state
    if state is LEADING:
        assert now is not None
        assert (now.url, now.term) == ("engine://a", found.leadership.term)
        assert (now.term > before.term) == elected
    await world.close()


@virtual
async def test_what_is_seen_of_other_topics_makes_no_controller() -> None:
    world = World()
    await world.create()
    world.a.leader_seen(KEY, None)
    record = await world.resources.load_topic(TOPIC)
    assert record is not None
    world.a.topic_seen(KEY, record)
    await settle()
    assert (stands(world.a), list(world.a.keys()), len(world.tasks)) == (None, [], 0)
    await world.close()


@virtual
async def test_a_store_that_does_not_answer_is_asked_until_it_does() -> None:
    world = World(idle_s=100_000.0)
    await world.create()
    controller, answers = await world.a.lead(TOPIC), [StorageError("not today")] * 2
    confirm = controller.leadership.confirm

    async def unsure() -> bool:
        if answers:
            raise answers.pop()
        return await confirm()

    controller.leadership.confirm = unsure  # type: ignore[method-assign]
    await world.resign()
    world.a.leader_seen(KEY, None)
    await settle()
    assert len(answers) == 1
    await asyncio.sleep(60)
    assert (answers, stands(world.a)) == ([], LEADING)
    await world.close()


@virtual
async def test_a_successor_waits_for_the_one_that_resigns() -> None:
    world = World()
    await world.create()
    first = await world.a.lead(TOPIC)
    go_on, begun, close = asyncio.Event(), asyncio.Event(), first.close

    async def slow(error: EngineError) -> None:
        begun.set()
        await go_on.wait()
        await close(error)

    first.close = slow  # type: ignore[method-assign]
    leaving = asyncio.ensure_future(world.a.release(TOPIC))
    await begun.wait()
    coming = asyncio.ensure_future(world.a.lead(TOPIC))
    await settle()
    assert not coming.done()
    go_on.set()
    second = await coming
    await leaving
    assert second is not first
    assert (first.leadership.state, second.leadership.state) == (CLOSED, LEADING)
    assert second.leadership.term > first.leadership.term
    await world.close()


@pytest.mark.parametrize(("uses", "left"), [(0, True), (1, False)])
@virtual
async def test_a_controller_that_is_not_used_for_two_rounds_is_released(uses: int, left: bool) -> None:
    world = World()
    await world.create()
    await world.a.lead(TOPIC)
    await asyncio.sleep(1.5 * IDLE_S)  # the first round clears the mark
    for _ in range(uses):
        await world.a.lead(TOPIC)
    await asyncio.sleep(IDLE_S)
    assert (world.a.get(TOPIC) is None) == left
    assert (await world.leader() is None) == left
    await asyncio.sleep(2 * IDLE_S)
    assert (world.a.get(TOPIC), len(world.tasks)) == (None, 0)
    await world.close()


@pytest.mark.parametrize("phase", ReshapePhase)
@pytest.mark.parametrize("seen", [False, True])
@virtual
async def test_a_pending_change_is_finished_by_the_leader(phase: ReshapePhase, seen: bool) -> None:
    """It finds it when it comes to lead, or sees it written later by a leader before it."""
    world, layout = World(), SegmentLayout.create(2, now_ms=1)
    pending = reserve(layout, plan_split(layout, 0), phase)
    if seen:
        await world.create(layout)
        await world.a.lead(TOPIC)
        record = await world.resources.load_topic(TOPIC)
        assert record is not None
        world.a.topic_seen(KEY, await world.resources.save_topic(TOPIC, pending, record.version))
    else:
        await world.create(pending)
        await world.a.lead(TOPIC)
    await asyncio.sleep(1)
    outcome = Outcome.DONE if phase is ReshapePhase.TERMINATE else Outcome.UNDONE
    assert world.a.reshapes == {(str(TOPIC), "split", outcome.value): 1}
    assert world.a.statistics().reshapes == dict(world.a.reshapes)
    await world.close()


@virtual
async def test_an_expired_session_is_replaced_and_all_leaderships_begin_anew() -> None:
    world, sessions = World(), list[Session]()
    new_session = world.handles[0].session

    async def noted(timeout: float = 30.0) -> Session:
        sessions.append(await new_session(timeout))
        return sessions[-1]

    world.handles[0].session = noted  # type: ignore[method-assign,assignment]
    await world.create()
    first = await world.a.lead(TOPIC)
    term = first.leadership.term
    await sessions[0].close()
    first.lost()
    again = await world.a.lead(TOPIC)
    assert again.leadership.state is LEADING
    assert again.leadership.term > term
    assert len(sessions) == 2
    await world.close()


@virtual
async def test_a_topic_that_is_gone_has_nothing_to_finish() -> None:
    world = World()
    await world.a.finish_change(TOPIC)
    assert stands(world.a) is None
    await world.close()


@virtual
async def test_a_change_of_another_leaders_topic_is_left_to_it() -> None:
    world = World()
    await world.create()
    await world.b.lead(TOPIC)
    with pytest.raises(NotOwnerError):
        await world.a.finish_change(TOPIC)
    assert (stands(world.a), stands(world.b)) == (FOLLOWING, LEADING)
    await world.close()


@virtual
async def test_closing_lets_consumers_know_and_others_lead() -> None:
    world = World()
    await world.create()
    closed: list[EngineError] = []

    class Channel:
        role = ""

        def denial(self, reason: str) -> Any:
            raise AssertionError("it has no role")

        def push_assignment(self, assignment: Any) -> None:
            raise AssertionError("nothing changes")

        def close(self, error: EngineError) -> None:
            closed.append(error)

    controller = await world.a.lead(TOPIC)
    await controller.register_consumer("group", SubscriptionKind.CHECKPOINT, "one", "1", Channel())
    await world.a.close()
    assert [type(error) for error in closed] == [AlreadyClosedError]
    await world.b.lead(TOPIC)
    assert stands(world.b) is LEADING
    with suppress(AlreadyClosedError):
        await world.a.lead(TOPIC)
    assert stands(world.a) is None
    await world.close()
