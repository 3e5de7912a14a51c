"""Which process made the other end of a Unix socket, and which user's it is, as the system says."""

from __future__ import annotations

import socket
import struct
import sys
from typing import NamedTuple, Protocol

_LINUX = struct.Struct("3i")  # struct ucred of unix(7): process, user, group
_MACOS = struct.Struct("IIh66x")  # struct xucred of sys/ucred.h: version, user, number of groups, 16 groups
_MACOS_VERSION = 0  # XUCRED_VERSION
_SOL_LOCAL, _LOCAL_PEERCRED, _LOCAL_PEERPID = 0, 1, 2  # sys/un.h of macOS
_PROCESS = struct.Struct("i")


class Options(Protocol):
    """A socket, or asyncio's view of one."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """The value of an option. Raises OSError."""


class Peer(NamedTuple):
    """Process id and user id."""

    process: int
    user: int


def peer_of(sock: Options) -> Peer:
    """The process that has dialled, or listens, at the other end. Raises OSError."""
    return peer_on_macos(sock) if sys.platform == "darwin" else _peer_on_linux(sock)


def _peer_on_linux(sock: Options) -> Peer:
    process, user, _ = _LINUX.unpack(
        sock.getsockopt(socket.SOL_SOCKET, getattr(socket, "SO_PEERCRED", 17), _LINUX.size)
    )
    return Peer(process, user)


def peer_on_macos(sock: Options) -> Peer:
    """As peer_of(); the user is the one that the peer had when it connected or listened. Raises OSError."""
    version, user, _ = _MACOS.unpack(sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _MACOS.size))
    if version != _MACOS_VERSION:
        raise OSError(f"credentials must be of version {_MACOS_VERSION}, got {version}")
    (process,) = _PROCESS.unpack(sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, _PROCESS.size))
    return Peer(process, user)
