"""The mark beside the metadata file: what is lost of either is reported or harmless, and never silently older."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.errors import CorruptionError, DiskFullError, EngineError
from engine.metadata.image import Image
from engine.metadata.mark import SLOT_POSITIONS, SLOT_SIZE, Mark, read_version
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.witness import MarkPolicy
from engine.storage.disk.metadata_commits import NativeCommits

NAMES = ("metadata.db", "metadata.db-wal", "metadata.mark")
Files = dict[str, bytes]
Records = list[tuple[str, bytes]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "metadata.db"


def read(path: Path) -> Files:
    """What a kill now would leave."""
    return {name: found.read_bytes() for name in NAMES if (found := path.with_name(name)).exists()}


def write(path: Path, files: Files) -> None:
    for name in NAMES:
        path.with_name(name).unlink(missing_ok=True)
    for name, content in files.items():
        path.with_name(name).write_bytes(content)


def load(path: Path) -> Records:
    """Open it as a start does. Raises EngineError."""
    image = Image(path)
    rows = image.load()
    image.close()
    return [(row.record.key, row.record.value) for row in rows]


async def killed(path: Path, opened: Callable, clock: object) -> tuple[Files, Files]:
    """A store of a few commits, as a kill leaves it before its last commit and behind it."""
    store = await opened(path, clock)
    await store.put("/topics/a/b/c", b"a topic")
    await store.put("/folded", b"in the file")
    await store.close()
    store = await opened(path, clock)
    for i in range(3):
        await store.put(f"/acks/{i}", bytes([i]) * 50)
    before = read(path)
    await store.delete("/acks/0")
    after = read(path)
    await store.close()
    return before, after


def spread(size: int, step: int) -> Iterator[int]:
    """Some of the first bytes and of the rest, and the last ones; with a step of 1, all."""
    yield from range(0, min(size, 64), min(step, 5))
    yield from range(64, size, step)
    yield from range(max(64, size - 4), size)


def last_commit(log: bytes) -> int:
    """Where the frames of the last transaction begin."""
    frame = 24 + 4096
    commits = [at for at in range(32, len(log) - frame + 1, frame) if log[at + 4 : at + 8] != bytes(4)]
    return commits[-2] + frame


def damaged(files: Files, step: int) -> Iterator[tuple[str, Files]]:
    """Everything that can befall one of the files, and what it is called."""
    for name, content in files.items():
        start = last_commit(content) if name.endswith("-wal") else 0
        for at in spread(len(content) - start, step):
            flipped = bytearray(content)
            flipped[start + at] ^= 1 << at % 8
            yield f"{name}: bit {at % 8} of byte {start + at} flipped", {**files, name: bytes(flipped)}
            yield f"{name}: cut at {start + at}", {**files, name: content[: start + at]}
        for at in range(start, len(content), 512):
            zeroed = content[:at] + bytes(512) + content[at + 512 :]
            yield f"{name}: 512 bytes from {at} zeroed", {**files, name: zeroed[: len(content)]}
        yield f"{name} removed", {k: v for k, v in files.items() if k != name}


async def sweep(path: Path, opened: Callable, clock: object, step: int) -> None:
    _, files = await killed(path, opened, clock)
    write(path, files)
    whole = load(path)
    reported: list[str] = []
    for what, changed in damaged(files, step):
        write(path, changed)
        try:
            found = load(path)
        except EngineError as e:
            reported.append(str(e))
        else:
            assert found == whole, what
    assert len(reported) > 50
    assert all("metadata." in text for text in reported)


async def native(path: Path, clock: object) -> SqliteMetadataStore:
    return await SqliteMetadataStore.open(path, clock=clock, native=NativeCommits)


async def test_d4_every_damage_of_a_killed_store_is_reported_or_harmless(path, clock) -> None:
    await sweep(path, native, clock, 797)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
async def test_d4_the_same_byte_by_byte(path, clock) -> None:
    await sweep(path, native, clock, 1)


async def test_d4_older_files_are_refused(path, opened, clock) -> None:
    """Each alone, or file and log together; all of them together are another, older state, and whole."""
    before, after = await killed(path, opened, clock)
    for older in (["metadata.db-wal"], ["metadata.db", "metadata.db-wal"]):
        write(path, {**after, **{name: before[name] for name in older}})
        with pytest.raises(CorruptionError, match="put back the right files, or `engine inspect --repair"):
            load(path)
    write(path, before)
    assert len(load(path)) == 5
    write(path, {**after, "metadata.mark": before["metadata.mark"]})
    assert len(load(path)) == 4


async def test_d4_another_stores_files_are_refused(path, opened, clock, tmp_path) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "metadata.db"
    store = await opened(other, clock)
    for i in range(20):
        await store.put(f"/r/{i}", b"")
    await store.close()
    await (await opened(path, clock)).close()
    shutil.copy(other, path)
    with pytest.raises(CorruptionError, match="belongs to another metadata file"):
        load(path)


async def test_a_store_of_a_build_from_before_marks_gets_one(path, opened, clock) -> None:
    _, files = await killed(path, opened, clock)
    del files["metadata.db-wal"], files["metadata.mark"]
    write(path, files)
    forget_mark(path)
    assert read_version(path.with_name("metadata.mark")) is None
    found = load(path)
    assert path.with_name("metadata.mark").stat().st_mode & 0o777 == 0o600
    path.with_name("metadata.mark").unlink()
    with pytest.raises(CorruptionError, match=r"metadata\.mark is missing"):
        load(path)
    assert len(found) == 2


async def test_a_creation_that_is_cut_short_at_any_point_is_begun_again(path, opened, clock) -> None:
    """File, then mark, then the file says that it has one: without that, whatever mark is there says nothing new."""
    store = await opened(path, clock)
    await store.close()
    files = read(path)
    mark = files["metadata.mark"]
    for left in (None, b"", mark[:40], mark):  # the mark appears whole; a careless copy may not
        write(path, files)
        forget_mark(path)
        path.with_name("metadata.mark").unlink()
        if left is not None:
            path.with_name("metadata.mark").write_bytes(left)
        path.with_name("metadata.mark.new").write_bytes(b"half")
        assert load(path) == []
        assert load(path) == []


async def test_d4_a_file_from_before_marks_in_place_of_a_newer_one_is_refused(path, opened, clock) -> None:
    await (await opened(path, clock)).close()
    forget_mark(path)
    older = path.read_bytes()
    path.with_name("metadata.mark").unlink()
    store = await opened(path, clock)
    await store.put("/r", b"")
    await store.close()
    path.write_bytes(older)
    with pytest.raises(CorruptionError, match="it is an older copy"):
        load(path)


def forget_mark(path: Path) -> None:
    """As a build from before marks would have made the file."""
    database = sqlite3.connect(path)
    database.execute("DROP TABLE mark")
    database.commit()
    database.close()


async def test_a_build_that_knows_no_marks_may_have_gone_on_meanwhile(path, opened, clock) -> None:
    _, files = await killed(path, opened, clock)
    write(path, files)
    load(path)
    older = path.with_name("metadata.mark").read_bytes()
    store = await opened(path, clock)
    await store.put("/later", b"")
    await store.close()
    path.with_name("metadata.mark").write_bytes(older)
    assert ("/later", b"") in load(path)
    path.write_bytes(files["metadata.db"])
    with pytest.raises(CorruptionError):
        load(path)  # by then the mark has caught up


async def test_a_renewed_mark_takes_the_file_as_it_is(path, opened, clock) -> None:
    before, after = await killed(path, opened, clock)
    write(path, {**after, "metadata.db": before["metadata.db"], "metadata.db-wal": b""})
    with pytest.raises(CorruptionError):
        load(path)
    image = Image(path, MarkPolicy.RENEW)
    kept = [row.record.key for row in image.load()]
    image.close()
    assert [key for key, _ in load(path)] == kept


async def test_the_mark_is_one_commit_behind_when_its_newest_slot_is_torn(path, opened, clock) -> None:
    _, files = await killed(path, opened, clock)
    mark = files["metadata.mark"]
    versions = []
    for position in SLOT_POSITIONS:
        torn = mark[:position] + bytes(SLOT_SIZE) + mark[position + SLOT_SIZE :]
        write(path, {**files, "metadata.mark": torn})
        versions.append(read_version(path.with_name("metadata.mark")))
        load(path)
    assert sorted(versions) == [5, 6]


async def test_the_mark_is_synced_when_the_store_falls_quiet(path, clock, monkeypatch) -> None:
    """Once for a burst, however long it was."""
    synced = asyncio.Event()
    loop = asyncio.get_running_loop()
    count = 0
    sync = Mark.sync

    def counted(self: Mark) -> None:
        nonlocal count
        count += 1
        sync(self)
        loop.call_soon_threadsafe(synced.set)

    store = await SqliteMetadataStore.open(path, clock=clock, native=NativeCommits)
    monkeypatch.setattr(Mark, "sync", counted)
    for i in range(5):
        await store.put(f"/r/{i}", b"")
    await asyncio.wait_for(synced.wait(), 60)
    assert 1 <= count <= 5
    await store.close()


async def test_a_full_disk_when_the_mark_is_made_leaves_nothing_half_done(path, opened, clock, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskFullError, match=r"metadata\.db"):
            await opened(path, clock)
    store = await opened(path, clock)
    await store.put("/r", b"")
    await store.close()
    assert load(path) == [("/r", b"")]


async def test_commits_are_good_where_the_mark_cannot_be_written(path, opened, clock, caplog) -> None:
    store = await opened(path, clock)
    mark = store._image.mark
    with path.open("rb") as read_only:
        spare = os.dup(mark._descriptor)
        os.dup2(read_only.fileno(), mark._descriptor)
        with caplog.at_level(logging.ERROR):
            await store.put("/r", b"good")
            await store.put("/r", b"better")
        os.dup2(spare, mark._descriptor)
        os.close(spare)
    await store.close()
    assert caplog.text.count("metadata.mark cannot be written") == 1
    assert load(path) == [("/r", b"better")]
