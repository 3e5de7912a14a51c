"""Frames of transactions and subscriptions, byte by byte: what was written is read the same by later builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.metadata import protocol
from engine.metadata.store import Event, EventKind, Record, Stat
from engine.testing.maps import encode_bytes, packed
from engine.wire import framing
from engine.wire.commands import Command, decode
from tests.wire.test_framing import Sink

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "frames"
ID = "0123456789abcdef"
METADATA_REQUESTS = protocol.joined(
    [
        protocol.encode(protocol.Hello(protocol.PROTOCOL, 7, "0.1.0")),
        protocol.encode(protocol.PutOne(1, "/a", b"value", False, 9, None, {"i": ("x", "y")})),
        protocol.encode(protocol.Watch(2, "/w/", None)),
        protocol.encode(protocol.Watch(3, "/w/1", 12, alone=True)),
    ]
)
METADATA_ANSWERS = protocol.encode(
    (
        12,
        [
            protocol.Welcome(protocol.PROTOCOL, "0.1.0", 4711, 11),
            protocol.Done(1, Stat(12, 1_700_000_000_000, 1_700_000_000_001, 9)),
            protocol.Events(2, [Event(EventKind.PUT, "/w/1", 12, Record("/w/1", b"v", Stat(12, 1, 2)))]),
            protocol.Refused(3, -1, "a conflict"),
        ],
    )
)
FRAMES: dict[str, tuple[Command, dict[str, Any], bytes]] = {
    "v2-metadata-requests": (Command.METADATA, {}, METADATA_REQUESTS),
    "v1-metadata-answers": (Command.METADATA, {}, METADATA_ANSWERS),
    "v1-authenticate": (Command.AUTHENTICATE, {"request_id": 1, "token": "a.b.c"}, b""),
    "v1-new-txn": (Command.NEW_TXN, {"request_id": 1, "timeout": 60.0, "name": "batch-7"}, b""),
    "v1-end-txn": (Command.END_TXN, {"request_id": 2, "id": ID, "action": "commit", "accepted": ["task-1.0"]}, b""),
    "v1-seek-subscription": (
        Command.SEEK_SUBSCRIPTION,
        {"request_id": 7, "topic": "topic://public/default/t", "subscription": "s", "when": 1_700_000_000_000},
        b"",
    ),
    "v1-delete-subscription": (
        Command.DELETE_SUBSCRIPTION,
        {"request_id": 8, "topic": "topic://public/default/t", "subscription": "s"},
        b"",
    ),
    "v1-publish-credit": (Command.PUBLISH_CREDIT, {"producer_id": 4, "messages": 100, "bytes": 65_536}, b""),
    "v1-producer-sealed": (
        Command.PRODUCER,
        {
            "request_id": 9,
            "producer_id": 4,
            "topic": "segment://public/default/t/8000-ffff-2",
            "producer_name": "producer-0123456789abcdef0123456789abcdef",
            "access_mode": "exclusive",
            "claim": [1, 7, 3, -(1 << 63), (1 << 63) - 1],
            "name_proof": bytes(range(16)),
        },
        b"",
    ),
    "v1-txn-state": (Command.TXN_STATE, {"request_id": 3, "id": ID}, b""),
    "v1-send-in-txn": (
        Command.SEND,
        {"producer_id": 4, "entries": 1, "transaction": ID, "attempt": "task-1.0"},
        b"an entry",
    ),
    "v1-ack-in-txn": (
        Command.ACK,
        {
            "request_id": 5,
            "consumer_id": 6,
            "ack_type": "individual",
            "position": None,
            "ranges": [[0, 4], [7, 7]],
            "buckets": None,
            "transaction": ID,
            "attempt": None,
        },
        b"",
    ),
}


def said(header: dict[str, Any]) -> dict[str, Any]:
    """What is null may as well be absent."""
    return {name: value for name, value in header.items() if value is not None}


@pytest.mark.parametrize("name", FRAMES)
def test_frames_are_as_they_were(name: str):
    command, header, payload = FRAMES[name]
    golden = (GOLDEN / f"{name}.frame").read_bytes()
    assert encode_bytes(command, header, payload) == golden
    written = framing.encode_bytes(decode(command, packed(command, header).packed), payload)
    assert written == (golden if said(header) == header else encode_bytes(command, said(header), payload))


@pytest.mark.parametrize("name", FRAMES)
def test_they_are_read_as_they_were_meant(name: str):
    sink = Sink()
    sink.feed((GOLDEN / f"{name}.frame").read_bytes())
    command, header, payload = FRAMES[name]
    assert [(kind, said(fields), bytes(body)) for kind, fields, body in sink.frames] == [
        (command, said(header), payload)
    ]


def test_requests_of_a_build_without_watches_of_one_record_are_read() -> None:
    sink = Sink()
    sink.feed((GOLDEN / "v1-metadata-requests.frame").read_bytes())
    ((kind, _, body),) = sink.frames
    assert kind is Command.METADATA
    assert protocol.decode_requests(body)[-1] == protocol.Watch(2, "/w/", None, alone=False)


def test_a_build_without_watches_of_one_record_reads_the_others_of_it() -> None:
    """It passes over what it does not know, and watches the prefix."""

    class Watch(msgspec.Struct, array_like=True, tag=11, frozen=True):
        watch: int
        prefix: str
        from_version: int | None

    request = protocol.encode(protocol.Watch(3, "/w/1", 12, alone=True))
    assert msgspec.msgpack.decode(request, type=Watch) == Watch(3, "/w/1", 12)
