"""An attachment to one segment: its states as a table, and attempts that end after it was given up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from engine._native.consume.entry_queue import EntryQueue
from engine.aio.files import ReadFile
from engine.client.base.options import ClientOptions, ConsumerOptions
from engine.client.consume.attachment import Attachment, AttachmentState
from engine.client.net.pool import Pool
from engine.client.ranges.range_attachment import RangeAttachment
from engine.clock import SystemClock
from engine.errors import ConnectError, CorruptionError, NotFoundError
from engine.model.subscriptions import DeliveryMode
from engine.wire.commands import SHORT_CIRCUIT_READS, Command, Message, ReachedEnd
from tests.client.scripted_pool import ScriptedPool
from tests.kit.fake_broker import URL
from tests.kit.fake_entries import SALT, block

DELIVERING, DRAINING, CLOSED = AttachmentState.DELIVERING, AttachmentState.DRAINING, AttachmentState.CLOSED
NOTHING = memoryview(b"")


class Topic:
    """The session of a topic whose segments all have one owner. `attempts`: how many were made at it."""

    layout = None

    def __init__(self, error: Exception | None = None) -> None:
        self.attempts = 0
        self.ended = asyncio.Event()  # an attempt
        self._error = error

    async def at(self, url_of: object, work: Callable[[str], Awaitable[None]]) -> None:
        self.attempts += 1
        if self._error is not None:
            raise self._error
        await work(URL)
        self.ended.set()

    def refused(self, count: int) -> None: ...

    async def wait_changed(self, seen: object, pause: float) -> None:
        await asyncio.Event().wait()


class Owner:
    """A consumer that keeps what it is told."""

    def __init__(self, session: Topic, open_file: Callable[[str], ReadFile] = ReadFile) -> None:
        self.session = session
        options = ClientOptions(None, SystemClock(), random.Random(1), open_file=open_file)  # type: ignore[arg-type]
        self.pool = Pool((URL,), options)
        self.scripted = ScriptedPool()
        self.pool.get = self.scripted.get  # type: ignore[assignment]
        self.options = ConsumerOptions("c", "i", "s")
        self.subscription_ms: int | None = None
        self.events: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.events.append(name)


def attachment_in(state: AttachmentState, session: Topic | None = None) -> tuple[Attachment, Owner]:
    owner = Owner(session or Topic())
    attachment = Attachment(owner, 1, "segment-1", DeliveryMode.EXCLUSIVE)  # type: ignore[arg-type]
    if state is DRAINING:
        attachment.drain(queue())
    elif state is CLOSED:
        attachment.give_up()
    return attachment, owner


def queue() -> EntryQueue:
    return EntryQueue("t", lambda *_: None, None)


ALLOWED = {
    (DELIVERING, DRAINING),  # its segment left the consumer's share
    (DRAINING, DELIVERING),  # and came back
    (DELIVERING, CLOSED),
    (DRAINING, CLOSED),
    (CLOSED, CLOSED),  # the end may be asked for twice
}


@pytest.mark.parametrize("before", AttachmentState)
@pytest.mark.parametrize("after", AttachmentState)
async def test_it_moves_by_the_table(before: AttachmentState, after: AttachmentState):
    attachment, _ = attachment_in(before)
    if (before, after) in ALLOWED:
        attachment.move_to(after)
        assert attachment.state is after
    else:
        with pytest.raises(AssertionError, match="an attachment cannot move"):
            attachment.move_to(after)
        assert attachment.state is before


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize(
    ("state", "passed_on"),
    [(DELIVERING, ["blocks_came", "end_reached"]), (DRAINING, ["blocks_came", "end_reached"]), (CLOSED, [])],
)
async def test_frames_are_ignored_once_it_is_closed_and_messages_while_it_is_broken(
    state: AttachmentState, passed_on: list[str], broken: bool
):
    attachment, owner = attachment_in(state)
    attachment.broken = broken
    attachment.frame_received(Message(consumer_id=1, segment_id=1, salt=SALT, messages=1), NOTHING)
    attachment.frame_received(ReachedEnd(consumer_id=1, end=5), NOTHING)
    assert owner.events == [event for event in passed_on if not broken or event == "end_reached"]


@pytest.mark.parametrize(("state", "attempts"), [(DELIVERING, 1), (DRAINING, 0), (CLOSED, 0)])
async def test_only_one_that_delivers_attaches(state: AttachmentState, attempts: int):
    session = Topic(CorruptionError("its disk"))
    attachment, _ = attachment_in(state, session)
    attachment.begin()
    for _ in range(20):
        await asyncio.sleep(0)
    assert session.attempts == attempts


@pytest.mark.parametrize(
    ("state", "events", "attempts"),
    [(DELIVERING, ["detached"], 1), (DRAINING, ["detached"], 0), (CLOSED, [], 0)],
)
async def test_a_loss_drops_what_is_queued_and_only_one_that_delivers_attaches_again(
    state: AttachmentState, events: list[str], attempts: int
):
    session = Topic(CorruptionError("its disk"))
    attachment, owner = attachment_in(state, session)
    attachment.link_ended(ConnectError("lost"))
    assert owner.events == events
    for _ in range(20):
        await asyncio.sleep(0)
    assert session.attempts == attempts


async def test_what_was_parked_is_there_while_it_drains():
    attachment, _ = attachment_in(DELIVERING)
    assert attachment.parked is None
    parked = queue()
    attachment.drain(parked)
    assert attachment.draining
    assert attachment.parked is parked
    attachment.deliver_again()
    assert not attachment.draining
    assert attachment.parked is None


class Opened:
    """Opens files; `files` are those that are open."""

    def __init__(self) -> None:
        self.count = 0
        self.released = 0

    def __call__(self, path: str) -> ReadFile:
        self.count += 1
        opened = self

        class Counted(ReadFile):
            def __del__(self) -> None:
                super().__del__()
                opened.released += 1

        return Counted(path)


@pytest.mark.parametrize("answer", ["files", "no files", "an error"])
async def test_a_range_that_is_given_up_while_it_asks_for_files_reads_none_and_does_not_subscribe(
    answer: str, tmp_path: Path
):
    """Nothing would close what it opens then: the file, or the consumer for which the broker keeps messages."""
    opened = Opened()
    owner = Owner(Topic(), opened)
    connection = owner.scripted.connection
    connection.features = frozenset([SHORT_CIRCUIT_READS])
    owner.scripted.stream.is_near = True  # type: ignore[attr-defined]
    attachment = RangeAttachment(owner, 1, "segment-1", 0, 1)  # type: ignore[arg-type]
    attachment.begin()
    await until(lambda: bool(owner.scripted.stream.sent))
    [(command, asked)] = owner.scripted.stream.sent
    assert command is Command.SEGMENT_FILES
    attachment.give_up()
    log = tmp_path / "log"
    log.write_bytes(data := block(1, 0, [b"v"]))
    say(owner.scripted, answer, asked["request_id"], [str(log), data[:16], SALT, 0, len(data), 1])
    await until(lambda: owner.session.ended.is_set() or len(owner.scripted.stream.sent) > 1)
    assert [command for command, _ in owner.scripted.stream.sent] == [Command.SEGMENT_FILES]
    assert attachment.local_files is None
    assert owner.events == []
    assert opened.count == (1 if answer == "files" else 0)
    await until(lambda: opened.released == opened.count)


def say(broker: ScriptedPool, answer: str, request_id: int, stretch: list[Any]) -> None:
    if answer == "an error":
        gone = NotFoundError("deleted")
        broker.says(Command.ERROR, {"request_id": request_id, "code": gone.code, "message": str(gone)})
    else:
        files = {"files": [stretch], "upto": 1} if answer == "files" else {"files": [], "upto": 0}
        broker.says(Command.SUCCESS, {"request_id": request_id, "result": {"hidden": [], **files}})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)
