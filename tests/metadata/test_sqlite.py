"""What only the durable store promises: restarts, kill -9, failing disks, one owner."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from engine._native.records.rows import Row
from engine.aio.workers import Done, run
from engine.errors import (
    AlreadyClosedError,
    DataDirectoryBusyError,
    DataDirectoryError,
    DiskFullError,
    StorageError,
)
from engine.metadata import image, sqlite
from engine.metadata.commits import ImageCommits
from engine.metadata.image import ImageStep
from engine.metadata.library import find_library
from engine.metadata.lockfile import LockFile, lock_file_of
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import OutcomeUnknownError
from engine.metadata.table import Table
from engine.storage.disk.metadata_commits import NativeCommits


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "metadata.db"


async def test_everything_but_ephemerals_survives_a_restart(opened, path, clock):
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


async def test_a_process_that_ends_may_lose_its_lock_of_the_directory_before_that_of_sqlite(opened, path, clock):
    """The next one has the directory by then, and waits for the rest."""
    store = await opened(path, clock)
    await store.put("/a", b"1")
    await store.close()
    ending = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    ending.execute("PRAGMA locking_mode = EXCLUSIVE")
    ending.execute("BEGIN EXCLUSIVE")
    threading.Timer(0.3, ending.close).start()
    store = await opened(path, clock)
    assert (await store.get("/a")).value == b"1"
    await store.close()


async def test_a_file_that_another_program_has_locked_is_busy(opened, path, clock, monkeypatch):
    monkeypatch.setattr(image, "ENDING_S_MAX", 0.0)
    await (await opened(path, clock)).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DataDirectoryBusyError, match="open in another process"):
            await opened(path, clock)


async def test_l1_versions_and_sequences_go_on_after_a_restart(opened, path, clock):
    store = await opened(path, clock)
    record = await store.put_sequence("/s", b"")
    await store.delete(record.key)
    last = store.version
    await store.close()
    store = await opened(path, clock)
    assert store.version >= last
    assert (await store.put_sequence("/s", b"")).key > record.key
    await store.close()


async def test_a_watch_resumes_over_a_clean_restart_or_starts_over(opened, path, clock):
    store = await opened(path, clock)
    await store.put("/a", b"1")
    seen = store.version
    await store.close()
    store = await opened(path, clock)
    assert store.watch("/", from_version=seen).owed == 0
    assert store.watch("/", from_version=seen - 1).owed == 2
    await store.close()


async def test_concurrent_writes_share_commits(opened, path, clock):
    store = await opened(path, clock)
    await asyncio.gather(*(store.put(f"/{i}", b"") for i in range(100)))
    statistics = store.statistics()
    assert (statistics.writes, statistics.records) == (100, 100)
    assert statistics.commits <= 2
    await store.close()


async def test_close_finishes_what_is_queued(opened, path, clock):
    store = await opened(path, clock)
    puts = [asyncio.ensure_future(store.put(f"/{i}", b"")) for i in range(50)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*puts)
    store = await opened(path, clock)
    assert len(await store.list_keys("", "z")) == 50
    await store.close()


async def test_a_second_opener_is_told_at_once(opened, path, clock):
    store = await opened(path, clock)
    with pytest.raises(DataDirectoryBusyError, match="is open in another engine"):
        await opened(path, clock)
    await store.put("/a", b"")
    await store.close()
    await (await opened(path, clock)).close()


async def test_a_second_process_is_told_at_once(opened, path, clock):
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


async def test_a_cancelled_open_ends_with_its_thread_and_lets_go(opened, path, clock, monkeypatch):
    begun, go = threading.Event(), threading.Event()
    open_image = sqlite._open_image

    def slowly(*arguments: object) -> object:
        begun.set()
        assert go.wait(60)
        return open_image(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sqlite, "_open_image", slowly)
    lock = LockFile(lock_file_of(path))
    opening = asyncio.ensure_future(SqliteMetadataStore.open(path, clock=clock, lock=lock))
    assert await asyncio.to_thread(begun.wait, 60)
    for _ in range(3):
        opening.cancel()
        await asyncio.wait([opening], timeout=0)
    assert not opening.done()
    with pytest.raises(DataDirectoryBusyError):
        LockFile(lock_file_of(path))
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    store = await opened(path, clock)
    await store.put("/a", b"")
    await store.close()


async def test_a_creation_that_was_cut_short_starts_over(opened, path, clock):
    path.parent.mkdir(parents=True)
    path.with_name("metadata.db.new").write_bytes(b"half")
    store = await opened(path, clock)
    await store.put("/a", b"")
    await store.close()


class Failing:
    """Fails commits as a disk would."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def post(self, step: ImageStep, done: Done) -> None:
        asyncio.get_running_loop().call_soon(done, None, self.error)

    def close(self) -> None:
        pass


async def test_a_full_disk_fails_the_write_and_nothing_else(opened, path, clock):
    store = await opened(path, clock)
    await store.put("/a", b"1")
    commits, store._commits_to = store._commits_to, Failing(DiskFullError("full"))
    with pytest.raises(DiskFullError):
        await store.put("/a", b"2")
    assert (await store.get("/a")).value == b"1"
    store._commits_to = commits
    await store.put("/a", b"3")
    await store.close()


async def test_a_session_whose_deletion_failed_refuses_puts_and_is_ended_again(path, clock):
    store = await SqliteMetadataStore.open(path, clock=clock)
    session = await store.session()
    await store.put("/e", b"", session=session)
    commits, store._commits_to = store._commits_to, Failing(DiskFullError("full"))
    with pytest.raises(DiskFullError):
        await session.close()
    store._commits_to = commits
    with pytest.raises(AlreadyClosedError):
        await session.refresh()
    with pytest.raises(AlreadyClosedError):
        await store.put("/f", b"", session=session)
    assert await store.list_keys("", "z") == ["/e"]
    await session.close()
    assert await store.list_keys("", "z") == []
    await store.close()


async def test_a_full_file_system_is_a_disk_full_error_and_is_survived(opened, path, clock):
    store = await opened(path, clock)
    await store.put("/a", b"1")
    image = store._image

    def limit(pages):
        (image._connection or image._database).execute(f"PRAGMA max_page_count = {pages}")

    await run(store._owner, lambda: limit(10))
    with pytest.raises(DiskFullError, match="nothing was written"):
        await store.put("/b", bytes(100_000))
    await store.put("/a", b"2")
    await run(store._owner, lambda: limit(1_000_000))
    await store.put("/b", bytes(100_000))
    await store.close()
    store = await opened(path, clock)
    assert await store.list_keys("", "z") == ["/a", "/b"]
    await store.close()


async def test_a_commit_that_cannot_be_begun_stops_the_store(opened, path, clock):
    store = await opened(path, clock)
    commits, store._commits_to = store._commits_to, None
    results = await asyncio.gather(store.put("/a", b"2"), store.put("/b", b"2"), return_exceptions=True)
    assert [type(r) for r in results] == [AttributeError] * 2
    with pytest.raises(StorageError, match="open it again"):
        await store.put("/a", b"3")
    store._commits_to = commits
    await store.close()
    await (await opened(path, clock)).close()


async def test_an_unknown_outcome_stops_the_store(opened, path, clock):
    store = await opened(path, clock)
    await store.put("/a", b"1")
    store._commits_to.close()
    store._commits_to = Failing(OutcomeUnknownError("sync failed"))
    results = await asyncio.gather(store.put("/a", b"2"), store.put("/b", b"2"), return_exceptions=True)
    assert [type(r) for r in results] == [OutcomeUnknownError] * 2
    with pytest.raises(StorageError, match="open it again"):
        await store.put("/a", b"3")
    assert (await store.get("/a")).value == b"1"
    await store.close()
    await (await opened(path, clock)).close()


LIMITED = """
import asyncio, resource, sys
from engine.clock import SystemClock
from engine.metadata.sqlite import SqliteMetadataStore
from engine.storage.disk.metadata_commits import NativeCommits

async def main(path, native):
    store = await SqliteMetadataStore.open(path, clock=SystemClock(), native=NativeCommits if native else None)
    await store.put("/a", b"1")
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
    for value in (bytes(200_000), b"2"):
        try:
            await store.put("/a", value)
        except Exception as e:
            print(type(e).__name__, e, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2] == "native"))
"""


@pytest.mark.parametrize("kind", ["python", "native"])
async def test_a_commit_that_the_system_fails_to_write_stops_the_store(kind, path, clock):
    """The file may not become larger: the write-ahead log is cut in the middle of a commit."""
    path.parent.mkdir()
    command = [sys.executable, "-c", LIMITED, str(path), kind]
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    said = (await child.communicate())[0].decode().splitlines()
    assert [line.split()[0] for line in said] == ["OutcomeUnknownError", "StorageError"]
    assert "the commit failed" in said[0]
    assert "open it again" in said[1]
    store = await SqliteMetadataStore.open(path, clock=clock)
    assert (await store.get("/a")).value == b"1"
    await store.close()


async def test_an_unwritable_place_is_named_and_not_to_be_tried_again(opened, tmp_path, clock):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataDirectoryError, match=re.escape(f"{tmp_path}/file cannot be written")) as caught:
        await opened(tmp_path / "file" / "metadata.db", clock)
    assert not caught.value.retryable


CHILD = """
import asyncio, sys
from engine.clock import SystemClock
from engine.metadata.sqlite import SqliteMetadataStore
from engine.storage.disk.metadata_commits import NativeCommits

async def main(path, first, native):
    store = await SqliteMetadataStore.open(path, clock=SystemClock(), native=NativeCommits if native else None)
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

asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "native"))
"""


@pytest.mark.parametrize("kind", ["python", "native"])
async def test_d1_acknowledged_puts_survive_kill_9(kind, path, clock):
    confirmed: dict[str, bytes] = {}
    sequences: list[str] = []
    version = 0
    for cycle in range(5):
        lines = _run_and_kill(path, cycle * 100_000, kind, lines_wanted=20 + 37 * cycle)
        for name, n, written, sequence in lines:
            confirmed[f"/k/{name}/{int(n):06d}"] = n.encode() * 50
            sequences.append(sequence)
            version = max(version, int(written))
        store = await SqliteMetadataStore.open(path, clock=clock)
        held = {record.key: record.value for record in await store.list("/k/", "/k0")}
        assert confirmed.items() <= held.items()
        assert store.version >= version
        assert await store.get("/e") is None, "ephemerals end with the process"
        assert set(sequences) <= set(await store.list_keys("/s/", "/s0"))
        await store.close()
    assert len(sequences) == len(set(sequences))
    assert len(confirmed) > 100


def _run_and_kill(path: Path, first: int, kind: str, lines_wanted: int) -> list[list[str]]:
    command = [sys.executable, "-c", CHILD, str(path), str(first), kind]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with child:
        lines = [child.stdout.readline() for _ in range(lines_wanted)]
        os.kill(child.pid, signal.SIGKILL)
        lines += child.stdout.readlines()
    assert all(lines[:lines_wanted])
    return [line.split() for line in lines if line.endswith("\n")]


async def test_records_are_read_and_indexed_beside_the_loop(opened, path, clock, monkeypatch):
    """Of 100,000 topics that takes more than a second, in which the loop would serve nothing."""
    store = await opened(path, clock)
    for n in range(10):
        await store.put(f"/{n}", b"x", indexes={"i": str(n)})
    await store.close()
    threads: list[int] = []

    class Watched(Table):
        def __init__(self, version: int, rows: list[Row]) -> None:
            threads.append(threading.get_ident())
            super().__init__(version, rows)

    monkeypatch.setattr(sqlite, "Table", Watched)
    store = await opened(path, clock)
    assert len(await store.list_index("i", "", "~")) == 10
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    await store.close()


async def test_several_keys_in_an_index_survive_a_restart(opened, path, clock):
    store = await opened(path, clock)
    record = await store.put_sequence("/op", b"v", indexes={"segment": ("7", "9"), "size": "b"})
    await store.close()
    store = await opened(path, clock)
    assert await store.list_index("segment", "", "a") == [("7", record), ("9", record)]
    await store.put(record.key, b"w", indexes={"segment": "9"})
    await store.delete(record.key)
    await store.close()
    store = await opened(path, clock)  # the summary matches
    assert await store.list("/", "0") == await store.list_index("segment", "", "a") == []
    await store.close()


async def test_where_the_library_cannot_be_used_python_commits(path, clock, monkeypatch):
    monkeypatch.setattr("engine.metadata.sqlite.find_library", lambda: None)
    store = await SqliteMetadataStore.open(path, clock=clock, native=NativeCommits)
    assert isinstance(store._commits_to, ImageCommits)
    await store.put("/a", b"1")
    await store.close()
    monkeypatch.undo()
    store = await SqliteMetadataStore.open(path, clock=clock, native=NativeCommits)
    assert isinstance(store._commits_to, NativeCommits) or find_library() is None
    assert (await store.get("/a")).value == b"1"
    await store.close()
