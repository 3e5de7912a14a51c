"""Headers as structs: what passes, what is refused with which words, and what is left out."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import msgspec
import pytest

from engine.errors import ProtocolError
from engine.wire import commands
from engine.wire.commands import HEADERS, Command, Header, Part, Request, answer_to, decode, encode

EXPLICIT = {commands.TopicSchema, commands.WatchTopicListUpdate}  # whose readers want to find what is null

DEEP = (
    "RecursionError|request_id must be given"  # Python 3.14 has room for the 100,000 levels, and the field is ignored
)


def decoded(command: Command, **fields: Any) -> Header:
    return decode(command, msgpack.packb(fields))


def structs() -> list[type[Part]]:
    found = [kind for kind in vars(commands).values() if isinstance(kind, type) and issubclass(kind, Part)]
    return [kind for kind in found if kind not in (Part, Header, commands.Answerable, Request, commands.Closing)]


@pytest.mark.parametrize("kind", structs(), ids=lambda kind: kind.__name__)
def test_headers_are_not_changed_and_hold_no_cycle_and_what_is_new_is_ignored(kind: type[Part]):
    config = kind.__struct_config__
    assert config.frozen
    assert not config.gc
    assert not config.forbid_unknown_fields
    compact = issubclass(kind, Header) and kind not in EXPLICIT
    assert config.omit_defaults is (compact or kind in (commands.Segment, commands.AssignedSegment))


@pytest.mark.parametrize(("command", "fields", "words"), [
    (Command.SEND, {"producer_id": 1, "entries": "many"}, "SEND is malformed: entries must be int, got str"),
    (Command.SEND, {"producer_id": 1, "entries": True}, "SEND is malformed: entries must be int, got bool"),
    (Command.SEND, {"producer_id": 1, "entries": 1.0}, "SEND is malformed: entries must be int, got float"),
    (Command.SEND, {"producer_id": 1}, "SEND is malformed: entries must be given, got nothing"),
    (Command.SEND, {"producer_id": 1, "entries": 1, "attempt": 5},
     "SEND is malformed: attempt must be str | null, got int"),
    (Command.TXN_STATE, {"id": "0" * 16}, "TXN_STATE is malformed: request_id must be given, got nothing"),
    (Command.TXN_STATE, {"request_id": None, "id": "0" * 16},
     "TXN_STATE is malformed: request_id must be int, got None"),
    (Command.CONNECT, {"magic": "engine", "protocol": 1, "features": ["a", 7], "client": "c"},
     r"CONNECT is malformed: features\[1\] must be str, got int"),
    (Command.MESSAGE, {"consumer_id": 1, "segment_id": 0, "salt": 2**32, "messages": 1},
     "MESSAGE is malformed: salt must be int <= 4294967295, got 4294967296"),
    (Command.MESSAGE, {"consumer_id": 1, "segment_id": 0, "salt": 1, "messages": 1, "skip": [[0, 1], [1, -5]]},
     r"MESSAGE is malformed: skip\[1\]\[1\] must be int >= 0, got -5"),
    (Command.MESSAGE, {"consumer_id": 1, "segment_id": 0, "salt": 1, "messages": 1, "skip": [[0, 1, 2]]},
     r"MESSAGE is malformed: skip\[0\] must be array of length <= 2, got \[0, 1, 2\]"),
    (Command.SUCCESS, {"request_id": 1, "result": 5}, "SUCCESS is malformed: result must be a map or null, got int"),
    (Command.SCALABLE_TOPIC_ASSIGNMENT,
     {"consumer_id": 1, "layout_epoch": 0, "segments": [{"segment_id": 1, "topic": "t", "mode": "queue"}]},
     r"segments\[0\].mode must be one of the words that are known, got 'queue'"),
    (Command.SCALABLE_TOPIC_ASSIGNMENT, {"consumer_id": 1, "layout_epoch": 0, "segments": [{"segment_id": 1}]},
     r"segments\[0\].topic must be given, got nothing"),
])  # fmt: skip
def test_the_error_names_the_command_the_field_and_what_came(command: Command, fields: dict[str, Any], words: str):
    with pytest.raises(ProtocolError, match=f"{words}$"):
        decoded(command, **fields)


@pytest.mark.parametrize(("packed", "words"), [
    (b"", "the header is not msgpack"),
    (b"\xc1", "the header is not msgpack"),
    (b"\x81\xa2id\xa1\xff", "the header is not msgpack"),
    (b"\x90", "it must be object, got array"),
    (b"\x81\x01\x02", "a name in the map must be str, got int"),
    (b"\x82\xa2id\xa1a\xa1x" + b"\x91" * 100_000 + b"\xc0", DEEP),
])  # fmt: skip
def test_bytes_that_are_no_map_of_names(packed: bytes, words: str):
    with pytest.raises(ProtocolError, match=f"TXN_STATE.*{words}"):
        decode(Command.TXN_STATE, packed)


def test_a_number_out_of_range_in_a_header_that_ends_too_soon():
    """The value that the error would tell cannot be read."""
    packed = msgpack.packb({"consumer_id": -1, "end": 5})[:-1]
    with pytest.raises(ProtocolError, match="REACHED_END is malformed: consumer_id must be int >= 0, got another"):
        decode(Command.REACHED_END, packed)


@pytest.mark.parametrize("items", [b"\xdd", b"\xdf", b"\x91\xdd"], ids=["list", "map", "list in a list"])
@pytest.mark.parametrize("field", [b"ranges", b"later!"])
def test_what_promises_more_than_it_has_takes_no_memory_for_it(field: bytes, items: bytes):
    packed = b"\x81\xa6" + field + items + b"\xff" * 4
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="REDELIVER"):
            decode(Command.REDELIVER, packed)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_is_not_said_is_left_out_and_what_is_unknown_ignored():
    flow = decoded(Command.FLOW, consumer_id=1, messages=2, bytes=3, later=[{"?": None}])
    assert flow == commands.Flow(consumer_id=1, messages=2, bytes=3)
    ack = commands.Ack(request_id=5, consumer_id=6, ack_type="individual", ranges=b"x" * 16)
    assert msgpack.unpackb(encode(ack)) == {
        "request_id": 5, "consumer_id": 6, "ack_type": "individual", "ranges": b"x" * 16
    }  # fmt: skip
    null = decoded(Command.ACK, request_id=5, consumer_id=6, ack_type="individual", ranges=b"x" * 16, position=None)
    assert null == ack
    asks = commands.TopicSchema(request_id=1, topic="t", producer=False)
    assert msgpack.unpackb(encode(asks)) == {"request_id": 1, "topic": "t", "schema": None, "producer": False}


@pytest.mark.parametrize("command", Command, ids=lambda command: command.name)
def test_headers_come_back_as_they_were(command: Command):
    header = decode(command, msgpack.packb({name: example(kind) for name, kind in needed(HEADERS[command])}))
    assert decode(command, encode(header)) == header
    assert header.command is command


def needed(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    """Name and type of the fields that must be there."""
    fields = msgspec.inspect.type_info(kind).fields
    return [(field.name, field.type) for field in fields if field.required or field.name == "request_id"]


def example(kind: Any) -> Any:
    """Something of that type."""
    if isinstance(kind, msgspec.inspect.StructType):
        return {name: example(inner) for name, inner in needed(kind.cls)}
    if isinstance(kind, msgspec.inspect.ListType):
        return [example(kind.item_type) for _ in range(kind.min_length or 0)]
    if isinstance(kind, msgspec.inspect.UnionType):
        return example(kind.types[0])
    return {"IntType": 65535, "StrType": "text", "BoolType": True, "FloatType": 1.5, "BytesType": b"x"}[
        type(kind).__name__
    ]


def test_the_result_of_a_request_has_its_type():
    request = commands.TxnState(request_id=1, id="0" * 16)
    answer = answer_to(request, commands.Success(request_id=1, result={"state": "OPEN", "deadline_ms": 5}))
    assert answer == commands.Standing(state="OPEN", deadline_ms=5)
    assert answer_to(request, commands.Success(request_id=1, result=answer)) is answer
    assert answer_to(commands.Ack(consumer_id=1, ack_type="individual"), commands.Success(request_id=1)) is None
    with pytest.raises(
        ProtocolError, match="the answer to TXN_STATE is malformed: deadline_ms must be int >= 0, got -"
    ):
        answer_to(request, commands.Success(request_id=1, result={"state": "OPEN", "deadline_ms": -1}))
    with pytest.raises(ProtocolError, match="TXN_STATE must be answered by SUCCESS, got PONG"):
        answer_to(request, commands.Pong())
