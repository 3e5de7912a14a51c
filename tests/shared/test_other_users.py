"""Directories of other users, and file systems that cannot be written: real ones, as far as this machine has them."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.embedded.shared import SOCKET_FILE
from tests.cli.cli_server import start_server, stop_server
from tests.kit.programs import environment
from tests.shared.conftest import Start
from tests.shared.members import Told

ONE, OTHER = 65534, 65533

several_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may read and write."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


@several_users
async def test_a_directory_of_another_user_is_refused_by_a_clear_error(public: Path, member: Start):
    """Whether it is open or not, and by whom."""
    mine = await member(public / "data", user=ONE)
    refused = f"DataDirectoryError: {public}/data cannot be written: it must be writable by this process"
    with pytest.raises(Told, match=refused):
        await member(public / "data", user=OTHER)
    assert await mine.leave() == 0
    for shared in (True, False):
        with pytest.raises(Told, match=refused):
            await member(public / "data", user=OTHER, shared=shared)


@several_users
async def test_who_may_write_the_directory_and_is_another_user_is_refused_too(public: Path, member: Start):
    await member(public / "data", user=ONE)
    (public / "data").chmod(0o777)
    with pytest.raises(Told, match=r"DataDirectoryError: .* must be writable by this process"):
        await member(public / "data", user=OTHER)
    (public / "data" / "metadata.db.lock").chmod(0o666)
    with pytest.raises(Told, match=r"AuthenticationError: .* must be served by this user or root, got Permis"):
        await member(public / "data", user=OTHER)


@several_users
async def test_a_socket_that_another_user_can_reach_serves_it_nothing(public: Path, member: Start):
    mine = await member(public / "data", user=ONE)
    other = await member(public / "other", user=OTHER)
    (public / "data").chmod(0o777)
    (public / "data" / SOCKET_FILE).chmod(0o666)
    for served in (ONE, 0):
        if served == 0:
            await mine.kill()
            engine.open(public / "data").close()
            root = engine.open(public / "data")
            (public / "data" / SOCKET_FILE).chmod(0o666)
        with pytest.raises(Told, match=r"AuthenticationError|ConnectError"):
            await other.do(f"engine.Client('engine+unix://{public}/data/{SOCKET_FILE}').connect()")
    root.close()


@several_users
async def test_root_does_not_join_what_another_user_serves(public: Path, member: Start):
    await member(public / "data", user=ONE)
    with pytest.raises(engine.AuthenticationError, match=f"must be served by this user or root, got user id {ONE}"):
        engine.open(public / "data")


READ_ONLY = """
import sys, engine
for shared in (True, False):
    try:
        engine.open(sys.argv[1], shared=shared)
    except engine.DataDirectoryError as e:
        print(e)
"""


@pytest.mark.parametrize("used", [True, False])
def test_a_read_only_file_system(tmp_path: Path, *, used: bool):
    """A real one, which this process alone sees."""
    data = tmp_path / "data"
    data.mkdir()
    if used:
        engine.open(data).close()
    mount = f"mount --bind {data} {data} && mount -o remount,ro,bind {data}"
    alone = ["unshare", "-m" if os.geteuid() == 0 else "-Urm", "sh", "-c"]
    try:
        subprocess.run([*alone, mount], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as e:
        pytest.skip(f"no file system can be mounted here: {e}")
    done = subprocess.run(
        [*alone, f'{mount} && exec "$@"', "sh", sys.executable, "-c", READ_ONLY, str(data)],
        env=environment(), timeout=60, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.count(f"{data} cannot be written: it must be writable by this process, got Read-only") == 2


@several_users
async def test_another_user_of_the_socket_has_the_rights_of_its_role(public: Path, member: Start, tmp_path: Path):
    roles = {"unix_users": [f"{OTHER}=web"]}
    async with started(tmp_path / "data", **roles) as broker:
        url = await broker.serve_unix(str(public / "socket"))
        await broker.admin.create_topic("orders")
        await broker.admin.grant("public/default", "web", ["produce"])
        other, third = [await member(public / str(user), user=user) for user in (OTHER, ONE)]
        with pytest.raises(
            Told, match=r"AuthenticationError: .* must be served by this user or root, got user id 0|Conn"
        ):
            await third.do(f"engine.Client('{url}').list_topics()")
        client = f"engine.Client('{url}?user=root')"
        assert await other.do(f"{client}.list_topics()") == ["topic://public/default/orders"]
        with pytest.raises(Told, match="AuthorizationError: the right consume is needed on 'public/default/orders'"):
            await other.do(f"{client}.queue_consumer('orders', 's')")
        with pytest.raises(Told, match="ConnectError"):
            await third.do(f"{client}.list_topics()")
        found = {connection.principal.role for connection in broker.connections}
        assert found == {"web"}


@several_users
async def test_another_user_is_served_by_all_processes_of_a_server(public: Path, member: Start, tmp_path: Path):
    """Over their common socket, which the parent has made, and the socket of each, to which it leads clients."""
    settings = tmp_path / "server.toml"
    settings.write_text(f'unix_users = ["{OTHER}=web"]\nsuperusers = ["web"]\ncluster_token = "{"x" * 32}"\n')
    data = public / "data"
    server = await asyncio.to_thread(start_server, data, "--processes", "2", "--config", str(settings))
    try:
        data.chmod(0o711)
        other = await member(public / "other", user=OTHER)
        client = f"engine.Client('engine+unix://{data}/engine.sock?user=root')"
        for i in range(8):  # at both
            assert await other.do(f"{client}.producer('t{i}').send(b'x') is not None")
    finally:
        await asyncio.to_thread(stop_server, server)


@asynccontextmanager
async def started(path: Path, **settings: Any) -> AsyncIterator[Broker]:
    broker = Broker(path, config=BrokerConfig(**settings))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()
