"""`ScalableTopicController` alone: what each of its states answers, and what a leader takes over and gives up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from engine.aio.tasks import Supervisor
from engine.control.base.config import ControlConfig
from engine.control.base.leadership import MOVES, Leadership, LeaderState
from engine.control.base.topic_records import ScalableTopicResources
from engine.control.shape.shape import Outcome
from engine.control.shape.topic_scaling import AutoScaleCounts
from engine.control.topic.controller import ScalableTopicController
from engine.errors import (
    AlreadyExistsError,
    EngineError,
    InvalidArgumentError,
    NotFoundError,
    NotOwnerError,
    StorageError,
    SubscriptionKindError,
)
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import ABSENT, Session
from engine.model.layout import SegmentLayout
from engine.model.reshape import plan_split
from engine.model.subscriptions import InitialPosition, SubscriptionKind
from engine.testing.clock import LoopClock
from tests.kit.control_fakes import TOPIC, Channel, FakeHost, ids, virtual

FOLLOWING, LEADING, CLOSED = LeaderState
STREAM, CHECKPOINT, EARLIEST = SubscriptionKind.STREAM, SubscriptionKind.CHECKPOINT, InitialPosition.EARLIEST


class World:
    """A topic of two segments in a store, and controllers of it."""

    def __init__(self) -> None:
        self.clock = LoopClock(asyncio.get_running_loop())
        self.store = MemoryMetadataStore(self.clock)
        self.host = FakeHost(self.store)
        self.tasks = Supervisor("test")
        self.resources = ScalableTopicResources(self.store)
        self.ended: Counter[Outcome] = Counter()

    def controller(self, name: str = "a") -> ScalableTopicController:
        session: list[Session] = []

        async def one() -> Session:
            if not session:
                session.append(await self.store.session())
            return session[0]

        return ScalableTopicController(
            TOPIC,
            resources=self.resources,
            host=self.host,
            clock=self.clock,
            config=ControlConfig(),
            broker_url=f"engine://{name}",
            session=one,
            unfinished=lambda topic: None,
            ended=lambda topic, kind, outcome: self.ended.update([outcome]),
            scaled=AutoScaleCounts(),
            tasks=self.tasks,
        )

    async def create(self) -> None:
        await self.resources.save_topic(TOPIC, SegmentLayout.create(2, now_ms=1), ABSENT)

    async def in_state(self, state: str) -> ScalableTopicController:
        """A controller that has come so far."""
        controller = self.controller()
        if state == "new":
            return controller
        await controller.lead()
        if state == "lost":
            controller.lost()
        elif state == "closed":
            await controller.close(StorageError("the end"))
        elif state == "released":
            await controller.release()
        elif state == "deleted":
            await controller.delete()
        return controller

    async def close(self) -> None:
        await self.tasks.close()
        await self.store.close()


@pytest.mark.parametrize("state", LeaderState)
@pytest.mark.parametrize("target", LeaderState)
async def test_leadership_moves_as_its_table_says(state: LeaderState, target: LeaderState) -> None:
    leadership = Leadership(TOPIC, "engine://a", None, None)  # type: ignore[arg-type]
    for step in {FOLLOWING: [], LEADING: [LEADING], CLOSED: [CLOSED]}[state]:
        leadership.move_to(step)
    if target is state or target in MOVES[state]:
        leadership.move_to(target)
        assert leadership.state is target
    else:
        assert state is CLOSED  # which is for ever
        with pytest.raises(AssertionError, match="leadership of"):
            leadership.move_to(target)


Call = Callable[[ScalableTopicController], Awaitable[Any]]


def register(controller: ScalableTopicController, name: str = "one", channel: Channel | None = None) -> Awaitable[Any]:
    return controller.register_consumer("sub", STREAM, name, name, channel or Channel())


CALLS: dict[str, Call] = {
    "reshape": lambda c: c.reshape(partial(plan_split, segment_id=0)),
    "policy": lambda c: c.set_auto_scale_policy(None),
    "prune": lambda c: c.prune(7),
    "create": lambda c: c.create_subscription("sub", EARLIEST, None, exist_ok=True),
    "delete subscription": lambda c: c.delete_subscription("sub"),
    "seek": lambda c: c.seek_subscription("sub", EARLIEST),
    "skip": lambda c: c.skip_messages("sub", 0, 0, 0),
    "register": register,
    "unregister": lambda c: c.unregister_consumer("sub", "one", "one"),
    "resume": lambda c: c.resume(),
    "delete": lambda c: c.delete(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("state", ["new", "lost", "closed", "released"])
@virtual
async def test_a_controller_that_does_not_lead_refuses(state: str, call: str) -> None:
    world = World()
    await world.create()
    controller = await world.in_state(state)
    world.host.calls.clear()
    version = world.store.version
    with pytest.raises(NotOwnerError):
        await CALLS[call](controller)
    assert (world.host.calls, world.store.version) == ([], version)
    assert controller.consumers("sub") == {}
    await world.close()


@pytest.mark.parametrize("call", CALLS)
@virtual
async def test_a_leader_of_a_topic_that_is_gone_says_so(call: str) -> None:
    world = World()
    await world.create()
    controller = await world.in_state("leading")
    await world.store.delete_range("/", "0")
    await world.resources.elect(TOPIC, "engine://a", await world.store.session())
    await controller.resume()  # looks
    assert not controller.serving
    if call == "resume":
        await controller.resume()  # there is nothing to finish
    else:
        with pytest.raises(NotFoundError):
            await CALLS[call](controller)
    await world.close()


@pytest.mark.parametrize(
    ("state", "leads"), [("new", True), ("leading", True), ("lost", True), ("closed", False), ("released", False)]
)
@virtual
async def test_leading_begins_anew_until_it_is_closed(state: str, leads: bool) -> None:
    world = World()
    await world.create()
    controller = await world.in_state(state)
    await controller.lead()
    assert controller.leadership.leading == leads
    assert controller.idle
    await world.close()


@virtual
async def test_one_that_cannot_take_over_resigns() -> None:
    world = World()
    await world.create()
    before = world.controller()
    await before.lead()
    await register(before)
    await before.release()
    controller = world.controller("b")
    world.host.failures["create_subscription"] = StorageError("no")
    await world.store.put(keys.consumer(TOPIC, "sub", "one"), b"damage")
    with pytest.raises(EngineError):
        await controller.lead()
    assert controller.leadership.state is FOLLOWING
    assert await world.resources.load_leader(TOPIC) is None
    await world.close()


@virtual
async def test_the_next_leader_keeps_the_shares_of_registered_consumers() -> None:
    world = World()
    await world.create()
    first, second = world.controller("a"), world.controller("b")
    await first.lead()
    channel = Channel()
    share = ids(await register(first, channel=channel))
    assert share == [0, 1]
    with pytest.raises(NotOwnerError, match="engine://a does"):
        await second.lead()
    await first.release()
    assert [type(error) for error in channel.closed] == [NotOwnerError]
    await second.lead()
    assert second.consumers("sub") == {"one": (False, (0, 1))}
    assert ids(await register(second)) == share
    assert second.consumers("sub") == {"one": (True, (0, 1))}
    assert second.leadership.term > first.leadership.term
    await world.close()


@pytest.mark.parametrize(
    ("connected", "kind", "refused"),
    [(True, STREAM, False), (True, CHECKPOINT, True), (False, STREAM, False), (False, CHECKPOINT, True)],
)
@virtual
async def test_consumers_of_one_kind_hold_a_subscription(
    connected: bool, kind: SubscriptionKind, refused: bool
) -> None:
    """Also while one of them is away: its share waits for it."""
    world, channel = World(), Channel()
    await world.create()
    controller = await world.in_state("leading")
    await register(controller, channel=channel)
    if not connected:
        controller.disconnect_consumer("sub", "one", channel)
    joining = controller.register_consumer("sub", kind, "two", "two", Channel())
    if refused:
        with pytest.raises(SubscriptionKindError, match="stream consumers hold 'sub'"):
            await joining
    else:
        assert len(ids(await joining)) == 1
    await world.close()


@virtual
async def test_the_kind_changes_once_all_have_left() -> None:
    world = World()
    await world.create()
    controller = await world.in_state("leading")
    await register(controller)
    assert await controller.unregister_consumer("sub", "one", "another instance") is False
    assert await controller.unregister_consumer("sub", "one", "one") is True
    assert controller.idle
    await controller.register_consumer("sub", CHECKPOINT, "two", "two", Channel())
    assert list(controller.consumers("sub")) == ["two"]
    assert not controller.idle
    await world.close()


@virtual
async def test_a_subscription_deleted_while_it_was_read_is_read_again() -> None:
    world = World()
    await world.create()
    controller = await world.in_state("leading")
    facts = await CALLS["create"](controller)

    async def find() -> Any:
        await controller.delete_subscription("sub")
        return facts

    with pytest.raises(NotOwnerError):
        await controller.register_consumer("sub", STREAM, "one", "one", Channel(), find)
    assert controller.consumers("sub") == {}
    await world.close()


@virtual
async def test_deleting_tells_consumers_and_leaves_nothing() -> None:
    world, channel = World(), Channel()
    await world.create()
    controller = await world.in_state("leading")
    await register(controller, channel=channel)
    await controller.delete()
    assert [type(error) for error in channel.closed] == [NotFoundError]
    assert await world.store.list_keys("/", "0") == [keys.controller(TOPIC)]
    assert not controller.serving
    await world.close()


@virtual
async def test_changes_run_one_at_a_time() -> None:
    world = World()
    await world.create()
    controller = await world.in_state("leading")
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await go_on.wait()

    world.host.before["create_segment"] = slow
    first = asyncio.ensure_future(CALLS["reshape"](controller))
    await begun.wait()
    second = asyncio.ensure_future(controller.reshape(partial(plan_split, segment_id=1)))
    subscribing = asyncio.ensure_future(CALLS["create"](controller))
    await asyncio.sleep(1)
    assert not second.done()
    assert not subscribing.done()
    assert not controller.idle
    assert ids(await register(controller)) == [0, 1]  # consumers do not wait
    go_on.set()
    assert ((await first).epoch, (await second).epoch) == (1, 2)
    await subscribing
    assert world.ended == {Outcome.DONE: 2}
    await world.close()


@virtual
async def test_what_callers_ask_for_is_checked() -> None:
    world = World()
    await world.create()
    controller = await world.in_state("leading")
    await controller.create_subscription("sub", EARLIEST, None, exist_ok=False)
    for wrong, error in (
        (controller.create_subscription("sub", EARLIEST, None, exist_ok=False), AlreadyExistsError),
        (controller.delete_subscription("other"), NotFoundError),
        (controller.prune(0), InvalidArgumentError),
        (controller.reshape(partial(plan_split, segment_id=7)), InvalidArgumentError),
    ):
        with pytest.raises(error):
            await wrong
    assert (await controller.prune(7), world.ended) == (False, {})
    await world.close()
