"""What only the durable store promises: restarts, kill -9, damage, other formats, one owner."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from engine.errors import (
    CorruptionError,
    DataDirectoryBusyError,
    DiskFullError,
    StorageError,
    UnsupportedError,
)
from engine.metadata.image import FORMAT, Image
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import OutcomeUnknownError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "metadata.db"


async def opened(path, clock, **options):
    return await SqliteMetadataStore.open(path, clock=clock, **options)


async def filled(path, clock, count=200):
    store = await opened(path, clock)
    for i in range(count):
        await store.put(f"/r/{i:04d}", f"value {i} ".encode() * 20, indexes={"n": f"{i:04d}"} if i % 2 else None)
    await store.close()


async def test_everything_but_ephemerals_survives_a_restart(path, clock):
    store = await opened(path, clock)
    stat = await store.put("/a", b"1", indexes={"i": "k"})
    gone = await store.put("/b", b"2")
    await store.delete("/b")
    session = await store.session()
    await store.put("/e", b"", session=session)
    version = store.version
    await store.close()
    store = await opened(path, clock)
    assert (await store.get("/a")).stat == stat
    assert await store.list_keys("", "z") == ["/a"]
    assert [k for k, _ in await store.list_index("i", "", "z")] == ["k"]
    assert store.version >= version > gone.version
    await store.close()


async def test_l1_versions_and_sequences_go_on_after_a_restart(path, clock):
    store = await opened(path, clock)
    record = await store.put_sequence("/s", b"")
    await store.delete(record.key)
    last = store.version
    await store.close()
    store = await opened(path, clock)
    assert store.version >= last
    assert (await store.put_sequence("/s", b"")).key > record.key
    await store.close()


async def test_a_watch_resumes_over_a_clean_restart_or_starts_over(path, clock):
    store = await opened(path, clock)
    await store.put("/a", b"1")
    seen = store.version
    await store.close()
    store = await opened(path, clock)
    assert store.watch("/", from_version=seen).owed == 0
    assert store.watch("/", from_version=seen - 1).owed == 2
    await store.close()


async def test_concurrent_writes_share_commits(path, clock):
    store = await opened(path, clock)
    await asyncio.gather(*(store.put(f"/{i}", b"") for i in range(100)))
    statistics = store.statistics()
    assert (statistics.writes, statistics.records) == (100, 100)
    assert statistics.commits <= 2
    await store.close()


async def test_close_finishes_what_is_queued(path, clock):
    store = await opened(path, clock)
    puts = [asyncio.ensure_future(store.put(f"/{i}", b"")) for i in range(50)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*puts)
    store = await opened(path, clock)
    assert len(await store.list_keys("", "z")) == 50
    await store.close()


async def test_a_second_opener_is_told_at_once(path, clock):
    store = await opened(path, clock)
    with pytest.raises(DataDirectoryBusyError, match="is open in another engine"):
        await opened(path, clock)
    await store.put("/a", b"")
    await store.close()
    await (await opened(path, clock)).close()


async def test_a_second_process_is_told_at_once(path, clock):
    store = await opened(path, clock)
    code = (
        "import asyncio, sys\n"
        "from engine.clock import SystemClock\n"
        "from engine.metadata.sqlite import SqliteMetadataStore\n"
        "asyncio.run(SqliteMetadataStore.open(sys.argv[1], clock=SystemClock()))\n"
    )
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(path), stderr=subprocess.PIPE)
    _, text = await other.communicate()
    assert b"DataDirectoryBusyError" in text
    await store.close()


async def test_a_cancelled_open_lets_go(path, clock):
    opening = asyncio.ensure_future(opened(path, clock))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    for _ in range(200):
        try:
            store = await opened(path, clock)
        except DataDirectoryBusyError:
            await asyncio.sleep(0.005)
        else:
            break
    await store.put("/a", b"")
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


async def test_a_creation_that_was_cut_short_starts_over(path, clock):
    path.parent.mkdir(parents=True)
    path.with_name("metadata.db.new").write_bytes(b"half")
    store = await opened(path, clock)
    await store.put("/a", b"")
    await store.close()


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
    """The files as a kill -9 leaves them: the write-ahead log not folded in."""
    store = await opened(path, clock)
    for i in range(count):
        await store.put(f"/w/{i:04d}", bytes([i]) * 100)
    copy = tmp_path / "crashed"
    copy.mkdir()
    for name in ("metadata.db", "metadata.db-wal"):
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


async def test_d6_a_torn_last_transaction_is_no_damage(path, clock, tmp_path):
    crashed = await crashed_copy(path, clock, tmp_path)
    log = crashed.with_name("metadata.db-wal")
    database_bytes, log_bytes = crashed.read_bytes(), log.read_bytes()
    last = _last_commit_start(log_bytes, 24 + 4096)
    for cut in (last, last + 1, last + 24, last + 2000, len(log_bytes) - 1):
        crashed.write_bytes(database_bytes)
        log.write_bytes(log_bytes[:cut])
        records, _ = await records_of(crashed, clock)
        assert len(records) == 39
    crashed.write_bytes(database_bytes)
    log.write_bytes(log_bytes[:last] + bytes(len(log_bytes) - last))
    assert len((await records_of(crashed, clock))[0]) == 39


class Failing:
    """Stands before the image and fails commits as a disk would."""

    def __init__(self, image: Image, error: Exception) -> None:
        self.image, self.error = image, error

    def commit(self, changes):
        raise self.error

    def close(self):
        self.image.close()


async def test_a_full_disk_fails_the_write_and_nothing_else(path, clock):
    store = await opened(path, clock)
    await store.put("/a", b"1")
    image, store._image = store._image, Failing(store._image, DiskFullError("full"))
    with pytest.raises(DiskFullError):
        await store.put("/a", b"2")
    assert (await store.get("/a")).value == b"1"
    store._image = image
    await store.put("/a", b"3")
    await store.close()


async def test_a_full_file_system_is_a_disk_full_error_and_is_survived(path, clock):
    store = await opened(path, clock)
    await store.put("/a", b"1")

    def limit(pages):
        store._image._database.execute(f"PRAGMA max_page_count = {pages}")

    loop = asyncio.get_running_loop()
    await loop.run_in_executor(store._executor, limit, 10)
    with pytest.raises(DiskFullError, match="nothing was written"):
        await store.put("/b", bytes(100_000))
    await store.put("/a", b"2")
    await loop.run_in_executor(store._executor, limit, 1_000_000)
    await store.put("/b", bytes(100_000))
    await store.close()
    records, _ = await records_of(path, clock)
    assert [record.key for record in records] == ["/a", "/b"]


async def test_an_unknown_outcome_stops_the_store(path, clock):
    store = await opened(path, clock)
    await store.put("/a", b"1")
    store._image = Failing(store._image, OutcomeUnknownError("sync failed"))
    results = await asyncio.gather(store.put("/a", b"2"), store.put("/b", b"2"), return_exceptions=True)
    assert [type(r) for r in results] == [OutcomeUnknownError] * 2
    with pytest.raises(StorageError, match="open it again"):
        await store.put("/a", b"3")
    assert (await store.get("/a")).value == b"1"
    await store.close()
    await (await opened(path, clock)).close()


async def test_an_unwritable_place_is_a_storage_error(tmp_path, clock):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError):
        await opened(tmp_path / "file" / "metadata.db", clock)


CHILD = """
import asyncio, sys
from engine.clock import SystemClock
from engine.metadata.sqlite import SqliteMetadataStore

async def main(path, first):
    store = await SqliteMetadataStore.open(path, clock=SystemClock())
    async def writer(name):
        n = first
        while True:
            stat = await store.put(f"/k/{name}/{n:06d}", f"{n}".encode() * 50)
            record = await store.put_sequence("/s", b"")
            print(name, n, stat.version, record.key, flush=True)
            n += 1
    session = await store.session()
    await store.put("/e", b"", session=session)
    await asyncio.gather(*(writer(i) for i in range(5)))

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def test_d1_acknowledged_puts_survive_kill_9(path, clock, tmp_path):
    confirmed: dict[str, bytes] = {}
    sequences: list[str] = []
    version = 0
    for cycle in range(5):
        lines = _run_and_kill(path, cycle * 100_000, lines_wanted=20 + 37 * cycle)
        for name, n, written, sequence in lines:
            confirmed[f"/k/{name}/{int(n):06d}"] = n.encode() * 50
            sequences.append(sequence)
            version = max(version, int(written))
        store = await opened(path, clock)
        held = {record.key: record.value for record in await store.list("/k/", "/k0")}
        assert confirmed.items() <= held.items()
        assert store.version >= version
        assert await store.get("/e") is None, "ephemerals end with the process"
        assert set(sequences) <= set(await store.list_keys("/s/", "/s0"))
        await store.close()
    assert len(sequences) == len(set(sequences))
    assert len(confirmed) > 100


def _run_and_kill(path: Path, first: int, lines_wanted: int) -> list[list[str]]:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path), str(first)], stdout=subprocess.PIPE, text=True)
    with child:
        lines = [child.stdout.readline() for _ in range(lines_wanted)]
        os.kill(child.pid, signal.SIGKILL)
        lines += child.stdout.readlines()
    assert all(lines[:lines_wanted])
    return [line.split() for line in lines if line.endswith("\n")]
