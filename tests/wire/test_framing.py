"""Frames to bytes and back, however the bytes are cut; and what is no frame is refused."""

from __future__ import annotations

import contextlib
import random
import struct

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidArgumentError, ProtocolError
from engine.limits import FRAME_HEADER_SIZE_MAX, FRAME_SIZE_MAX
from engine.testing.maps import encode, encode_bytes, fields_of
from engine.wire.chunks import Chunk, ChunkPool
from engine.wire.commands import HEADERS, Command, Header
from engine.wire.framing import FrameReader
from tests.wire.test_headers import example, needed


class Sink:
    """Collects frames; keeps the payload views, so that nothing may be overwritten."""

    def __init__(self, pool: ChunkPool | None = None, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self.frames: list[tuple[Command, dict, memoryview]] = []
        self.reader = FrameReader(pool or ChunkPool(), self.take, frame_size_max)

    def take(self, header: Header, payload: memoryview) -> None:
        self.frames.append((header.command, fields_of(header), payload))

    def feed(self, data: bytes) -> None:
        while data:
            room = self.reader.get_buffer()
            assert len(room) > 0
            n = min(len(room), len(data))
            room[:n] = data[:n]
            room.release()
            self.reader.received(n)
            data = data[n:]


FRAMES = st.lists(
    st.tuples(st.integers(0, 2**40), st.integers(0, 3000), st.randoms(use_true_random=False)), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(FRAMES, st.lists(st.integers(1, 5000), min_size=1, max_size=8), st.sampled_from([64, 512, 4096, 1 << 20]))
def test_frames_survive_any_cut_of_the_bytes(frames, cuts, chunk_size):
    sent = [(Command.SEND, {"producer_id": number, "entries": 1}, rng.randbytes(size)) for number, size, rng in frames]
    data = b"".join(encode_bytes(*frame) for frame in sent)
    sink, at, turn = Sink(ChunkPool(chunk_size)), 0, 0
    while at < len(data):
        step = cuts[turn % len(cuts)]
        sink.feed(data[at : at + step])
        at, turn = at + step, turn + 1
    assert [(c, {k: h[k] for k in sent[0][1]}, bytes(p)) for c, h, p in sink.frames] == sent
    assert sink.reader.pending_bytes == 0


def test_payloads_are_aligned_and_never_overwritten():
    rng = random.Random(7)
    sink = Sink(ChunkPool(8192))
    bodies = [rng.randbytes(rng.randrange(0, 3000) & ~7) for _ in range(400)]
    for body in bodies:
        sink.feed(encode_bytes(Command.SEND, {"producer_id": 1, "entries": 1}, body))
    assert [bytes(p) for _, _, p in sink.frames] == bodies
    import numpy as np

    assert all(np.frombuffer(p, np.uint8).ctypes.data % 8 == 0 for _, _, p in sink.frames if len(p))


def test_a_chunk_is_reused_only_when_no_view_is_left():
    pool = ChunkPool(1024)
    sink = Sink(pool)
    sink.feed(encode_bytes(Command.SEND, {"producer_id": 1, "entries": 1}, b"a" * 800))
    first = sink.frames[0][2]
    sink.feed(encode_bytes(Command.SEND, {"producer_id": 1, "entries": 1}, b"b" * 800))
    sink.feed(encode_bytes(Command.SEND, {"producer_id": 1, "entries": 1}, b"c" * 800))
    assert bytes(first) == b"a" * 800
    assert first.obj is not sink.frames[1][2].obj
    memories = {id(p.obj) for _, _, p in sink.frames}
    first.release()
    sink.frames.clear()
    for _ in range(6):
        sink.feed(encode_bytes(Command.SEND, {"producer_id": 1, "entries": 1}, b"d" * 800))
        assert id(sink.frames.pop()[2].obj) in memories


def test_lent_sees_views_of_views():
    chunk = Chunk(64)
    assert chunk.view is not None
    view = chunk.view[8:16][2:4]
    assert chunk.lent()
    del view
    assert not chunk.lent()
    assert len(chunk.memory) == 64


def test_idle_readers_own_no_memory():
    pool = ChunkPool()
    sinks = [Sink(pool) for _ in range(100)]
    for sink in sinks:
        sink.feed(encode_bytes(Command.PING, {}))
        assert sink.reader.held is None
    sinks[0].feed(encode_bytes(Command.PING, {})[:5])
    assert sinks[0].reader.held is not None
    sinks[0].reader.compact()
    assert sinks[0].reader.held.size == 5
    sinks[0].feed(encode_bytes(Command.PING, {})[5:])
    assert len(sinks[0].frames) == 2


def test_what_is_not_delivered_keeps_little_more_memory_than_it_takes():
    pool, frame = ChunkPool(), encode_bytes(Command.PING, {})
    sink = Sink(pool)
    sink.reader.paused = True
    sink.feed(frame * 100)
    sink.reader.trim()
    assert pool.taken == sink.reader.pending_bytes == 100 * len(frame)
    chunk = sink.reader.held
    sink.reader.trim()
    assert sink.reader.held is chunk  # not copied again
    sink.reader.paused = False
    sink.reader.deliver()
    assert len(sink.frames) == 100
    sink.reader.get_buffer()  # and nothing comes
    assert pool.taken == pool.chunk_size
    sink.reader.trim()
    assert pool.taken == 0


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        bytes(64),
        struct.pack("<IBI", 100, 99, 1),
        struct.pack("<IBI", 100, Command.PING, 200),
        struct.pack("<IBI", FRAME_SIZE_MAX + 1, Command.SEND, 1),
        struct.pack("<IBI", 4, Command.PING, 0),
        struct.pack("<IBI", FRAME_HEADER_SIZE_MAX + 100, Command.PING, FRAME_HEADER_SIZE_MAX + 1),
    ],
)
def test_garbage_is_refused_by_its_first_bytes(garbage):
    with pytest.raises(ProtocolError):
        Sink().feed(garbage)


@pytest.mark.parametrize(
    "packed", [b"\xc1", b"\x81", b"", msgpack.packb([1]), msgpack.packb({1: 2}), b"\x81\x91\xc0\xc0"]
)
def test_headers_that_are_no_map_of_names_are_refused(packed):
    prefix = struct.pack("<IBI", 5 + len(packed), Command.SEND, len(packed))
    with pytest.raises(ProtocolError):
        Sink().feed(prefix + packed + bytes(-(9 + len(packed)) % 8))


def test_a_field_of_the_wrong_type_is_named():
    with pytest.raises(ProtocolError, match="SEND is malformed: entries must be int, got str"):
        Sink().feed(encode_bytes(Command.SEND, {"producer_id": 1, "entries": "many"}))


def test_unknown_fields_are_ignored():
    sink = Sink()
    sink.feed(encode_bytes(Command.PING, {"new": 1}))
    assert sink.frames[0][0] is Command.PING


def test_a_frame_over_the_limit_is_refused_on_both_sides():
    with pytest.raises(InvalidArgumentError, match="at most"):
        encode(Command.SEND, {"producer_id": 1, "entries": 1}, bytes(FRAME_SIZE_MAX))
    with pytest.raises(InvalidArgumentError):
        encode(Command.SUCCESS, {"request_id": 1, "result": {"x": "y" * FRAME_HEADER_SIZE_MAX}})
    with pytest.raises(ProtocolError, match="at most 100 are allowed"):
        Sink(frame_size_max=100).feed(encode_bytes(Command.SEND, {"producer_id": 1, "entries": 1}, bytes(104)))


def test_the_largest_frame_passes():
    head = len(encode_bytes(Command.SEND, {"producer_id": 1, "entries": 1}))
    sink = Sink()
    body = bytes(FRAME_SIZE_MAX - head - 8)
    sink.feed(encode_bytes(Command.SEND, {"producer_id": 1, "entries": 1}, body))
    assert len(sink.frames[0][2]) == len(body)


def test_nothing_is_delivered_while_paused():
    sink = Sink()
    sink.reader.paused = True
    sink.feed(encode_bytes(Command.PING, {}) * 3)
    assert sink.frames == []
    sink.reader.paused = False
    sink.reader.deliver()
    assert len(sink.frames) == 3


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=1, max_size=200))
def test_fuzz_bytes_are_frames_or_a_protocol_error(data):
    with contextlib.suppress(ProtocolError):
        Sink().feed(data)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255), st.sampled_from(list(Command)))
def test_fuzz_one_flipped_byte(at, value, command):
    header = {name: example(kind) for name, kind in needed(HEADERS[command])}
    data = bytearray(encode_bytes(command, header, b"payload!"))
    data[at % len(data)] = value
    with contextlib.suppress(ProtocolError):
        Sink().feed(bytes(data))


def test_http_is_called_by_its_name():
    for said, told in [(b"GET / HTTP/1.1\r\n", "the peer speaks HTTP"), (b"HTTP/1.1 400 Bad\r\n", "port speaks HTTP")]:
        with pytest.raises(ProtocolError, match=told):
            Sink().feed(said)
