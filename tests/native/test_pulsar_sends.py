"""A SEND of a plain batch and its receipt, beside the general way, which is Protocol Buffers' own."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.format.crc32c import crc32c
from engine._native.pulsar.sends import plain_send, receipt_frame
from engine.limits import ENTRY_MESSAGES_MAX
from engine.pulsar.messages import MessageMetadata, command, framed

U64 = st.integers(0, 2**64 - 1)
PLAIN_COMMAND = {"producer": 1, "sequence": 7, "count": 3}
PLAIN_METADATA = {"producer_name": b"p", "sequence": 7, "publish_time": 1, "count": 3}
BATCH = b"the messages"


def frame_of(said: dict[str, Any], metadata: dict[str, Any], batch: bytes = BATCH, *, name: str = "send") -> bytes:
    head, about = command(name, **said), MessageMetadata(**metadata).SerializeToString()
    summed = len(about).to_bytes(4, "big") + about + batch
    payload = b"\x0e\x01" + crc32c(summed).to_bytes(4, "big") + summed
    return struct.pack(">II", 4 + len(head) + len(payload), len(head)) + head + payload


@given(
    st.fixed_dictionaries(
        {}, optional={"producer": U64, "sequence": U64, "highest_sequence": U64, "count": st.just(9)}
    ),
    st.fixed_dictionaries(
        {"count": st.integers(1, ENTRY_MESSAGES_MAX)},
        optional={
            "producer_name": st.binary(max_size=300),
            "sequence": U64,
            "publish_time": U64,
            "compression": st.just(0),
            "uncompressed_size": st.integers(0, 2**32 - 1),
            "highest_sequence": U64,
        },
    ),
    st.binary(max_size=300),
)
def test_a_plain_batch_is_read_as_it_was_said(said: dict[str, Any], metadata: dict[str, Any], batch: bytes):
    frame = frame_of(said, metadata, batch)
    found = plain_send(memoryview(frame))
    assert found is not None
    producer, sequence, highest, first, count, payload, content = found
    numbers = [said.get(name, 0) for name in ("producer", "sequence", "highest_sequence")]
    assert (producer, sequence, highest) == (numbers[0], numbers[1], max(numbers[1:]))
    assert (first, count) == (metadata.get("sequence", 0), metadata["count"])
    assert bytes(payload) == frame[8 + len(command("send", **said)) :]
    assert bytes(content) == batch


@pytest.mark.parametrize(
    ("said", "metadata"),
    [
        ({"txn_low": 0, "txn_high": 0}, {}),
        ({"is_chunk": False}, {}),
        ({"marker": True}, {}),
        ({}, {"count": 0}),
        ({}, {"count": -1}),
        ({}, {"count": ENTRY_MESSAGES_MAX + 1}),
        ({}, {"compression": 1}),
        ({}, {"encryption_keys": [b"k"]}),
        ({}, {"schema_version": bytes(8)}),
        ({}, {"deliver_at": 0}),
        ({}, {"marker": 1}),
        ({}, {"replicate_to": [b"c"]}),
        ({}, {"chunks": 1}),
        ({}, {"uuid": "u"}),
        ({}, {"key": b"k"}),
        ({}, {"properties": [{"key": b"k", "value": b"v"}]}),
    ],
    ids=lambda fields: ",".join(fields) or "plain",
)
def test_of_what_is_no_plain_batch_nothing_is_said(said: dict[str, Any], metadata: dict[str, Any]):
    assert plain_send(memoryview(frame_of({**PLAIN_COMMAND, **said}, {**PLAIN_METADATA, **metadata}))) is None


def test_a_message_alone_is_no_batch():
    assert plain_send(memoryview(frame_of(PLAIN_COMMAND, {"sequence": 7, "publish_time": 1}))) is None


def test_other_commands_are_no_send():
    assert plain_send(memoryview(frame_of({"consumer": 1, "permits": 2}, PLAIN_METADATA, name="flow"))) is None
    assert plain_send(memoryview(framed("send", **PLAIN_COMMAND))) is None


def test_damage_and_parts_are_no_plain_batch():
    frame = frame_of(PLAIN_COMMAND, PLAIN_METADATA)
    assert plain_send(memoryview(frame)) is not None
    for at in range(len(frame)):
        assert plain_send(memoryview(frame[:at])) is None
    for at in range(4, len(frame)):  # how long the frame is, was read by the reader of frames
        damaged = bytearray(frame)
        damaged[at] ^= 0x10
        found = plain_send(memoryview(damaged))
        assert found is None or at < frame.index(b"\x0e\x01"), at  # a command has no checksum


@given(U64, U64, U64, U64, U64, st.integers(-1, 2**31 - 1))
def test_a_receipt_is_that_of_protocol_buffers(
    producer: int, sequence: int, highest: int, ledger: int, entry: int, partition: int
):
    place = {"ledger": ledger, "entry": entry} | ({} if partition < 0 else {"partition": partition})
    assert receipt_frame(producer, sequence, highest, ledger, entry, partition) == framed(
        "send_receipt", producer=producer, sequence=sequence, message_id=place, highest_sequence=highest
    )
