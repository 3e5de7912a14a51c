"""The files of the metadata store are their owner's alone."""

from __future__ import annotations

import os
from pathlib import Path

from engine.clock import SystemClock
from engine.metadata.sqlite import SqliteMetadataStore


def modes(directory: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in directory.iterdir()}


async def opened(path: Path) -> dict[str, int]:
    """The modes of all files while the store is open, after a commit."""
    store = await SqliteMetadataStore.open(path, clock=SystemClock())
    try:
        await store.put("/a", b"x")
        return modes(path.parent)
    finally:
        await store.close()


async def test_new_files_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        found = await opened(tmp_path / "data" / "metadata.db")
    finally:
        os.umask(before)
    assert {"metadata.db", "metadata.db-wal", "metadata.db.lock"} <= found.keys()
    assert set(found.values()) == {0o600}
    assert not (tmp_path / "data").stat().st_mode & 0o007


async def test_files_that_others_may_read_are_made_private(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    await opened(path)
    path.chmod(0o644)
    found = await opened(path)
    assert (found["metadata.db"], found["metadata.db-wal"]) == (0o600, 0o600)
