"""A broker that says one thing wrong: nothing hangs past its timeout, and nothing but typed errors comes out."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from engine.client.admin.admin_http import HttpAdmin
from engine.client.client import AsyncClient
from engine.errors import ConnectError, EngineError, ProtocolError
from engine.errors import TimeoutError as EngineTimeoutError
from engine.testing.maps import packed
from engine.wire import commands
from engine.wire.commands import HEADERS, Answerable, Command, Header, Part, Request, answer_to, decode
from engine.wire.url import parse_url
from tests.client.hostile_broker import CASES, MISSING, WRONG, HostileBroker, Path, optional, paths, required, spoilt
from tests.kit.fake_broker import FakeBroker

GREETING = {"protocol": 1, "features": [], "broker": "", "keep_alive": 1, "frame_size_max": 1}
OPERATION_S = 0.2
OF_CLIENTS = {
    commands.Connect, commands.Ping, commands.Pong, commands.Send, commands.Flow, commands.Redeliver,
    commands.ScalableTopicClose, commands.WatchTopicListClose, commands.Metadata,
}  # fmt: skip
FRAMES = {c: kind for c, kind in HEADERS.items() if kind not in OF_CLIENTS and not issubclass(kind, Request)}
REQUESTS = {c: kind for c, kind in HEADERS.items() if issubclass(kind, Answerable)}
ANSWERS = {c: a.command for c, kind in REQUESTS.items() if (a := kind.answer) is not None and issubclass(a, Header)}
RESULTS = {c: a for c, kind in REQUESTS.items() if (a := kind.answer) is not None and not issubclass(a, Header)}
WAIT_S = 60.0


def check_frame(command: Command, header: dict[str, Any]) -> Header:
    """Raises ProtocolError for a frame that no broker sends."""
    return decode(command, packed(command, header).packed)


def check_answer(request: Command, answer: Command, header: dict[str, Any]) -> None:
    """Raises ProtocolError for an answer to another request, or with another result."""
    answer_to(made(request, {}), made(answer, header))


def made(command: Command, header: dict[str, Any]) -> Any:
    """Unchecked; what is missing is there."""
    kind = HEADERS[command]
    return kind(**{**dict.fromkeys(required(kind), "?"), **header})


async def meant(name: str) -> list[dict[str, Any]]:
    """What a broker says that is right, in the case of that name."""
    command, request, call = CASES[name]
    broker = HostileBroker(command, request, lambda header: None, 0)
    async with asyncio.timeout(WAIT_S), broker.client() as client:
        await call(broker, client)
    assert broker.said, "the case does not show what it is to show"
    return broker.said


async def outcome_of(name: str, path: Path, value: Any, times: int) -> tuple[BaseException | None, HostileBroker]:
    """What becomes of the case's call when that field is wrong, so many times."""
    command, request, call = CASES[name]

    def spoil(header: dict[str, Any]) -> dict[str, Any] | None:
        try:
            return spoilt(header, path, value)
        except (KeyError, IndexError, TypeError):
            return None  # another one of the kind, without that field

    broker = HostileBroker(command, request, spoil, times)
    client = broker.client(operation_timeout=OPERATION_S)
    try:
        async with asyncio.timeout(WAIT_S):
            (outcome,) = await asyncio.gather(_called(call, broker, client), return_exceptions=True)
    finally:
        broker.times = 0
        await client.close()
    return outcome, broker


async def _called(call: Any, broker: HostileBroker, client: Any) -> None:
    """A receive has no time limit of its own."""
    try:
        async with asyncio.timeout(6 * OPERATION_S):
            await call(broker, client)
    except TimeoutError as e:
        if isinstance(e, EngineError):
            raise


@pytest.fixture
async def problems() -> AsyncIterator[None]:
    """Nothing may go wrong in callbacks of the loop."""
    found: list[str] = []

    def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        found.append("".join(traceback.format_exception(error)) if error is not None else str(context))

    asyncio.get_running_loop().set_exception_handler(note)
    yield
    assert not found, found[0]


@pytest.mark.parametrize("name", CASES)
async def test_one_wrong_field_once(name: str, problems: None):
    """Every field, missing or with every wrong value: the call ends with its result, or with a typed error."""
    command, request, _ = CASES[name]
    said = await meant(name)
    places = {path for header in said for path in paths(header)} | {(field,) for field in optional(FRAMES[command])}
    if request in RESULTS:
        places |= {("result", field) for field in optional(RESULTS[request])}
    cases = {(path, i) for path in places for i in range(len(WRONG))}
    ordered = sorted(cases, key=repr)
    for start in range(0, len(ordered), 100):
        part = ordered[start : start + 100]
        outcomes = await asyncio.gather(*(outcome_of(name, path, WRONG[i], 1) for path, i in part))
        wrong = {
            case: repr(outcome)
            for case, (outcome, _) in zip(part, outcomes, strict=True)
            if outcome is not None and not isinstance(outcome, EngineError)
        }
        assert not wrong


@pytest.mark.parametrize("name", [name for name, (command, _, _) in CASES.items() if command is not Command.SUCCESS])
async def test_a_field_that_is_always_missing(name: str, problems: None):
    """The connection is dropped each time, and the call ends in its time."""
    command = CASES[name][0]
    fields = [field for field in required(FRAMES[command]) if field != "request_id"]
    outcomes = await asyncio.gather(*(outcome_of(name, (field,), MISSING, 10_000) for field in fields))
    for field, (outcome, broker) in zip(fields, outcomes, strict=True):
        assert outcome is None or isinstance(outcome, EngineError), (field, repr(outcome))
        assert len(broker.connections) > 1 or outcome is not None, field


@pytest.mark.parametrize("request_", RESULTS, ids=lambda command: command.name)
@pytest.mark.parametrize("result", [None, {}, [], "?"])
def test_a_result_that_lacks_what_was_asked_for(request_: Command, result: Any):
    """No files are an answer: SEGMENT_FILES has nothing that must be there."""
    answer = {"request_id": 1, "result": result}
    if result == {} and not required(RESULTS[request_]):
        check_answer(request_, Command.SUCCESS, answer)
        return
    with pytest.raises(ProtocolError, match=f"the answer to {request_.name} is malformed"):
        check_answer(request_, Command.SUCCESS, answer)


@pytest.mark.parametrize("receipt", [
    {"sequences": [0], "offsets": []},
    {"sequences": [], "offsets": [0]},
    {"sequences": ["0"], "offsets": [0]},
    {"sequences": [7], "offsets": [0]},
    {"sequences": [0, 0], "offsets": [0, 0]},
    {"sequences": [0], "offsets": [2**63]},
    {"sequences": [0], "offsets": [0], "more": [{"producer_id": 1}]},
    {"sequences": [0], "offsets": [0], "more": [None]},
])  # fmt: skip
async def test_a_send_whose_receipt_is_malformed_is_answered_by_the_next_connection(
    broker: FakeBroker, receipt: dict[str, Any], client: AsyncClient
):
    producer = await client.producer("t")
    broker.holding = True
    sending = asyncio.ensure_future(producer.send(b"v"))
    await broker.until(lambda: bool(broker.log[0]))
    (ident,) = broker.last.producers
    broker.last.held.clear()
    broker.holding = False
    said = {"producer_id": ident, "durability": "fsync", **receipt}
    broker.last.stream.send(Command.SEND_RECEIPT, said)
    async with asyncio.timeout(WAIT_S):
        assert (await sending).offset in (0, -1)
    await broker.until(lambda: broker.connections[0].lost)
    assert broker.log[0] == [(0, 1)], "it is stored once"


async def test_a_send_whose_receipts_are_all_malformed_ends_in_its_time():
    command, _, _ = CASES["SEND_RECEIPT"]
    broker = HostileBroker(command, None, lambda header: {**header, "offsets": None}, 10**6)
    client = broker.client()
    producer = await client.producer("t", send_timeout=OPERATION_S)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(TimeoutError, match="the outcome is unknown"):
            await producer.send(b"v")
        await client.close()
    assert len(broker.connections) > 1


# -- the table itself ------------------------------------------------------------------------------------------------


def structs() -> list[type[Part]]:
    """What brokers say, with the parts of it."""
    found = [kind for kind in vars(commands).values() if isinstance(kind, type) and issubclass(kind, Part)]
    kinds = [kind for kind in found if not issubclass(kind, Header) or kind in FRAMES.values()]
    return [kind for kind in kinds if kind is not Part]


@pytest.mark.parametrize("kind", structs(), ids=lambda kind: kind.__name__)
def test_every_number_has_its_limits_and_what_is_new_is_ignored(kind: type[msgspec.Struct]):
    for field in msgspec.inspect.type_info(kind).fields:
        for number in numbers(field.type):
            assert number.ge is not None, field.name
            assert number.le is not None or field.name == "accepted", field.name
    assert not msgspec.inspect.type_info(kind).forbid_unknown_fields


def numbers(kind: Any) -> list[Any]:
    """The numbers in a type."""
    if isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType):
        return [kind]
    inner = [getattr(kind, name) for name in ("item_type", "key_type", "value_type") if hasattr(kind, name)]
    inner += [*getattr(kind, "types", ()), *(getattr(kind, "item_types", ()))]
    return [number for one in inner for number in numbers(one)]


def test_every_command_of_a_broker_is_in_the_table():
    """Those that carry fields, and all that requests are answered by."""
    said = {command for command, _, _ in CASES.values()}
    assert said == set(FRAMES)
    assert set(ANSWERS.values()) <= set(FRAMES)
    apart = {Command.SEGMENT_FILES, Command.AUTHENTICATE}
    assert set(RESULTS) - apart <= {request for _, request, _ in CASES.values()}


@pytest.mark.parametrize("left", ["soon", -1.0, [5]])
def test_a_renewed_token_has_a_time_left(left: Any):
    with pytest.raises(ProtocolError, match="token_left"):
        check_answer(Command.AUTHENTICATE, Command.SUCCESS, {"request_id": 1, "result": {"token_left": left}})


@pytest.mark.parametrize("name", CASES)
async def test_what_is_right_passes_with_what_a_newer_broker_adds(name: str):
    command, request, _ = CASES[name]
    for header in await meant(name):
        newer = {**header, "later": [1, {"?": None}]}
        said = check_frame(command, newer)
        if request is not None:
            answer_to(made(request, {}), said)


@pytest.mark.parametrize(("command", "header", "field"), [
    (Command.MESSAGE, {"consumer_id": 1, "segment_id": 0, "salt": 1, "messages": 1, "skip": [[3, 2]]}, "skip"),
    (Command.MESSAGE, {"consumer_id": 1, "segment_id": 0, "salt": 1, "messages": 1, "skip": [[3]]}, "skip"),
    (Command.MESSAGE, {"consumer_id": 1, "segment_id": 0, "salt": 1, "messages": -1}, "messages"),
    (Command.SEND_RECEIPT, {"producer_id": 1, "sequences": [1], "offsets": [], "durability": "os"}, "offsets"),
    (Command.SUBSCRIBE_SUCCESS, {"request_id": 1, "consumer_id": 1, "position": -1, "first": 0}, "position"),
    (Command.SUBSCRIBE_SUCCESS, {"request_id": 1, "consumer_id": 1, "position": 0, "first": 0, "gaps": [3]}, "gaps"),
    (Command.SUBSCRIBE_SUCCESS, {"request_id": 1, "consumer_id": 1, "position": 0, "first": 0, "gaps": [[3, 2]]},
     "gaps"),
    (Command.CONNECTED, {**GREETING, "features": [1]}, "features"),
    (Command.CONNECTED, {**GREETING, "keep_alive": -1}, "keep_alive"),
    (Command.CONNECTED, {**GREETING, "frame_size_max": 0}, "frame_size_max"),
])  # fmt: skip
def test_the_error_names_the_command_and_the_field(command: Command, header: dict[str, Any], field: str):
    with pytest.raises(ProtocolError, match=f"{command.name} is malformed: .*{field}"):
        check_frame(command, header)


@pytest.mark.parametrize(("request_", "result", "field"), [
    (Command.SEGMENT_OFFSET, {"offset": 1, "first": 0, "end": 1, "open_buckets": None}, "open_buckets"),
    (Command.TXN_STATE, {"state": "OPEN", "deadline_ms": 1, "left": "5"}, "left"),
    (Command.TXN_STATE, {"state": "OPEN", "deadline_ms": 1, "left": float("nan")}, "left"),
])  # fmt: skip
def test_what_is_seldom_said_is_checked(request_: Command, result: dict[str, Any], field: str):
    with pytest.raises(ProtocolError, match=f"the answer to {request_.name} is malformed: .*{field}"):
        check_answer(request_, Command.SUCCESS, {"request_id": 1, "result": result})


@pytest.mark.parametrize("fields", [
    {"hashRange": {"start": 9, "end": 8}},
    {"hashRange": {"start": 0, "end": 65536}},
    {"bucketBoundaries": []},
    {"bucketBoundaries": [5]},
    {"bucketBoundaries": [5, 5, 65535]},
    {"segmentId": -1},
])  # fmt: skip
def test_a_layout_that_cannot_be(fields: dict[str, Any]):
    dag = FakeBroker().dag()
    header = {"session_id": 1, "topic": "t", "epoch": 0, "dag": dag}
    check_frame(Command.SCALABLE_TOPIC_UPDATE, header)
    dag["segments"][0].update(fields)
    with pytest.raises(ProtocolError, match=next(iter(fields))):
        check_frame(Command.SCALABLE_TOPIC_UPDATE, header)


@pytest.mark.parametrize(("request_", "answer"), [
    (Command.SUBSCRIBE, Command.SUCCESS), (Command.PRODUCER, Command.SUCCESS), (Command.ACK, Command.PRODUCER_SUCCESS),
    (Command.SCALABLE_TOPIC_LOOKUP, Command.SCALABLE_TOPIC_ASSIGNMENT),
])  # fmt: skip
def test_an_answer_to_another_request(request_: Command, answer: Command):
    with pytest.raises(ProtocolError, match=f"{request_.name} must be answered by"):
        check_answer(request_, answer, {"request_id": 1})


# -- the admin API, and addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"null", b"1", b'"?"', b"[1]", b'{"a": 1}', b"{", b"\xff"])
async def test_what_an_admin_api_answers_is_what_was_asked_for_or_a_typed_error(body: bytes):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        )
        writer.write(head.encode() + b"\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    admin = HttpAdmin(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", token=None, timeout=WAIT_S)
    asked: list[tuple[Any, type]] = [
        (admin.list_topics("a/b", None), list),
        (admin.get_metadata("t"), dict),
        (admin.get_stats("t"), dict),
        (admin.get_transaction("0" * 16), dict),
        (admin.list_transactions(open_longer_than=None, segment=None, limit=None), list),
        (admin.get_namespace_policies("a/b"), dict),
        (admin.get_auto_scale_policy("t"), dict),
        (admin.get_dynamic_configuration(), dict),
    ]
    try:
        for asking, kind in asked:
            (outcome,) = await asyncio.gather(asking, return_exceptions=True)
            assert isinstance(outcome, EngineError | kind), repr(outcome)
    finally:
        await admin.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("url", ["?", "http://[", "http://a:b", ""])
async def test_an_admin_address_that_is_none(broker: FakeBroker, url: str):
    broker.admin = url
    async with broker.client() as client:
        with pytest.raises(EngineError):
            await client.admin.get_stats("t")


@pytest.mark.parametrize("url", ["?", "http://[", "engine://"])
async def test_an_owners_address_that_is_none(url: str):
    """The scripted broker takes any; this connector is as strict as that of TCP."""
    broker = FakeBroker()
    broker.owners[0] = url
    connect = broker.connect

    async def checked(to: str, handler: Any) -> Any:
        if to == url:
            parse_url(to)
        return await connect(to, handler)

    broker.connect = checked  # type: ignore[method-assign]
    client = broker.client(operation_timeout=OPERATION_S)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises((ConnectError, EngineTimeoutError)):
            await client.producer("t", name="mine")
        await client.close()
