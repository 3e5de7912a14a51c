"""What the durable store says of damaged, foreign or newer files: an error that names them, never wrong data."""

from __future__ import annotations

import random
import shutil
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import CorruptionError, UnsupportedError
from engine.metadata.image import FORMAT
from engine.metadata.sqlite import SqliteMetadataStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "metadata.db"


async def opened(path, clock):
    return await SqliteMetadataStore.open(path, clock=clock)


async def filled(path, clock, count=200):
    store = await opened(path, clock)
    for i in range(count):
        await store.put(f"/r/{i:04d}", f"value {i} ".encode() * 20, indexes={"n": f"{i:04d}"} if i % 2 else None)
    await store.close()


async def test_a_newer_format_is_refused_by_name(path, clock):
    await filled(path, clock, 3)
    database = sqlite3.connect(path)
    _, version, rows, digest, _ = database.execute("SELECT * FROM meta").fetchone()
    checksum = zlib.crc32(f"{FORMAT + 1} {version} {rows} {digest}".encode())
    database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    database.execute("UPDATE meta SET format = ?, checksum = ?", (FORMAT + 1, checksum))
    database.commit()
    database.close()
    with pytest.raises(UnsupportedError, match="format 2"):
        await opened(path, clock)


@pytest.mark.parametrize("content", [b"", b"x", b"SQLite format 3\0", bytes(8192), b"no database" * 1000])
async def test_d6_a_file_that_is_none_is_corruption(path, clock, content):
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(CorruptionError, match=r"metadata\.db"):
        await opened(path, clock)
    assert path.read_bytes() == content


async def test_d6_another_programs_database_is_refused(path, clock):
    path.parent.mkdir(parents=True)
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE t (x)")
    database.close()
    with pytest.raises(CorruptionError):
        await opened(path, clock)


async def test_d6_a_log_without_its_database_is_corruption(path, clock):
    path.parent.mkdir(parents=True)
    path.with_name("metadata.db-wal").write_bytes(b"something")
    with pytest.raises(CorruptionError, match="missing"):
        await opened(path, clock)


async def records_of(path, clock):
    store = await opened(path, clock)
    try:
        indexed = [(k, r.key) for k, r in await store.list_index("n", "", "z")]
        return await store.list("", "\U0010ffff"), indexed
    finally:
        await store.close()


async def test_d6_no_flipped_bit_in_the_file_changes_what_is_read(path, clock):
    await filled(path, clock)
    good = await records_of(path, clock)
    image = path.read_bytes()
    rng = random.Random(7)
    refused = []
    for _ in range(120):
        at, bit = rng.randrange(len(image)), rng.randrange(8)
        damaged = bytearray(image)
        damaged[at] ^= 1 << bit
        path.write_bytes(damaged)
        for name in ("-wal", "-shm"):
            path.with_name(path.name + name).unlink(missing_ok=True)
        try:
            assert await records_of(path, clock) == good, f"byte {at} bit {bit}"
        except (CorruptionError, UnsupportedError) as e:
            refused.append(str(e))
    assert len(refused) > 60
    assert all("metadata.db" in text for text in refused)


async def test_d6_a_schema_that_is_no_text_is_corruption(path, clock):
    """SQLite names it in its error, and Python cannot decode that."""
    await filled(path, clock, 3)
    image = path.read_bytes()
    good, refused = await records_of(path, clock), []
    start = image.index(b"CREATE TABLE records")
    for at in range(start - 20, start + 60, 2):
        path.write_bytes(image[:at] + bytes([image[at] ^ 0x80]) + image[at + 1 :])
        try:
            assert await records_of(path, clock) == good  # a column that is never selected by name
        except CorruptionError as e:
            refused.append(str(e))
    assert any("text that is not UTF-8" in text for text in refused)


async def test_d6_a_cut_or_zeroed_file_is_corruption(path, clock):
    await filled(path, clock)
    image = path.read_bytes()
    for damaged in (image[:4096], image[: len(image) // 2], image[:-4096], image[:8192] + bytes(len(image) - 8192)):
        path.write_bytes(damaged)
        with pytest.raises(CorruptionError):
            await opened(path, clock)


async def test_d6_a_stale_page_is_corruption(path, clock):
    await filled(path, clock)
    before = path.read_bytes()
    store = await opened(path, clock)
    await store.put("/r/0000", b"value X " * 20)
    await store.close()
    after = path.read_bytes()
    pages = [at for at in range(4096, len(after), 4096) if before[at : at + 4096] != after[at : at + 4096]]
    assert pages
    for at in pages:
        path.write_bytes(after[:at] + before[at : at + 4096] + after[at + 4096 :])
        with pytest.raises(CorruptionError):
            await opened(path, clock)


async def crashed_copy(path, clock, tmp_path, count=40):
    """The files as a kill -9 leaves them: the write-ahead log not folded in. `before`: the mark before the last put."""
    store = await opened(path, clock)
    copy = tmp_path / "crashed"
    copy.mkdir()
    for i in range(count):
        shutil.copy(path.with_name("metadata.mark"), copy / "before")
        await store.put(f"/w/{i:04d}", bytes([i]) * 100)
    for name in ("metadata.db", "metadata.db-wal", "metadata.mark"):
        shutil.copy(path.with_name(name), copy / name)
    await store.close()
    return copy / "metadata.db"


async def test_d1_what_only_the_log_holds_survives(path, clock, tmp_path):
    crashed = await crashed_copy(path, clock, tmp_path)
    records, _ = await records_of(crashed, clock)
    assert len(records) == 40


async def test_d6_damage_in_the_log_is_not_its_end(path, clock, tmp_path):
    crashed = await crashed_copy(path, clock, tmp_path)
    log = crashed.with_name("metadata.db-wal")
    database_bytes, log_bytes = crashed.read_bytes(), log.read_bytes()
    good = await records_of(crashed, clock)
    frame = 24 + 4096
    last_commit = _last_commit_start(log_bytes, frame)
    rng = random.Random(3)
    for at in [5, 17, 32, 40, 50, *(rng.randrange(32, last_commit) for _ in range(60))]:
        damaged = bytearray(log_bytes)
        damaged[at] ^= 1 << rng.randrange(8)
        crashed.write_bytes(database_bytes)
        log.write_bytes(damaged)
        with pytest.raises(CorruptionError, match=r"metadata\.db-wal is damaged"):
            await opened(crashed, clock)
        assert log.read_bytes() == bytes(damaged), "the evidence is left alone"
    log.write_bytes(log_bytes)
    assert await records_of(crashed, clock) == good


def _last_commit_start(log: bytes, frame: int) -> int:
    """Where the frames of the last transaction begin."""
    commits = [at for at in range(32, len(log) - frame + 1, frame) if log[at + 4 : at + 8] != bytes(4)]
    return commits[-2] + frame


def _torn(log: bytes) -> Iterator[bytes]:
    """What a write that was torn may leave of the last transaction."""
    last = _last_commit_start(log, 24 + 4096)
    yield from (log[:cut] for cut in (last, last + 1, last + 24, last + 2000, len(log) - 1))
    yield log[:last] + bytes(len(log) - last)


async def test_d6_a_torn_last_transaction_is_no_damage(path, clock, tmp_path):
    """It was never confirmed: the mark is written behind the commit."""
    crashed = await crashed_copy(path, clock, tmp_path)
    log, mark = crashed.with_name("metadata.db-wal"), crashed.with_name("metadata.mark")
    database_bytes, mark_bytes = crashed.read_bytes(), crashed.with_name("before").read_bytes()
    for torn in list(_torn(log.read_bytes())):
        crashed.write_bytes(database_bytes)
        mark.write_bytes(mark_bytes)
        log.write_bytes(torn)
        records, _ = await records_of(crashed, clock)
        assert len(records) == 39


async def test_d6_a_confirmed_last_transaction_that_is_gone_is_corruption(path, clock, tmp_path):
    crashed = await crashed_copy(path, clock, tmp_path)
    log = crashed.with_name("metadata.db-wal")
    database_bytes, log_bytes = crashed.read_bytes(), log.read_bytes()
    for torn in [*_torn(log_bytes), b""]:
        crashed.write_bytes(database_bytes)
        log.write_bytes(torn)
        for _ in range(2):  # once more: nothing that tells of it is lost by the first look
            with pytest.raises(CorruptionError, match=r"metadata\.db is at version .*metadata\.mark says"):
                await opened(crashed, clock)
        assert not torn or log.read_bytes() == torn, "the evidence is left alone"
    crashed.write_bytes(database_bytes)
    log.write_bytes(log_bytes)
    assert len((await records_of(crashed, clock))[0]) == 40
