"""`engine backup` of a server of several processes: one moment over all of them."""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import engine
from engine.broker.upkeep.backups import DIRECTORY
from engine.sync import Client
from tests.kit.children import children_of
from tests.processes.conftest import Start
from tests.processes.test_server import read, send

pytestmark = pytest.mark.timeout(300)


def test_a_backup_has_what_every_process_has(tmp_path: Path, start: Start) -> None:
    data, where = tmp_path / "data", tmp_path / "backups"
    server = start(data)
    with Client(server.url) as client:
        client.admin.create_topic("orders", segments=6)
        send(client, range(300))
        first = engine.backup(client, where, verify=True).generation
        assert (first.messages, first.segments, first.damaged) == (300, 6, ())
        assert list((data / DIRECTORY).iterdir()) == []
        send(client, range(300, 400))
        second = engine.backup(client, where).generation
        assert second.messages == 400
        assert second.added < second.size
        page = client.admin.get_metrics()
        assert 'engine_backups_finished_total{process="parent"} 2' in page
    for generation, count in ((first, 300), (second, 400)):
        engine.restore(where, tmp_path / generation.name, generation=generation.name)
        with Client(start(tmp_path / generation.name).url) as client:  # by processes again
            assert read(client, count) == list(range(count))
            send(client, range(count, count + 10))


def test_a_process_that_died_does_not_harm_a_backup(tmp_path: Path, start: Start) -> None:
    data, where = tmp_path / "data", tmp_path / "backups"
    server = start(data)
    with Client(server.url) as client:
        client.admin.create_topic("orders", segments=6)
        send(client, range(100))
        os.kill(children_of(server.process.pid)[1], signal.SIGKILL)
        assert engine.backup(client, where, verify=True).generation.messages == 100  # it waits for the next one


def test_a_process_that_stands_still_by_itself_is_waited_for(tmp_path: Path, start: Start) -> None:
    data, where = tmp_path / "data", tmp_path / "backups"
    server = start(data)
    kept = data / DIRECTORY

    def beside(pid: int) -> bool:
        """Back up while a process stands still. Whether it had begun by then: this may be the one that was asked."""
        with ThreadPoolExecutor(1) as thread:
            os.kill(pid, signal.SIGSTOP)
            try:
                making = thread.submit(engine.backup, client, where)
                deadline = time.monotonic() + 3.0
                while not (begun := any(kept.glob("*"))) and time.monotonic() < deadline:
                    time.sleep(0.01)
                time.sleep(random.Random(1).uniform(0.0, 0.1))
            finally:
                os.kill(pid, signal.SIGCONT)
            assert making.result().generation.messages == 50
            return begun

    with Client(server.url) as client:
        client.admin.create_topic("orders", segments=2)
        send(client, range(50))
        # The client's connection stays at one process, so that one of these is another than it.
        assert any(beside(pid) for pid in children_of(server.process.pid).values())
