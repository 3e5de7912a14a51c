"""Cutting: whatever is passed on and whatever is taken out, together and in order, is what came."""

from __future__ import annotations

import random
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import NotFoundError, ProtocolError
from engine.limits import FRAME_SIZE_MAX
from engine.proxy.frames import FrameCutter, Hello, error_frame, field_of
from engine.testing.maps import encode_bytes
from engine.wire.commands import Command, Ping

WANTED = {Command.SUCCESS, Command.GET_TOPICS_OF_NAMESPACE}


def frame(command: Command, size: int, rng: random.Random) -> bytes:
    """One that need not make sense: only its first bytes are looked at."""
    return encode_bytes(command, {"request_id": rng.randrange(2**32)}, rng.randbytes(size))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([Command.SEND, Command.ACK, *WANTED]), st.integers(0, 300)), min_size=1, max_size=12
    ),
    st.lists(st.integers(1, 500), min_size=1, max_size=8),
    st.integers(0, 2**32),
)
def test_any_cut_of_the_bytes(kinds: list[tuple[Command, int]], cuts: list[int], seed: int) -> None:
    rng = random.Random(seed)
    frames = [frame(command, size, rng) for command, size in kinds]
    data = b"".join(frames)
    cutter = FrameCutter(lambda kind, size: kind in WANTED)
    came, taken, at, turn = b"", [], 0, 0
    while at < len(data):
        step = cuts[turn % len(cuts)]
        for kind, piece in cutter.feed(data[at : at + step]):
            if kind is not None:
                assert len(came) == sum(map(len, frames[: len(split_at(frames, len(came)))]))
                taken.append(bytes(piece))
            came += piece
        at, turn = at + step, turn + 1
    assert came == data
    assert taken == [f for (command, _), f in zip(kinds, frames, strict=True) if command in WANTED]
    assert cutter.between


def split_at(frames: list[bytes], size: int) -> list[bytes]:
    """The first frames, which have `size` bytes together."""
    found: list[bytes] = []
    while sum(map(len, found)) < size:
        found.append(frames[len(found)])
    return found


def test_a_frame_that_is_passed_on_is_not_held() -> None:
    """It goes on piece by piece, however large; in between nothing else may be put."""
    data = encode_bytes(Command.SEND, {"producer_id": 1, "entries": 1}, bytes(8 * 2**20))
    cutter = FrameCutter(lambda kind, size: False)
    for at in range(0, len(data), 65536):
        [(kind, piece)] = cutter.feed(data[at : at + 65536])
        assert kind is None
        assert len(piece) == len(data[at : at + 65536])
        assert cutter.between == (at + 65536 >= len(data))


def test_types_that_are_not_known_yet_are_passed_on() -> None:
    data = bytearray(encode_bytes(Command.PING, {}))
    data[4] = 201
    assert [bytes(piece) for _, piece in FrameCutter(lambda kind, size: False).feed(bytes(data))] == [data]


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 9, b"GET / HTTP/1.1\r\n", (5).to_bytes(4, "little") + b"\x03" + (50).to_bytes(4, "little"),
     (FRAME_SIZE_MAX + 1).to_bytes(4, "little") + b"\x03" + bytes(4)],
)  # fmt: skip
@pytest.mark.parametrize("step", [1, 100])
def test_what_is_no_frame(garbage: bytes, step: int) -> None:
    cutter = FrameCutter(lambda kind, size: False)
    with pytest.raises(ProtocolError):
        list(chain.from_iterable(cutter.feed(garbage[at : at + step]) for at in range(0, len(garbage), step)))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=5))
def test_fuzz_bytes_pass_or_are_refused(pieces: list[bytes]) -> None:
    cutter, came = FrameCutter(lambda kind, size: kind % 2 == 0), b""
    try:
        for data in pieces:
            came += b"".join(bytes(piece) for _, piece in cutter.feed(data))
    except ProtocolError:
        return
    assert b"".join(pieces).startswith(came)


def test_a_greeting_and_what_follows_it() -> None:
    said = encode_bytes(Command.PING, {"x": 1}) + b"more"
    for step in (1, 7, 100):
        hello = Hello()
        whole = [hello.feed(said[at : at + step]) for at in range(0, len(said), step)]
        assert whole[-1]
        assert hello.take() == (Ping(), {"x": 1}, b"more")


@pytest.mark.parametrize("first", [encode_bytes(Command.SEND, {"producer_id": 1, "entries": 1}, bytes(70_000))])
def test_a_greeting_is_small(first: bytes) -> None:
    with pytest.raises(ProtocolError, match="first frame"):
        Hello().feed(first[:100])


def test_one_field_without_the_others() -> None:
    assert field_of(error_frame(7, NotFoundError("it is gone")), "request_id") == 7
    assert field_of(error_frame(7, NotFoundError("it is gone")), "nothing") is None
    broken = bytearray(error_frame(7, NotFoundError("it is gone")))
    broken[9] = 0xC1
    with pytest.raises(ProtocolError, match="not msgpack"):
        field_of(broken, "request_id")
