"""The disk that forgets, tears and refuses."""

from __future__ import annotations

import errno
import os
import random

import pytest

from engine.errors import DataDirectoryBusyError
from engine.testing.disk import Fault, SimDisk
from engine.testing.medium import SECTOR


@pytest.fixture
def disk():
    return SimDisk(random.Random(1))


def file_on(mount, path="/d/f", data=b"", synced=True):
    mount.make_directories("/d")
    file = mount.create(path)
    if data:
        file.write([data], 0)
    if synced:
        file.sync()
        mount.sync_directory("/d")
    return file


def test_files_are_real_descriptors(disk):
    file = file_on(disk.mount(), data=b"hello")
    assert os.pread(file.fileno(), 10, 0) == b"hello"
    buffer = bytearray(10)
    assert file.read_into(buffer, 1) == 4
    assert buffer[:4] == b"ello"
    assert file.size() == 5
    file.truncate(2)
    assert file.size() == 2
    file.write([b"ab", memoryview(b"cd")], 4)
    assert disk.read("/d/f") == b"he\0\0abcd"


def test_directories_list_what_is_in_them(disk):
    mount = disk.mount()
    mount.make_directories("/d/e")
    file_on(mount, "/d/f")
    file_on(mount, "/d/e/g")
    assert mount.list("/d") == ["e", "f"]
    assert mount.list("/nowhere") == []
    assert [mount.exists(f"/d/{name}") for name in "efx"] == [True, True, False]
    with pytest.raises(OSError, match="not empty"):
        mount.remove_directory("/d/e")
    mount.unlink("/d/e/g")
    mount.unlink("/d/e/g")
    mount.remove_directory("/d/e")
    assert not mount.exists("/d/e")
    with pytest.raises(FileNotFoundError):
        mount.open("/d/e/g")
    with pytest.raises(FileNotFoundError):
        mount.create("/nowhere/f")
    with pytest.raises(FileNotFoundError):
        mount.rename("/d/x", "/d/y")


def test_a_killed_process_loses_nothing_but_its_disk(disk):
    mount = disk.mount()
    file = file_on(mount, synced=False, data=b"page cache")
    disk.kill()
    for call in (lambda: file.write([b"x"], 0), file.sync, lambda: mount.open("/d/f"), lambda: mount.list("/d")):
        with pytest.raises(OSError, match="dead"):
            call()
    assert disk.mount().open("/d/f").size() == 10


def test_a_power_cut_keeps_what_was_synced(disk):
    file = file_on(disk.mount(), data=b"a" * 5000)
    file.write([b"b" * 5000], 5000)
    disk.crash()
    content = disk.read("/d/f")
    assert content[:5000] == b"a" * 5000
    assert set(content[5000:]) <= {0, ord("b")}


def test_a_power_cut_keeps_any_sectors_of_what_was_not():
    kept, torn, gone = 0, 0, 0
    for seed in range(200):
        disk = SimDisk(random.Random(seed))
        file = file_on(disk.mount(), data=b"a" * SECTOR)
        file.write([b"b" * (4 * SECTOR)], SECTOR)
        disk.crash()
        survived = disk.read("/d/f").count(b"b")
        kept += survived == 4 * SECTOR
        gone += survived == 0
        torn += 0 < survived < 4 * SECTOR
    assert min(kept, torn, gone) > 20


def test_a_name_that_was_not_synced_may_be_gone():
    survived = 0
    for seed in range(100):
        disk = SimDisk(random.Random(seed))
        mount = disk.mount()
        mount.make_directories("/d")
        mount.create("/d/f").sync()
        disk.crash()
        survived += "/d/f" in disk.paths()
    assert 20 < survived < 80


def test_a_rename_is_atomic_over_a_power_cut():
    outcomes = set()
    for seed in range(50):
        disk = SimDisk(random.Random(seed))
        mount = disk.mount()
        file_on(mount, "/d/old", b"1")
        mount.rename("/d/old", "/d/new")
        disk.crash()
        outcomes.add(tuple(disk.paths()))
    assert outcomes == {("/d/old",), ("/d/new",)}


def test_a_failed_sync_loses_data_for_good_and_the_next_one_succeeds():
    lost = 0
    for seed in range(50):
        disk = SimDisk(random.Random(seed))
        file = file_on(disk.mount(), data=b"a" * SECTOR)
        disk.faults.append(Fault("sync", path="/d/f"))
        file.write([b"b" * 4096], SECTOR)
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.sync()
        assert disk.read("/d/f").count(b"b") == 4096, "the page cache still shows it"
        file.drop_cache()
        lost += disk.read("/d/f").count(b"b") < 4096
    assert lost > 20


def test_faults_hit_the_call_they_were_set_for(disk):
    file = file_on(disk.mount(), data=b"")
    disk.faults.append(Fault("write", errno.ENOSPC, "/d/", after=1, times=2))
    file.write([b"1"], 0)
    for _ in range(2):
        with pytest.raises(OSError, match="No space") as raised:
            file.write([b"x" * 1000], 1)
        assert raised.value.errno == errno.ENOSPC
        assert file.size() <= 1001
        file.truncate(1)
    file.write([b"2"], 1)
    assert disk.read("/d/f") == b"12"
    assert disk.statistics.calls["write"] == 4


def test_a_full_disk(disk):
    disk.capacity = 1000
    file = file_on(disk.mount(), data=b"x" * 900)
    with pytest.raises(OSError, match="No space"):
        file.write([b"y" * 200], 900)
    file.write([b"y" * 100], 900)
    assert file.size() == 1000


def test_locks_are_held_by_one_and_end_with_the_process(disk):
    mount = disk.mount()
    lock = mount.lock("/d/lock")
    with pytest.raises(DataDirectoryBusyError):
        mount.lock("/d/lock")
    lock.release()
    old = mount.lock("/d/lock")
    disk.kill()
    fresh = disk.mount().lock("/d/lock")
    old.release()
    with pytest.raises(DataDirectoryBusyError):
        disk.mount().lock("/d/lock")
    fresh.release()


def test_corruption_stays_over_a_power_cut(disk):
    file_on(disk.mount(), data=b"aaaa")
    disk.corrupt("/d/f", 2, 0x01)
    assert disk.read("/d/f") == b"aa`a"
    disk.crash()
    assert disk.read("/d/f") == b"aa`a"
