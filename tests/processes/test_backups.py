"""`engine backup` of a server of several processes: one moment over all of them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

import engine
from engine.broker.upkeep.backups import DIRECTORY
from engine.sync import Client
from tests.kit.children import children_of
from tests.processes.conftest import Start
from tests.processes.test_server import read, send, until

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
    with Client(server.url) as client:
        client.admin.create_topic("orders", segments=2)
        send(client, range(50))
        pid = children_of(server.process.pid)[1]

        async def beside() -> engine.BackedUp:
            os.kill(pid, signal.SIGSTOP)
            try:
                making = asyncio.create_task(asyncio.to_thread(engine.backup, client, where))
                await asyncio.to_thread(until, lambda: any((data / DIRECTORY).glob("*")), "no backup has begun")
                await asyncio.sleep(random.Random(1).uniform(0.0, 0.1))
            finally:
                os.kill(pid, signal.SIGCONT)
            return await making

        assert asyncio.run(beside()).generation.messages == 50
