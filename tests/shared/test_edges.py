"""Where a directory cannot be shared, or not by everyone: clear errors, and the engine itself works."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker.cluster.joinable import TARGET
from engine.broker.cluster.peers import dial
from engine.embedded.shared import SOCKET_FILE
from engine.errors import AuthenticationError, DataDirectoryError, UnsupportedError
from engine.metadata.lockfile import LockFile, holder_of
from engine.wire import commands, unix
from engine.wire.chunks import ChunkPool
from engine.wire.connector import SocketConnector
from tests.kit.programs import environment
from tests.shared.conftest import Start


async def test_a_path_that_is_longer_than_a_socket_address(tmp_path: Path, member: Start):
    data = tmp_path / ("long" * 30) / "data"
    other = await member(data)
    await other.do("e.admin.create_topic('t')")
    with engine.open(data) as here:
        assert here.admin.list_topics() == ["topic://public/default/t"]
        await other.kill()
        here.admin.create_topic("u")


async def test_where_no_socket_can_be_made_the_second_process_alone_is_refused(
    tmp_path: Path, member: Start, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "data" / SOCKET_FILE).mkdir(parents=True)  # its name is taken
    with engine.open(tmp_path / "data") as one, engine.open(tmp_path / "data") as other:
        one.admin.create_topic("t")
        assert other.admin.list_topics() == ["topic://public/default/t"]
        assert caplog.text.count("is not shared with other processes") == 1
        with pytest.raises(Exception, match=f"DataDirectoryBusyError: .* process {os.getpid()}"):
            await member()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(DataDirectoryError, match="must be on a file system that has locks"):
        engine.open(tmp_path / "data")


def test_a_directory_that_cannot_be_written(tmp_path: Path):
    """Its lock file cannot be made, by any user that runs this."""
    (tmp_path / "data" / "metadata.db.lock").mkdir(parents=True)
    for shared in (True, False):
        with pytest.raises(DataDirectoryError, match="must be writable by this process"):
            engine.open(tmp_path / "data", shared=shared)


def test_another_users_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with engine.open(tmp_path / "data"):
        user = os.geteuid() + 1
        monkeypatch.setattr(unix.os, "geteuid", lambda: user)
        monkeypatch.setattr(unix, "_ROOT", -1)
        with pytest.raises(AuthenticationError, match="must be served by this user or root"):
            asyncio.run(SocketConnector().connect(f"engine+unix://{tmp_path}/data/{SOCKET_FILE}", lambda stream: None))


class _Newer:
    """What a build of another protocol answers."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def frame_received(self, header: Any, payload: memoryview) -> None:
        code = UnsupportedError.code
        self._stream.send(commands.Error(request_id=0, code=code, message="protocol must be 7 to 9, got 1"))
        self._stream.close()

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


async def test_a_build_of_another_protocol_refuses_by_a_typed_error(tmp_path: Path):
    (tmp_path / "data").mkdir()
    lock = LockFile(tmp_path / "data" / "metadata.db.lock", shared=True)
    listener = await unix.listen(str(tmp_path / "data" / SOCKET_FILE), _Newer, pool=ChunkPool())
    with pytest.raises(UnsupportedError, match="protocol must be 7 to 9"):
        await engine.open_async(tmp_path / "data")
    listener.close()
    lock.release()


async def test_a_setting_that_the_process_that_serves_does_not_know_differs(tmp_path: Path):
    async with engine.open_async(tmp_path / "data") as e:
        peer = await dial(SocketConnector(), e.service_url)
        with pytest.raises(engine.InvalidConfigurationError, match="other values of of_a_later_version"):
            await peer.call(TARGET, "join", {"given": {"of_a_later_version": 1}, "listen": None, "admin": None}, 30)
        for method, arguments in (("join", {}), ("operation", {"operation": "none"}), ("else", {})):
            with pytest.raises(engine.InvalidArgumentError):
                await peer.call(TARGET, method, arguments, 30)
        peer.stream.abort()


async def test_a_directory_is_joined_over_its_own_socket_only(tmp_path: Path):
    async with engine.open_async(tmp_path / "data", listen="127.0.0.1:0") as e:
        peer = await dial(SocketConnector(), e.service_url)
        with pytest.raises(UnsupportedError, match="over its own socket"):
            await peer.call(TARGET, "join", {"given": {}, "listen": None, "admin": None}, 30)
        peer.stream.abort()


def test_one_that_says_nothing_is_not_waited_for_long(tmp_path: Path):
    """As an older build, which holds the lock and does not say that it can be joined."""
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "metadata.db.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(engine.DataDirectoryBusyError, match="another engine"):
            engine.open(tmp_path / "data")


@pytest.mark.parametrize("said", [b"", b"{", b"[]", b'{"process": "x"}', b'{"process": 1073741824, "shared": true}'])
def test_what_the_lock_file_does_not_say_is_not_known(tmp_path: Path, said: bytes):
    path = tmp_path / "lock"
    path.write_bytes(said)
    assert holder_of(path) is None
    assert holder_of(tmp_path / "missing") is None
    lock = LockFile(path)
    assert lock.left_behind == bool(said)
    found = holder_of(path)
    assert found is not None
    assert (found.process, found.shared) == (os.getpid(), False)
    lock.release()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("command", [["serve", "--listen", "127.0.0.1:0", "--admin", "none", "--data"], ["inspect"]])
def test_a_server_and_offline_commands_are_refused_with_the_number_of_the_process(tmp_path: Path, command: list[str]):
    with engine.open(tmp_path / "data"):
        done = subprocess.run(
            [sys.executable, "-m", "engine", *command, str(tmp_path / "data")],
            env=environment(), timeout=60, check=False, capture_output=True, text=True,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"process {os.getpid()}" in done.stderr
