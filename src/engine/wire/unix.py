"""Streams of frames over Unix sockets: dial, listen.

A socket's file belongs to one user (mode 0600), and each side checks by the system's credentials that the other end is
a process of that user, or of root; or, where either was told so, of another user. A listener takes its name by
rename(), so a name leads to a socket that is served, or, when its process was killed, to one that refuses; the next
listener replaces it. Only one process at a time may listen on a name: callers hold a lock.

A Unix socket's address is at most 107 bytes long (macOS: 103). A longer path is reached through a descriptor of its
directory, /proc/self/fd/N/name, and where there is no /proc, through a symbolic link to the directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

from engine.errors import AuthenticationError, ConnectError, InvalidArgumentError
from engine.limits import FRAME_SIZE_MAX
from engine.wire.chunks import ChunkPool
from engine.wire.sockets import Accept, SocketStream
from engine.wire.stream import FrameHandler, FrameStream
from engine.wire.url import format_unix_url

P = TypeVar("P", bound=asyncio.BaseProtocol)

log = logging.getLogger(__name__)

_MODE = 0o600
_MODE_OF_ALL = 0o666  # where other users may connect: the permissions of the directory say which can
_ADDRESS_SIZE_MAX = 103 if sys.platform == "darwin" else 107  # bytes: sun_path without its terminating zero
_ROOT = 0
_BACKLOG = 1024


async def dial(path: str, handler: Accept, *, pool: ChunkPool, timeout: float, user: int | None = None) -> FrameStream:
    """A stream connected to the socket at `path`. `user`: the id of another user that may serve it.

    Raises ConnectError (nothing is served there), AuthenticationError (another user serves it).
    """
    url = format_unix_url(path)
    stream = await connect(path, lambda: SocketStream(handler, pool, url=url), timeout)
    if not is_own(stream) and stream.peer_user != user:
        stream.abort()
        raise AuthenticationError(f"{url} must be served by this user or root, got user id {stream.peer_user}")
    return stream


async def connect(path: str, protocol: Callable[[], P], timeout: float) -> P:
    """A protocol connected to the socket at `path`. Raises ConnectError, AuthenticationError (another user's)."""
    url = format_unix_url(path)
    loop = asyncio.get_running_loop()
    try:
        sock = _new_socket()
    except OSError as e:
        raise ConnectError(f"cannot connect to {url}: {_reason(e)}") from e
    try:
        async with asyncio.timeout(timeout):
            with _address(path) as address:
                await loop.sock_connect(sock, address)
            _, made = await loop.create_unix_connection(protocol, sock=sock)
    except TimeoutError as e:
        sock.close()
        raise ConnectError(f"no connection to {url} within {timeout:g} s") from e
    except PermissionError as e:
        sock.close()
        raise AuthenticationError(f"{url} must be served by this user or root, got {_reason(e)}") from e
    except OSError as e:
        sock.close()
        raise ConnectError(f"cannot connect to {url}: {_reason(e)}") from e
    except BaseException:
        sock.close()
        raise
    return made


class UnixListener:
    """A served Unix socket. Made by listen()."""

    def __init__(self, server: asyncio.Server, path: str, inode: tuple[int, int] | None) -> None:
        """`inode`: of the name, while it is this listener's to remove."""
        self._server = server
        self._path = path
        self._inode = inode
        self.url = format_unix_url(path)

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """The one that listens, while it does."""
        return self._server.sockets

    def close(self) -> None:
        """Accept no more connections, and remove the name while it is this listener's. Idempotent."""
        self._server.close()
        with contextlib.suppress(OSError):
            if _identity(self._path) == self._inode:
                os.unlink(self._path)


async def listen(
    path: str,
    accept: Accept,
    *,
    pool: ChunkPool,
    frame_size_max: int = FRAME_SIZE_MAX,
    others: Callable[[], Collection[int]] | None = None,
) -> UnixListener:
    """Serve connections at `path`, whose directory exists; `accept` is called with each that is this user's or root's.

    `others`: the ids of other users whose connections are accepted, too; None: there are none.

    A socket there, left by a process that was killed, is replaced. Raises ConnectError when none can be made (another
    kind of file is there, the file system has no sockets, it is read-only), InvalidArgumentError (the file's name alone
    is longer than an address).
    """
    sock = bind(path)
    try:
        return await serve(sock, path, accept, pool=pool, frame_size_max=frame_size_max, owned=True, others=others)
    except BaseException:
        sock.close()
        raise


def bind(path: str, *, listening: bool = True) -> socket.socket:
    """A socket at `path`. If `listening`, it takes connections, which wait for serve(). Raises as listen()."""
    new = f"{path}.{os.getpid()}"
    try:
        sock = _new_socket()
    except OSError as e:
        raise ConnectError(f"cannot listen on {format_unix_url(path)}: {e.strerror or e}") from e
    try:
        _bind(sock, path, new)
        if listening:
            sock.listen(_BACKLOG)
        os.replace(new, path)
    except OSError as e:
        sock.close()
        raise ConnectError(f"cannot listen on {format_unix_url(path)}: {e.strerror or e}") from e
    except BaseException:
        sock.close()
        raise
    return sock


async def serve(
    sock: socket.socket,
    path: str,
    accept: Accept,
    *,
    pool: ChunkPool,
    frame_size_max: int = FRAME_SIZE_MAX,
    owned: bool = False,
    others: Callable[[], Collection[int]] | None = None,
) -> UnixListener:
    """Serve the connections of a socket that bind() made, perhaps in another process, which then shares it.

    `owned`: the name is removed when the listener is closed. `others`: as of listen(). Raises ConnectError.
    """
    url = format_unix_url(path)
    loop = asyncio.get_running_loop()
    if others is not None:
        try:
            os.chmod(path, _MODE_OF_ALL)
        except OSError as e:
            raise ConnectError(f"cannot let other users connect to {url}: {e.strerror or e}") from e

    def accept_own(stream: FrameStream) -> FrameHandler:
        assert isinstance(stream, SocketStream)
        if is_own(stream) or (others is not None and stream.peer_user in others()):
            return accept(stream)
        log.warning("refused a connection to %s by user id %s", url, stream.peer_user, extra={"url": url})
        stream.abort()
        return _Refused()

    server = await loop.create_unix_server(
        lambda: SocketStream(accept_own, pool, frame_size_max, url), sock=sock, backlog=_BACKLOG
    )
    return UnixListener(server, path, _identity(path) if owned else None)


def unbind(sock: socket.socket, path: str) -> None:
    """Close a socket that bind() made, and remove its name."""
    sock.close()
    with contextlib.suppress(OSError):
        os.unlink(path)


class _Refused:
    """The handler of a connection that is being dropped."""

    def frame_received(self, header: object, payload: memoryview) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


def _new_socket() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    return sock


def _bind(sock: socket.socket, path: str, new: str) -> None:
    """Bind it to the name `new`, which is to replace `path`. Raises OSError."""
    if os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise FileExistsError(errno.EEXIST, "another kind of file has its name")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    os.fchmod(sock.fileno(), _MODE)  # the mode with which bind() makes the file
    with _address(new) as address:
        sock.bind(address)


def is_own(stream: FrameStream) -> bool:
    """Whether the other end is a process of this user, or of root."""
    return stream.peer_user in (os.geteuid(), _ROOT)


@contextlib.contextmanager
def _address(path: str) -> Iterator[str]:
    """The path, or where it is too long for an address, a name for it that is valid meanwhile."""
    if len(os.fsencode(path)) <= _ADDRESS_SIZE_MAX:
        yield path
        return
    directory, name = os.path.split(path)
    with contextlib.ExitStack() as meanwhile:
        if sys.platform == "linux":
            descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            meanwhile.callback(os.close, descriptor)
            near = f"/proc/self/fd/{descriptor}"
        else:
            near = meanwhile.enter_context(_link_to(directory))
        short = f"{near}/{name}"
        if len(os.fsencode(short)) > _ADDRESS_SIZE_MAX:
            most = _ADDRESS_SIZE_MAX - len(short) + len(name)
            raise InvalidArgumentError(f"the name of a Unix socket must be at most {most} bytes long, got {name}")
        yield short


@contextlib.contextmanager
def _link_to(directory: str) -> Iterator[str]:
    """A short path of a directory, which is valid meanwhile. Only this user can have made what it leads to."""
    private = f"/tmp/engine-{os.urandom(8).hex()}"
    os.mkdir(private, 0o700)
    link = f"{private}/d"
    try:
        os.symlink(directory, link)
        yield link
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(link)
        os.rmdir(private)


def _identity(path: str) -> tuple[int, int]:
    facts = os.lstat(path)
    return facts.st_dev, facts.st_ino


def _reason(error: OSError) -> str:
    if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
        return "nothing is served there"
    return error.strerror or str(error)
