"""What only the durable store promises: restarts, kill -9, failing disks, one owner."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.aio.workers import run
from engine.errors import (
    DataDirectoryBusyError,
    DataDirectoryError,
    DiskFullError,
    StorageError,
)
from engine.metadata.image import Image
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import OutcomeUnknownError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "metadata.db"


async def opened(path, clock, **options):
    return await SqliteMetadataStore.open(path, clock=clock, **options)


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


async def test_a_creation_that_was_cut_short_starts_over(path, clock):
    path.parent.mkdir(parents=True)
    path.with_name("metadata.db.new").write_bytes(b"half")
    store = await opened(path, clock)
    await store.put("/a", b"")
    await store.close()


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


async def test_an_unwritable_place_is_named_and_not_to_be_tried_again(tmp_path, clock):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataDirectoryError, match=re.escape(f"{tmp_path}/file cannot be written")) as caught:
        await opened(tmp_path / "file" / "metadata.db", clock)
    assert not caught.value.retryable


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


async def test_several_keys_in_an_index_survive_a_restart(path, clock):
    store = await SqliteMetadataStore.open(path, clock=clock)
    record = await store.put_sequence("/op", b"v", indexes={"segment": ("7", "9"), "size": "b"})
    await store.close()
    store = await SqliteMetadataStore.open(path, clock=clock)
    assert await store.list_index("segment", "", "a") == [("7", record), ("9", record)]
    await store.put(record.key, b"w", indexes={"segment": "9"})
    await store.delete(record.key)
    await store.close()
    store = await SqliteMetadataStore.open(path, clock=clock)  # what it sums up is right
    assert await store.list("/", "0") == await store.list_index("segment", "", "a") == []
    await store.close()
