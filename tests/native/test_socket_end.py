"""One end of a socket writes what its model writes, at the same moments, and receives what a frame reader receives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.wire.socket_end import GATHERED_MAX, SocketEnd
from engine.errors import InvalidArgumentError
from engine.limits import FRAME_SIZE_MAX
from engine.wire import commands
from engine.wire.chunks import ChunkPool
from engine.wire.framing import FrameReader, encode, encode_bytes
from engine.wire.packing import PackedHeader
from tests.reference.socket_reference import PlainSocketEnd

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from([0, 1, 100, 16_000, 16_380, 16_400, 40_000, 70_000])),
        st.tuples(st.sampled_from(["gather", "flush", "end_of_turn"]), st.none()),
    ),
    max_size=40,
)


class Turns:
    """What stands for the loop: the callbacks of its next turn."""

    def __init__(self):
        self.due = []

    def call_soon(self, callback):
        self.due.append(callback)

    def turn(self):
        due, self.due = self.due, []
        for callback in due:
            callback()


class Written:
    def __init__(self):
        self.written = []

    def write(self, data):
        self.written.append(bytes(data))

    def writelines(self, buffers):
        self.written.append(b"".join(buffers))


class Faults(SocketEnd):
    error = None

    def fail(self, error):
        self.error = error


def end_of(deliver=lambda header, payload: None, kind=SocketEnd):
    end = kind(FrameReader(ChunkPool(), deliver), Turns(), commands.encode)
    end.transport = Written()
    return end


@given(STEPS)
def test_it_writes_what_the_model_writes(steps):
    end, plain = end_of(), PlainSocketEnd()
    sent = 0
    for n, (step, size) in enumerate(steps):
        if step == "send":
            header, payload = commands.Send(producer_id=n, entries=1), bytes([n % 256]) * size
            # In one of the forms of a header, and of a payload.
            end.send(
                PackedHeader(header.command, commands.encode(header)) if n % 2 else header,
                [payload[:7], payload[7:]] if n % 3 else payload,
            )
            frame = encode_bytes(header, payload)
            plain.send(frame)
            sent += len(frame)
        elif step == "end_of_turn":
            end.loop.turn()
            plain.end_of_turn()
        else:
            getattr(end, step)()
            getattr(plain, step)()
        assert end.transport.written == plain.written
        assert end.bytes_sent == sent
    end.loop.turn()
    plain.end_of_turn()
    assert b"".join(end.transport.written) == b"".join(plain.written)
    assert end.gathered_bytes == 0


def test_nothing_is_sent_once_it_closes_and_what_was_gathered_is_dropped():
    end = end_of()
    end.gather()
    end.send(commands.Ping())
    assert end.gathered_bytes > 0
    end.closing = True
    end.send(commands.Ping(), b"x" * GATHERED_MAX)
    end.loop.turn()
    assert end.transport.written == []
    end = end_of()
    end.gather()
    end.send(commands.Ping())
    end.forget()
    end.loop.turn()
    assert end.transport.written == []
    assert end.gathered_bytes == 0


def test_a_frame_that_is_too_large_is_refused_and_the_end_goes_on():
    end = end_of()
    payload = bytearray(1)
    with pytest.raises(InvalidArgumentError, match=f"at most {FRAME_SIZE_MAX}"):
        end.send(commands.Ping(), [memoryview(bytes(1 << 20))] * (FRAME_SIZE_MAX // (1 << 20) + 1))
    with pytest.raises(InvalidArgumentError, match="a header must be bytes"):
        end.send((commands.Command.PING, "text"), payload)
    end.send(commands.Ping())
    assert end.transport.written == [encode_bytes(commands.Ping())]


def test_the_frames_of_another_protocol_are_encoded_by_its_speaker():
    class Speaker:
        def encode(self, header, payload):
            return ([b"said"], 4) if isinstance(header, commands.Ping) else ([], 0)

    end = end_of()
    end.speaker = Speaker()
    end.send(commands.Ping())
    end.send(commands.Pong())
    assert end.transport.written == [b"said"]
    assert end.bytes_sent == 4


def test_received_bytes_become_frames_and_what_is_no_frame_is_its_fault():
    got = []
    end = end_of(lambda header, payload: got.append((header, bytes(payload))), Faults)
    whole = b"".join(encode(commands.Send(producer_id=7, entries=1), b"entry")[0])
    for at in range(len(whole)):
        end.get_buffer(-1)[:1] = whole[at : at + 1]
        end.buffer_updated(1)
    assert got == [(commands.Send(producer_id=7, entries=1), b"entry")]
    end.get_buffer(-1)[:16] = b"\xff" * 16
    end.buffer_updated(16)
    assert "at most" in str(end.error)
