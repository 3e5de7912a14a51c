"""Power cuts in the modes that do not sync before they acknowledge: what comes later reaches every reader (D4)."""

from __future__ import annotations

import os
import random
import subprocess

import pytest

from tests.kit.programs import environment, program
from tests.power.ext4_image import Ext4Image

COUNT = 150
MODES = ("interval", "os")


def live_until_the_cut(disk: Ext4Image, mode: str, life: int, count: int, checkpoint: str) -> str:
    """One life, in which every reader gets all that is sent; its checkpoint. The cut comes when all is acknowledged."""
    command = program("tests.power.relaxed_program", disk.mount_point / "data", mode, life, count, checkpoint)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        said = running.stdout.readline().strip()
        disk.cut_power()
        running.kill()
        told = running.stderr.read()
    assert said, f"{mode}, life {life}:\n{told}"
    disk.unmount()
    disk.mount()
    return said


def live(disk: Ext4Image, mode: str, counts: list[int]) -> None:
    """So many messages in each life; with none the power is cut twice in a row."""
    checkpoint = ""
    for life, count in enumerate(counts):
        checkpoint = live_until_the_cut(disk, mode, life, count, checkpoint)


@pytest.mark.parametrize("disk", [64], indirect=True)
@pytest.mark.parametrize("mode", MODES)
def test_d4_what_is_sent_after_a_power_cut_reaches_every_reader(disk: Ext4Image, mode: str) -> None:
    live(disk, mode, [COUNT, 0, COUNT])


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("disk", [256], indirect=True)
@pytest.mark.parametrize("mode", MODES)
def test_fuzz_what_is_sent_after_power_cuts_reaches_every_reader(disk: Ext4Image, mode: str) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    rng = random.Random(seed)
    live(disk, mode, [rng.choice([0, 1, COUNT, rng.randrange(20_000)]) for _ in range(40)])
