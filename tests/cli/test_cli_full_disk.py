"""`engine import` onto a disk that is full: a real one, a file system in memory that only this test's programs see."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.programs import environment

ROWS = 6_000
VALUE_BYTES = 1_000  # twice as much as the disk has
# The disk is full, then it grows; the file with what is there lies outside of it.
SCRIPT = """
mount -t tmpfs -o size=4m tmpfs "$1/disk" || exit 77
"$2" -m engine import t "$1/in.jsonl" --data "$1/disk/data"
echo "$?"
mount -o remount,size=64m "$1/disk"
"$2" -m engine import t "$1/in.jsonl" --data "$1/disk/data" --json || exit
"$2" -m engine export t "$1/out.jsonl" --data "$1/disk/data" --columns value
"""


def test_an_import_goes_on_when_there_is_space_again(tmp_path: Path):
    """It ends with the disk's error, and says how to complete it; nothing is lost, and nothing is there twice."""
    rng = random.Random(1)
    lines = [json.dumps({"value": f"{n} {rng.randbytes(VALUE_BYTES // 2).hex()}"}) for n in range(ROWS)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "disk").mkdir()
    alone = ["unshare", "-m" if os.geteuid() == 0 else "-Urm", "sh", "-c", SCRIPT, "sh", tmp_path, sys.executable]
    done = subprocess.run(alone, env=environment(), capture_output=True, text=True, timeout=110)
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    failed, said = done.stdout.split("\n", 1)
    assert failed == "1", done.stderr
    assert "no space left on the device" in done.stderr
    assert "repeat the command to complete it" in done.stderr
    found = json.loads(said)
    assert found["before"] + found["sent"] == ROWS  # none before, if the first commit needs more than there is
    assert sorted((tmp_path / "out.jsonl").read_text().splitlines()) == sorted(
        json.dumps(json.loads(line), separators=(",", ":")) for line in lines
    )
