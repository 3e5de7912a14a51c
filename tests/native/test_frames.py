"""Frames, cut and joined natively and by the plain model."""

from __future__ import annotations

import contextlib
import random
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._native.wire import frames
from engine._native.wire.frames import JOIN_MAX, Chunks, FrameReader
from engine.errors import InvalidArgumentError, ProtocolError
from engine.limits import FRAME_SIZE_MAX
from tests.reference import frames_reference as plain

KNOWN = (1, 22, 23, 33)


class Refused(Exception):
    """What the owner of a reader says."""


def refuse(kind: int | None, said: Any) -> None:
    if kind is not None:
        raise Refused


def reader_of(deliver: Any, decode: Any = bytes, *, checked: dict[int, Any] | None = None, size: int = 4096) -> Any:
    decoders = tuple(decode if kind in KNOWN else None for kind in range(256))
    sound_if = tuple((checked or {}).get(kind) for kind in range(256))
    return FrameReader(Chunks(size), deliver, decoders, sound_if, refuse, FRAME_SIZE_MAX)


def feed(reader: FrameReader, data: bytes, cuts: list[int]) -> None:
    turn = 0
    while data:
        room = reader.get_buffer()
        size = min(len(room), len(data), cuts[turn % len(cuts)])
        room[:size] = data[:size]
        room.release()
        reader.received(size)
        data, turn = data[size:], turn + 1


FRAMES = st.lists(
    st.tuples(
        st.sampled_from(KNOWN),
        st.binary(max_size=60) | st.integers(4000, 5000).map(bytes),
        st.lists(st.binary(max_size=50) | st.integers(0, 2 * JOIN_MAX).map(bytes), max_size=4),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(FRAMES, st.lists(st.integers(1, 30_000), min_size=1, max_size=5), st.sampled_from([64, 4096, 1 << 20]))
def test_joined_and_cut_as_by_the_plain_model(sent, cuts, size):
    data = b""
    for kind, packed, payload in sent:
        buffers, total = frames.frame(kind, packed, [memoryview(part) for part in payload])
        assert sum(map(len, buffers)) == total
        assert len(buffers) == 1 or total > JOIN_MAX
        assert b"".join(buffers) == plain.frame(kind, packed, payload)
        data += b"".join(buffers)
    found: list[tuple[bytes, memoryview]] = []
    reader = reader_of(lambda header, payload: found.append((header, payload)), size=size)
    feed(reader, data, cuts)
    assert [(h, bytes(p)) for h, p in found] == [(h, p) for _, h, p in plain.frames(data)]
    assert (reader.pending_bytes, reader.held, reader.bytes_received) == (0, None, len(data))


def test_a_payload_is_one_buffer_or_several():
    whole = b"".join(frames.frame(22, b"header", b"payload")[0])
    assert b"".join(frames.frame(22, b"header", [b"pay", bytearray(b"lo"), memoryview(b"ad")])[0]) == whole
    assert frames.frame(1, b"", b"")[0] == frames.frame(1, b"", [])[0]


def test_limits_of_a_frame():
    with pytest.raises(InvalidArgumentError, match=f"SEND of .* at most {FRAME_SIZE_MAX}"):
        frames.frame(SimpleCommand(22), b"", bytes(FRAME_SIZE_MAX))


def test_a_header_may_be_of_a_class_of_bytes():
    class Packed(bytes):
        pass

    assert frames.frame(22, Packed(b"header"), b"") == frames.frame(22, b"header", b"")
    wrong: Any = "header"
    with pytest.raises(InvalidArgumentError, match="must be bytes, got str"):
        frames.frame(22, wrong, b"")


def test_a_payload_is_of_single_bytes():
    with pytest.raises(InvalidArgumentError, match="single bytes, got items of 4"):
        frames.frame(22, b"", memoryview(array("I", [1, 2, 3])))


def test_a_large_header_alone_is_one_buffer():
    buffers, size = frames.frame(22, bytes(2 * JOIN_MAX), b"")
    assert [len(buffer) for buffer in buffers] == [size]


class SimpleCommand(int):
    name = "SEND"


def test_headers_that_cannot_be_decoded_are_refused_by_the_owner():
    def fails(packed: bytes) -> Any:
        raise ValueError(packed)

    def faulty(packed: bytes) -> Any:
        return SimpleNamespace(fault=lambda: "something is wrong")

    with pytest.raises(Refused):
        feed(reader_of(lambda *_: pytest.fail("delivered"), fails), plain.frame(22, b"x", []), [100])
    with pytest.raises(Refused):
        feed(reader_of(lambda *_: pytest.fail("delivered"), faulty, checked={22: ()}), plain.frame(22, b"x", []), [100])
    seen: list[Any] = []
    feed(reader_of(lambda *frame: seen.append(frame), faulty), plain.frame(22, b"x", []), [100])
    assert len(seen) == 1, "only those that are checked are asked"


@pytest.mark.parametrize(
    ("one", "two", "more", "asked"),
    [
        ([], [], None, False), ([1], [2], None, False), ([1], [], None, True), ([], [1, 2], None, True),
        ([1], [2], [], True), ([1], [2], 0, True),
    ],
)  # fmt: skip
def test_a_header_is_asked_for_its_fault_where_its_fields_do_not_say_that_it_has_none(
    one: list[int], two: list[int], more: Any, asked: bool
):
    calls: list[str] = []
    seen: list[Any] = []
    header = SimpleNamespace(one=one, two=two, more=more, fault=lambda: calls.append("asked"))
    reader = reader_of(
        lambda *frame: seen.append(frame), lambda packed: header, checked={22: (("one", "two"), ("more",))}
    )
    feed(reader, plain.frame(22, b"x", []), [100])
    assert [got for got, _ in seen] == [header]
    assert calls == (["asked"] if asked else [])
    header.fault = lambda: "something is wrong"
    if asked:
        with pytest.raises(Refused):
            feed(reader, plain.frame(22, b"x", []), [100])


def test_an_unknown_command_is_refused():
    with pytest.raises(ProtocolError, match="unknown type 99"):
        feed(reader_of(lambda *_: None), plain.frame(99, b"", []), [100])


def test_a_reader_may_be_paused_in_a_delivery():
    found: list[bytes] = []

    def deliver(header: bytes, payload: memoryview) -> None:
        found.append(header)
        reader.paused = len(found) == 2

    reader = reader_of(deliver)
    feed(reader, b"".join(plain.frame(1, bytes([n]), []) for n in range(5)), [1000])
    assert len(found) == 2
    reader.paused = False
    reader.deliver()
    assert len(found) == 5


def test_hostile_bytes_raise_one_of_two_errors():
    rng = random.Random(3)
    good = b"".join(plain.frame(rng.choice(KNOWN), rng.randbytes(9), [rng.randbytes(40)]) for _ in range(4))
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 0xFF, rng.randrange(256)])
        with contextlib.suppress(ProtocolError, Refused):
            feed(reader_of(lambda *_: None), bytes(data), [rng.randint(1, 200)])


def test_tables_must_be_complete():
    with pytest.raises(InvalidArgumentError, match="256 commands"):
        FrameReader(Chunks(), print, (None,), (None,) * 256, refuse, 100)
