"""Each race of a session over a client's connection, with the broker's frames in the order that the test writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from engine.client.net.link import CONSUMER, LOOKUP, PRODUCER, REGISTRATION, TOPIC_LIST, Link, LinkKind, LinkState
from engine.errors import ConnectError, EngineError, FencedError, NotFoundError, NotOwnerError, TimeoutError
from engine.wire.commands import Command, Header, Request
from tests.client.scripted_pool import ScriptedPool

SUBSCRIBED = {"position": 0, "first": 0}
KINDS = [PRODUCER, CONSUMER, REGISTRATION, LOOKUP, TOPIC_LIST]


def asking(kind: LinkKind, ident: int) -> Request[Any]:
    """A request that opens such a session, whatever it says."""
    required = [field.name for field in msgspec.structs.fields(kind.opens) if field.required]
    return kind.opens(**{**dict.fromkeys(required, "?"), kind.id_field: ident})


class Session:
    """Keeps what its links tell it."""

    def __init__(self) -> None:
        self.frames: list[Command] = []
        self.ends: list[EngineError] = []
        self.resumed = 0
        self.at_end: Callable[[], object] = lambda: None

    def frame_received(self, header: Header, payload: memoryview) -> None:
        self.frames.append(header.command)

    def resume_writing(self) -> None:
        self.resumed += 1

    def link_ended(self, error: EngineError) -> None:
        self.ends.append(error)
        self.at_end()


class Bench:
    """A link that is being opened, and what the broker says to it."""

    def __init__(self, kind: LinkKind = CONSUMER) -> None:
        self.pool = ScriptedPool()
        self.session = Session()
        self.kind = kind

    def start(self, timeout: float | None = 60.0) -> asyncio.Task[Any]:
        self.link = Link(self.pool, self.kind, self.session)  # type: ignore[arg-type]
        return asyncio.ensure_future(self.link.open(None, lambda ident: asking(self.kind, ident), timeout))

    async def asked(self, timeout: float | None = 60.0) -> asyncio.Task[Any]:
        """The request has gone out; the answer is the test's."""
        opening = self.start(timeout)
        opens = self.kind.opens.command
        while self.sent[-1:] == [] or self.sent[-1][0] is not opens:  # noqa: ASYNC110 - steps of the loop
            await asyncio.sleep(0)
        return opening

    @property
    def sent(self) -> list[tuple[Command, dict[str, Any]]]:
        return self.pool.stream.sent

    @property
    def closes(self) -> list[int]:
        """The ids of the sessions that the broker was told to end."""
        closes, field = self.kind.closes, self.kind.id_field
        return [header[field] for command, header in self.sent if closes is not None and command is closes.command]

    def answer(self) -> None:
        request_id = self.sent[-1][1]["request_id"]
        header = {"request_id": request_id, "consumer_id": self.link.ident, **SUBSCRIBED}
        self.pool.says(Command.SUBSCRIBE_SUCCESS, header)

    def refuse(self, error: EngineError) -> None:
        header = {"request_id": self.sent[-1][1]["request_id"], "code": error.code, "message": str(error)}
        self.pool.says(Command.ERROR, header)

    def end(self, error: EngineError | None = None) -> None:
        """The broker ends the session on its own account."""
        header: dict[str, Any] = {"consumer_id": self.link.ident}
        if error is not None:
            header |= {"code": error.code, "message": str(error)}
        self.pool.says(Command.CLOSE_CONSUMER, header)

    def cut(self) -> None:
        self.pool.connection.connection_lost(None)


async def opened() -> Bench:
    bench = Bench()
    opening = await bench.asked()
    bench.answer()
    assert await opening is not None
    return bench


async def test_a_session_gets_its_frames_from_the_request_on_and_until_its_end():
    bench = Bench()
    opening = await bench.asked()
    reached = {"consumer_id": bench.link.ident, "end": 0}
    bench.pool.says(Command.REACHED_END, reached)  # ahead of the answer
    bench.answer()
    assert (await opening).position == 0
    assert bench.session.frames == [Command.REACHED_END]
    bench.link.close()
    bench.pool.says(Command.REACHED_END, reached)
    assert bench.session.frames == [Command.REACHED_END]
    assert bench.link.state is LinkState.CLOSED


async def test_a_refused_session_is_forgotten_and_not_closed():
    """The broker keeps nothing of what it refuses; a close would be answered with one more error."""
    bench = Bench()
    opening = await bench.asked()
    bench.refuse(NotFoundError("no such segment"))
    with pytest.raises(NotFoundError):
        await opening
    assert not bench.closes
    assert not bench.pool.connection.attached


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.opens.command.name)
async def test_a_cancelled_attempt_ends_what_the_broker_may_have_opened(kind: LinkKind):
    bench = Bench(kind)
    opening = await bench.asked()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert bench.closes == ([] if kind.closes is None else [bench.link.ident])
    assert not bench.pool.connection.attached


async def test_an_attempt_that_timed_out_ends_what_the_broker_may_have_opened():
    bench = Bench()
    opening = bench.start(timeout=0.001)
    with pytest.raises(TimeoutError):
        await opening
    assert bench.closes == [bench.link.ident]
    assert not bench.pool.connection.attached


async def test_what_is_closed_while_it_connects_sends_nothing():
    bench = Bench()
    bench.pool.door.clear()
    opening = bench.start()
    await asyncio.sleep(0)
    bench.link.close()
    bench.pool.door.set()
    assert await opening is None
    assert not bench.sent


async def test_what_is_closed_before_the_answer_is_closed_at_the_broker_once():
    bench = Bench()
    opening = await bench.asked()
    request = bench.sent[-1][1]["request_id"]
    bench.link.close()
    assert bench.closes == [bench.link.ident]
    header = {"request_id": request, "consumer_id": bench.link.ident, **SUBSCRIBED}
    bench.pool.says(Command.SUBSCRIBE_SUCCESS, header)
    assert await opening is None
    assert bench.closes == [bench.link.ident]
    assert not bench.session.frames


async def test_what_is_closed_right_behind_the_answer_is_closed_at_the_broker_once():
    bench = Bench()
    opening = await bench.asked()
    bench.answer()
    bench.link.close()  # before open() resumes
    assert await opening is None
    assert bench.closes == [bench.link.ident]
    assert bench.link.state is LinkState.CLOSED


async def test_the_error_that_answers_a_closed_attempt_is_none_of_its_own():
    """As of a broker that ends the request because the session was closed: it must not fail what goes on elsewhere."""
    bench = Bench()
    opening = await bench.asked()
    request = bench.sent[-1][1]["request_id"]
    bench.link.close()
    header = {"request_id": request, "code": FencedError.code, "message": "closed"}
    bench.pool.says(Command.ERROR, header)
    assert await opening is None


async def test_a_connection_lost_before_the_answer_is_the_attempts_outcome_alone():
    bench = Bench()
    opening = await bench.asked()
    bench.cut()
    with pytest.raises(ConnectError):
        await opening
    assert not bench.session.ends
    assert not bench.closes


async def test_a_connection_lost_right_behind_the_answer_is_the_attempts_outcome_alone():
    """Else the session would think itself attached to a connection that never tells it anything again."""
    bench = Bench()
    opening = await bench.asked()
    bench.answer()
    bench.cut()  # before open() resumes
    with pytest.raises(ConnectError):
        await opening
    assert not bench.session.ends
    assert bench.link.state is LinkState.ENDED


async def test_what_the_broker_ends_right_behind_the_answer_is_told_and_has_not_begun():
    bench = Bench()
    opening = await bench.asked()
    bench.answer()
    bench.end(FencedError("another producer"))  # before open() resumes
    with pytest.raises(NotOwnerError, match="as it began"):
        await opening
    assert [type(error) for error in bench.session.ends] == [FencedError]
    assert not bench.closes
    assert not bench.pool.connection.attached


async def test_an_id_that_ended_on_one_connection_means_nothing_on_the_next():
    """Ids repeat from connection to connection."""
    bench = await opened()
    before = bench.link.ident
    bench.end()
    bench.pool.reconnect()
    opening = await bench.asked()
    assert bench.link.ident == before
    bench.answer()
    assert await opening is not None
    assert bench.link.state is LinkState.OPEN


@pytest.mark.parametrize("ended", [False, True])
async def test_the_end_of_an_open_session_is_told_once(ended: bool):
    bench = await opened()
    if ended:
        bench.end(NotOwnerError("moved"))
    bench.cut()
    assert [type(error) for error in bench.session.ends] == [NotOwnerError if ended else ConnectError]
    bench.link.close()
    await bench.link.close_and_wait()
    assert not bench.closes


async def test_the_answer_to_a_close_is_no_end_by_the_broker():
    bench = await opened()
    closing = asyncio.ensure_future(bench.link.close_and_wait({"seen": b""}))
    await asyncio.sleep(0)
    command, header = bench.sent[-1]
    assert (command, header["seen"]) == (Command.CLOSE_CONSUMER, b"")
    success = {"request_id": header["request_id"], "consumer_id": bench.link.ident}
    bench.pool.says(Command.SUCCESS, success)
    await asyncio.wait_for(closing, 60)
    assert not bench.session.ends


async def test_a_connection_lost_under_two_links_may_close_one_from_the_other():
    """What is told of a loss first may end what would be told of it next."""
    bench = await opened()
    other = Session()
    second = Link(bench.pool, TOPIC_LIST, other)  # type: ignore[arg-type]
    opening = asyncio.ensure_future(second.open(None, lambda ident: asking(TOPIC_LIST, ident), 60.0))
    await asyncio.sleep(0)
    whole = {"hash": "h", "snapshot": [], "removed": [], "added": [], "born": [], "more": False}
    header = {"request_id": bench.sent[-1][1]["request_id"], "session_id": second.ident, **whole}
    bench.pool.says(Command.WATCH_TOPIC_LIST_UPDATE, header)
    assert await opening is not None
    sent = len(bench.sent)
    bench.session.at_end = second.close
    bench.cut()
    assert len(bench.session.ends) == 1
    assert not other.ends
    assert len(bench.sent) == sent  # nobody is there to be told


async def test_only_an_open_link_is_told_to_write_again():
    bench = Bench()
    opening = await bench.asked()
    bench.pool.connection.resume_writing()
    assert not bench.session.resumed
    bench.answer()
    await opening
    bench.pool.connection.resume_writing()
    assert bench.session.resumed == 1


async def test_a_link_is_used_once():
    bench = await opened()
    with pytest.raises(AssertionError, match="cannot move"):
        await bench.link.open(None, lambda ident: {"consumer_id": ident}, 60.0)
