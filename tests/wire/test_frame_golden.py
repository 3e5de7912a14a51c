"""Frames of transactions, byte by byte: what was written once is read the same by every later build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.wire.commands import Command, check_header
from engine.wire.framing import encode_bytes
from tests.wire.test_framing import Sink

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "frames"
ID = "0123456789abcdef"
FRAMES: dict[str, tuple[Command, dict[str, Any], bytes]] = {
    "v1-new-txn": (Command.NEW_TXN, {"request_id": 1, "timeout": 60.0, "name": "batch-7"}, b""),
    "v1-end-txn": (Command.END_TXN, {"request_id": 2, "id": ID, "action": "commit", "accepted": ["task-1.0"]}, b""),
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


@pytest.mark.parametrize("name", FRAMES)
def test_frames_are_as_they_were(name: str):
    command, header, payload = FRAMES[name]
    check_header(command, header)
    assert encode_bytes(command, header, payload) == (GOLDEN / f"{name}.frame").read_bytes()


@pytest.mark.parametrize("name", FRAMES)
def test_they_are_read_as_they_were_meant(name: str):
    sink = Sink()
    sink.feed((GOLDEN / f"{name}.frame").read_bytes())
    assert [(command, header, bytes(payload)) for command, header, payload in sink.frames] == [FRAMES[name]]
