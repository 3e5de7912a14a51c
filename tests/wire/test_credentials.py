"""Who is at the other end of a Unix socket: this system's words, and what those of macOS are understood as."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from engine.wire.credentials import Peer, peer_of, peer_on_macos


class MacSocket:
    """Answers as macOS does: struct xucred for LOCAL_PEERCRED, a process id for LOCAL_PEERPID, both of SOL_LOCAL."""

    def __init__(self, version: int = 0) -> None:
        self._version = version

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        answers = {
            (0, 1): struct.pack("=IIh2x16I", self._version, 501, 2, 20, 12, *[0] * 14),
            (0, 2): struct.pack("=i", 4711),
        }
        answer = answers[level, option]
        assert len(answer) == size
        return answer


def test_this_system_says_this_process_and_user():
    one, other = socket.socketpair()
    with one, other:
        assert peer_of(one) == Peer(os.getpid(), os.geteuid())


def test_the_structures_of_macos_are_process_and_user():
    assert peer_on_macos(MacSocket()) == Peer(4711, 501)


def test_credentials_of_another_version_are_not_guessed_at():
    with pytest.raises(OSError, match="must be of version 0, got 1"):
        peer_on_macos(MacSocket(version=1))
