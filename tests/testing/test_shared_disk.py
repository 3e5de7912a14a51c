"""A disk that several machines share: each loses what is its own, and no more."""

from __future__ import annotations

import random

import pytest

from engine.errors import DataDirectoryBusyError
from engine.testing.disk import MountedDisk, SimDisk

PATH = "/data/a.log"


def shared(seed: int = 0) -> tuple[SimDisk, MountedDisk, MountedDisk]:
    disk = SimDisk(random.Random(seed))
    left, right = disk.mount("left"), disk.mount("right")
    left.make_directories("/data")
    return disk, left, right


def durable_file(disk: MountedDisk, data: bytes) -> None:
    file = disk.create(PATH)
    file.write([data], 0)
    file.sync()
    disk.sync_directory("/data")


def test_each_machine_sees_at_once_what_the_others_write() -> None:
    disk, left, right = shared()
    durable_file(left, b"one")
    right.open(PATH).write([b"two"], 3)
    assert left.open(PATH).size() == 6
    assert disk.read(PATH) == b"onetwo"


@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_takes_what_that_machine_had_not_synced(seed: int) -> None:
    disk, left, right = shared(seed)
    durable_file(left, b"....")
    left.open(PATH).write([b"L"], 0)
    mine = right.open(PATH)
    mine.write([b"R"], 1)
    mine.sync()
    assert disk.read(PATH) == b"LR.."
    disk.crash("left")
    assert disk.read(PATH) in (b"LR..", b".R..")
    with pytest.raises(OSError, match="dead"):
        left.open(PATH)
    assert right.open(PATH).size() == 4, "the other machine goes on"


@pytest.mark.parametrize("seed", range(30))
def test_what_was_written_again_by_another_machine_survives(seed: int) -> None:
    """A zero written ahead, then an entry over it, then the same entry by who takes over and syncs."""
    disk, left, right = shared(seed)
    durable_file(left, b"....")
    old = left.open(PATH)
    old.write([b"\0\0\0\0"], 4)
    old.write([b"DATA"], 4)
    new = right.open(PATH)
    new.write([b"DATA"], 4)
    new.sync()
    disk.crash("left")
    assert disk.read(PATH) == b"....DATA"
    disk.crash()
    assert disk.read(PATH) == b"....DATA"


def test_a_machine_syncs_only_its_own_writes() -> None:
    lost = 0
    for seed in range(30):
        disk, left, right = shared(seed)
        durable_file(left, b"....")
        left.open(PATH).write([b"L"], 0)
        right.open(PATH).sync()
        disk.crash("left")
        lost += disk.read(PATH) == b"...."
    assert 0 < lost < 30


def test_a_synced_directory_holds_the_names_of_all() -> None:
    for seed in range(20):
        disk, left, right = shared(seed)
        left.create("/data/left.log")
        right.create("/data/right.log")
        right.sync_directory("/data")
        disk.crash()
        assert disk.paths() == ["/data/left.log", "/data/right.log"]


def test_a_power_cut_keeps_the_names_that_others_have_made() -> None:
    seen = set()
    for seed in range(30):
        disk, left, right = shared(seed)
        left.create("/data/left.log")
        right.create("/data/right.log")
        disk.crash("left")
        assert "/data/right.log" in disk.paths()
        seen.add(len(disk.paths()))
    assert seen == {1, 2}


def test_locks_go_with_their_machine() -> None:
    disk, left, right = shared()
    left.lock("/data/lock")
    disk.kill("right")
    right = disk.mount("right")
    with pytest.raises(DataDirectoryBusyError):
        right.lock("/data/lock")
    disk.kill("left")
    right.lock("/data/lock").release()
