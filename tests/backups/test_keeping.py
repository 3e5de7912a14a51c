"""What a broker keeps for backups, and what ends that; disks that are full, or have no links."""

from __future__ import annotations

import base64
import errno
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.backups import public
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.broker.upkeep import backups
from engine.clock import SystemClock
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.sqlite import SqliteMetadataStore
from engine.model.names import SegmentName
from engine.storage.disk.disk import OsDisk, OsFile
from tests.backups.scenes import everything, opened, send


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    made = Broker(tmp_path / "data")
    await made.start()
    await made.admin.create_topic("orders")
    yield made
    await made.close()


async def test_what_nobody_renews_ends(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = await broker.parts.backups.begin()
    ident, directory = begun["backup"], Path(begun["directory"])
    assert broker.parts.backups.statistics().under_way == 1
    await broker.parts.backups.expire()
    await broker.parts.backups.renew(ident)
    assert (directory / "plan.json").exists()
    monkeypatch.setattr(backups, "LEASE_S", -1.0)
    await broker.parts.backups.expire()
    assert not os.path.exists(directory)  # noqa: ASYNC240 - of a test
    for ask in (broker.parts.backups.renew(ident), broker.parts.backups.read(ident, "plan.json", 0, 10)):
        with pytest.raises(engine.NotFoundError, match="begin again"):
            await ask
    await broker.parts.backups.end(ident, done=True)  # idempotent
    assert broker.parts.backups.statistics() == backups.BackupStatistics(0, 0, 0)


async def test_a_backup_that_is_complete_is_counted(broker: Broker) -> None:
    begun = await broker.parts.backups.begin()
    await broker.parts.backups.end(begun["backup"], done=True)
    found = broker.parts.backups.statistics()
    assert (found.under_way, found.finished, found.last_ms > 0) == (0, 1, True)
    page = await broker.admin.get_metrics()
    assert "engine_backups_finished_total 1" in page


async def test_some_at_once_and_no_more(broker: Broker) -> None:
    begun = [await broker.parts.backups.begin() for _ in range(4)]
    with pytest.raises(engine.LimitExceededError, match="at most 4 backups"):
        await broker.parts.backups.begin()
    await broker.parts.backups.end(begun[0]["backup"], done=False)
    await broker.parts.backups.begin()


async def test_only_kept_files_are_read(broker: Broker) -> None:
    await broker.store.create(SegmentName.parse("segment://public/default/orders/0000-ffff-0"))
    ident = (await broker.parts.backups.begin())["backup"]
    plan = json.loads(base64.b64decode(await broker.parts.backups.read(ident, "plan.json", 0, 1 << 20)))
    (segment,) = plan["segments"]
    assert segment["topic"] == "topic://public/default/orders"
    (name, link) = segment["logs"][0]
    head = base64.b64decode(await broker.parts.backups.read(ident, link, 0, 4))
    assert (name, head) == ("0.log", b"ENLG")
    assert await broker.parts.backups.read(ident, link, 1 << 40, 10) == ""
    for file in ("../plan.json", "/etc/passwd", "99", "metadata.mark", ""):
        with pytest.raises(engine.InvalidArgumentError, match="one that the plan names"):
            await broker.parts.backups.read(ident, file, 0, 10)


async def test_brokers_that_share_metadata_refuse(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore(SystemClock())
    broker = Broker(tmp_path, metadata=metadata, config=BrokerConfig(service_url="engine://127.0.0.1:1", insecure=True))
    await broker.start()
    with pytest.raises(engine.UnsupportedError, match="several servers"):
        await broker.parts.backups.begin()
    await broker.close()
    await metadata.close()


async def test_processes_that_never_stand_still_are_named(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        @asynccontextmanager
        async def still(self, directory: str) -> AsyncIterator[None]:
            raise backups.InterruptedMomentError("a process is being started")
            yield

        def check(self) -> None: ...

        async def go_on(self) -> None: ...

    metadata = broker.metadata
    assert isinstance(metadata, SqliteMetadataStore)
    kept = backups.Backups(broker.store, metadata, SystemClock(), shared=False, together=Never())
    monkeypatch.setattr(backups, "_ATTEMPTS_S_MAX", -1.0)
    with pytest.raises(engine.StorageError, match="did not stand still for a backup: a process is being started"):
        await kept.begin()
    assert not list(Path(broker.store.data, backups.DIRECTORY).iterdir())  # noqa: ASYNC240 - of a test


class FullFile(OsFile):
    """One on a full disk."""

    def write(self, buffers: Sequence[Any], position: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


class FullDisk(OsDisk):
    """It is full for all but the first files."""

    left = 1

    def create(self, path: str) -> OsFile:
        file = super().create(path)
        type(self).left -= 1
        return file if self.left >= 0 else FullFile(path, file._fd)


@pytest.mark.parametrize("left", range(4))
def test_a_full_destination_leaves_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    where = tmp_path / "backups"
    with opened(tmp_path / "data") as e:
        send(e, "orders", "first", 100)
        first = engine.backup(e, where).generation
        send(e, "orders", "second", 100)
        with monkeypatch.context() as full:
            full.setattr(FullDisk, "left", left)
            full.setattr(public, "OsDisk", FullDisk)
            if left < 2:  # its pack, its manifest
                with pytest.raises(engine.DiskFullError):
                    engine.backup(e, where)
                assert engine.list_backups(where) == [first]
            else:
                engine.backup(e, where)
            full.setattr(FullDisk, "left", left)
            if left < 3:
                with pytest.raises(engine.DiskFullError):
                    engine.restore(where, tmp_path / "restored", generation=first.name)
        engine.restore(where, tmp_path / "restored", generation=first.name)
        engine.verify_backup(where)
        assert engine.backup(e, where, keep=2).generation.messages == 200
        assert not list(where.rglob("*.new"))
    with opened(tmp_path / "restored") as e:
        assert everything(e, "orders").total() == 100


def test_a_file_system_without_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: OsDisk, old: str, new: str) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    with opened(tmp_path / "data") as e:
        send(e, "orders", "first", 10)
        monkeypatch.setattr(OsDisk, "link", refuses)
        with pytest.raises(engine.UnsupportedError, match="hard links"):
            engine.backup(e, tmp_path / "backups")
        assert list((tmp_path / "data" / "kept-for-backups").iterdir()) == []
        send(e, "orders", "second", 10)
        e.admin.delete_topic("orders")
