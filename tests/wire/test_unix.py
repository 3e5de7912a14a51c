"""Unix sockets: their names, their users, what becomes of one whose process was killed."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat

import pytest

from engine.errors import AuthenticationError, ConnectError, InvalidArgumentError
from engine.wire import unix
from engine.wire.chunks import ChunkPool
from engine.wire.commands import Ping
from engine.wire.connector import SocketConnector
from engine.wire.sockets import SocketStream
from engine.wire.url import check_url, format_unix_url, unix_path


class End:
    """A FrameHandler whose futures say that it got a frame, and that its connection was lost."""

    def __init__(self, stream) -> None:
        self.stream = stream
        self.received: asyncio.Future = asyncio.get_running_loop().create_future()
        self.lost: asyncio.Future = asyncio.get_running_loop().create_future()

    def frame_received(self, header, payload) -> None:
        if not self.received.done():
            self.received.set_result(header)

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error) -> None:
        self.lost.set_result(error)


class Acceptor:
    """Called with each connection that a listener accepts."""

    def __init__(self) -> None:
        self.ends: list[End] = []
        self.first: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def __call__(self, stream) -> End:
        self.ends.append(End(stream))
        if not self.first.done():
            self.first.set_result(self.ends[-1])
        return self.ends[-1]

    async def all_lost(self) -> None:
        for end in self.ends:
            await asyncio.wait_for(end.lost, 10)


async def speak(url: str, acceptor: Acceptor) -> tuple[SocketStream, SocketStream]:
    """Connect, send a frame, wait for it on the other side; both streams."""
    stream = await SocketConnector().connect(url, End)
    stream.send(Ping())
    accepted = await asyncio.wait_for(acceptor.first, 10)
    assert isinstance(await asyncio.wait_for(accepted.received, 10), Ping)
    return stream, accepted.stream


async def test_a_socket_belongs_to_its_user_alone(tmp_path):
    acceptor = Acceptor()
    listener = await unix.listen(str(tmp_path / "s"), acceptor, pool=ChunkPool())
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    near, far = await speak(listener.url, acceptor)
    assert near.peer_user == far.peer_user == os.geteuid()
    assert near.is_near
    assert far.is_near
    assert far.local_url == listener.url
    assert near.peer == f"{listener.url} (process {os.getpid()})"
    near.abort()
    await acceptor.all_lost()
    listener.close()
    assert list(tmp_path.iterdir()) == []


async def test_another_user_is_refused_by_the_listener(tmp_path, monkeypatch):
    path, acceptor = str(tmp_path / "s"), Acceptor()
    listener = await unix.listen(path, acceptor, pool=ChunkPool())
    monkeypatch.setattr(SocketStream, "peer_user", 4_000_000_000)
    reader, writer = await asyncio.open_unix_connection(path)
    assert await asyncio.wait_for(reader.read(), 10) == b""
    assert acceptor.ends == []
    writer.close()
    await writer.wait_closed()
    listener.close()


async def test_a_socket_that_another_user_serves_is_refused(tmp_path, monkeypatch):
    path = str(tmp_path / "s")
    accepted: asyncio.Future[asyncio.StreamReader] = asyncio.get_running_loop().create_future()

    async def serve(reader, writer) -> None:
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        accepted.set_result(reader)

    server = await asyncio.start_unix_server(serve, path)
    monkeypatch.setattr(SocketStream, "peer_user", 4_000_000_000)
    with pytest.raises(AuthenticationError, match="must be served by this user or root, got user id 4000000000"):
        await SocketConnector().connect(format_unix_url(path), End)
    await asyncio.wait_for(accepted, 10)
    server.close()
    await server.wait_closed()


async def test_a_socket_of_a_killed_process_is_replaced(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(path)
    with pytest.raises(ConnectError, match="nothing is served there"):
        await SocketConnector().connect(format_unix_url(path), End)
    acceptor = Acceptor()
    listener = await unix.listen(path, acceptor, pool=ChunkPool())
    near, _ = await speak(listener.url, acceptor)
    near.abort()
    await acceptor.all_lost()
    listener.close()


async def test_a_listener_that_was_replaced_leaves_the_name_alone(tmp_path):
    path = str(tmp_path / "s")
    first = await unix.listen(path, Acceptor(), pool=ChunkPool())
    acceptor = Acceptor()
    second = await unix.listen(path, acceptor, pool=ChunkPool())
    first.close()
    first.close()
    near, _ = await speak(second.url, acceptor)
    near.abort()
    await acceptor.all_lost()
    second.close()


async def test_another_kind_of_file_is_not_replaced(tmp_path):
    (tmp_path / "s").write_text("precious")
    with pytest.raises(ConnectError, match="another kind of file has its name"):
        await unix.listen(str(tmp_path / "s"), Acceptor(), pool=ChunkPool())
    assert (tmp_path / "s").read_text() == "precious"
    with pytest.raises(ConnectError, match="nothing is served there"):
        await SocketConnector().connect(format_unix_url(str(tmp_path / "none")), End)


async def test_a_path_longer_than_an_address(tmp_path):
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    acceptor = Acceptor()
    listener = await unix.listen(str(directory / "engine.sock"), acceptor, pool=ChunkPool())
    near, far = await speak(listener.url, acceptor)
    assert far.local_url == format_unix_url(str(directory / "engine.sock"))
    near.abort()
    await acceptor.all_lost()
    listener.close()
    assert list(directory.iterdir()) == []
    with pytest.raises(InvalidArgumentError, match="the name of a Unix socket must be at most"):
        await unix.listen(str(tmp_path / ("n" * 120)), Acceptor(), pool=ChunkPool())


@pytest.mark.parametrize("path", ["/tmp/s", "/a b/ü%41?#.sock"])
def test_urls_of_unix_sockets(path):
    assert unix_path(format_unix_url(path)) == path
    assert check_url(format_unix_url(path)) == format_unix_url(path)


@pytest.mark.parametrize(
    "url", ["engine+unix:s", "engine+unix://s", "engine+unix:///s/", "engine+unix:///s?q", "engine+unix:///%00"]
)
def test_malformed_urls_of_unix_sockets_are_refused(url):
    with pytest.raises(InvalidArgumentError, match="service URL"):
        check_url(url)


async def test_a_socket_that_the_system_refuses_is_a_connect_error(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(unix.socket, "socket", refuse)
    with pytest.raises(ConnectError, match=r"cannot connect to .*: Too many open files"):
        await unix.connect(str(tmp_path / "s"), asyncio.Protocol, 10)
    with pytest.raises(ConnectError, match=r"cannot listen on .*: Too many open files"):
        unix.bind(str(tmp_path / "s"))


async def test_a_path_that_is_too_long_is_reached_through_a_link_where_there_is_no_proc(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    before = set(os.listdir("/tmp"))
    monkeypatch.setattr(unix.sys, "platform", "darwin")  # the short address of each bind and connect
    with unix._address(str(deep / "s")) as address:
        assert address.startswith("/tmp/engine-")
        assert os.readlink(os.path.dirname(address)) == str(deep)
        with socket.socket(socket.AF_UNIX) as served, socket.socket(socket.AF_UNIX) as caller:
            served.bind(address)
            served.listen()
            caller.connect(address)
    assert (deep / "s").is_socket()
    assert not [name for name in set(os.listdir("/tmp")) - before if name.startswith("engine-")]
    with pytest.raises(InvalidArgumentError, match="at most"), unix._address(str(deep / ("s" * 100))):
        raise AssertionError("it has no address")
