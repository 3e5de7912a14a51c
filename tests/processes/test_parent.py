"""What ends a server of several processes besides its signals."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.broker.settings.config import BrokerConfig
from engine.errors import DiskFullError, InvalidConfigurationError, StorageError
from engine.metadata import keys
from engine.processes.parent import Directory, Parent, Plan
from engine.processes.spawn import launcher
from engine.processes.supervision import State
from tests.kit.peer import until


class Stopped:
    """As much of a Directory as is looked at: its store has stopped."""

    failure = "the metadata store stopped: no space; open it again"

    @property
    def store(self) -> Stopped:
        return self


async def test_a_metadata_store_that_has_stopped_ends_the_server(tmp_path: Path):
    launch: Any = None  # nothing is started
    parent = Parent(Plan(tmp_path, 2, ("127.0.0.1", 0), None), BrokerConfig(), launch)
    directory: Any = Stopped()
    parent._directory = directory
    await parent._watch_store()
    with pytest.raises(StorageError, match="no space"):
        await parent.over


@pytest.mark.parametrize("one_port", [False, True])
@pytest.mark.parametrize(("listen", "admin"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "0.0.0.0"), ("10.0.0.7", None)])
async def test_a_server_of_processes_is_not_exposed_without_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listen: str, admin: str | None, one_port: bool
):
    """It is refused before a directory, a port or a process is made."""

    async def opened(*_: Any) -> None:
        raise AssertionError("the directory was opened")

    monkeypatch.setattr(Directory, "open", opened)
    launch: Any = None
    where = (listen, 0), None if admin is None else (admin, 0)
    parent = Parent(Plan(tmp_path / "data", 2, *where, None, one_port), BrokerConfig(), launch)
    with pytest.raises(InvalidConfigurationError, match=r"auth_token must be set .* insecure"):
        await parent.start()


@pytest.mark.parametrize(
    ("listen", "first", "one_port", "ports"),
    [
        (6650, None, False, [6651, 6652, 6653]),
        (0, None, False, [0, 0, 0]),
        (6650, 7000, False, [7000, 7001, 7002]),
        (6650, 0, False, [0, 0, 0]),
        (6650, None, True, []),
    ],
)
def test_ports_of_the_processes(listen: int, first: int | None, one_port: bool, ports: list[int]):
    plan = Plan(Path("data"), 3, ("0.0.0.0", listen), None, first, one_port)
    assert plan.ports == ports


@pytest.mark.timeout(300)
async def test_a_process_that_dies_while_the_metadata_store_cannot_write_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = [sys.executable, "-m", "engine.cli.serve_processes", str(os.getpid()), "warning", "text"]
    parent = Parent(Plan(tmp_path, 2, ("127.0.0.1", 0), None), BrokerConfig(), launcher(program))
    try:
        await parent.start()
        assert parent._directory is not None
        store = parent._directory.store
        registered = await store.get(keys.broker(parent._urls[0]))
        assert registered is not None

        async def no_space(*_: Any) -> None:
            raise DiskFullError("the disk must have space for a commit, got none")

        with monkeypatch.context() as full:
            full.setattr(store, "_write", no_space)
            os.kill(parent.pids()[0], signal.SIGKILL)
            dead = parent.supervision.processes[0]
            await until(lambda: dead.restarts > 0)
        assert not parent.over.done()
        old = registered.stat.session
        await until(lambda: old not in store._table.sessions)  # its records are deleted after all
        await until(lambda: parent.supervision.complete)
    finally:
        await parent.close()
    assert all(process.state is State.ENDED for process in parent.supervision.processes)
