"""Rolled files on a real S3 server: uploaded whole and in parts, read by ranges, named, deleted, swept."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from engine.storage.file import upload
from engine.storage.objects.names import folder
from engine.storage.objects.remote import RemoteObjectStore
from engine.storage.objects.sweep import Sweep
from tests.storage.object_machines import Machine, Machines
from tests.storage.test_consolidation import fill
from tests.storage.test_succession import messages


async def names(store: RemoteObjectStore, where: str) -> list[str]:
    return [info.name async for info in store.list(where)]


async def close(machine: Machine) -> None:
    await machine.wal.writer.close()
    await machine.cache.close()


@pytest.mark.parametrize("in_parts", [False, True])
async def test_files_on_a_real_store(
    store: RemoteObjectStore, tmp_path: Path, in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_parts:
        monkeypatch.setattr(upload, "PIECE_SIZE", 1000)
    machines = Machines(tmp_path, file_size_max=4096)
    machines.store = store  # type: ignore[assignment]
    first = await machines.machine()
    expected = await fill(first, 1, 12)
    await first.consolidate()
    files = (await machines.objects()).files
    assert len(files) >= 2
    assert (store.statistics().requests["multipart"] > 0) is in_parts
    second = await machines.machine()  # which fences the first
    assert await messages(second.segment) == expected
    await second.consolidate()
    # As a clock that is an hour ahead: all objects are old enough.
    sweep = Sweep(store, machines.metadata, "c", lambda: int((time.time() + 3600) * 1000), 0.0)
    before = await names(store, folder("c"))
    swept = await sweep.run()
    assert swept.sessions == 1
    assert {name.split("/")[2] for name in swept.names} == {"s1"}
    assert await names(store, folder("c")) == before
    assert len(await names(store, "wal/c/s1")) == 16  # its FENCEs
    await second.segment.retain(files[1].end, retention_ms=None, retention_bytes=0)
    await second.garbage.delete_due()
    assert await messages(second.segment) == expected[files[1].end :]
    third = await machines.machine()
    assert await messages(third.segment) == expected[files[1].end :]
    for machine in (first, second, third):
        await close(machine)
