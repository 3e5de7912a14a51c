"""One flipped bit, a block of zeros, a missing end, a wrong file: equal, or reported, in every file of a directory.

The directories are of a process that was killed after a quiet moment, and of one that was closed. In them are sealed
and active segments of several files, inherited duplicate detection, transactions, and the metadata with their log and
mark. Where nothing was quiet, the windows are those of docs/guarantees.md; tests/storage/test_witness.py has them.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.fuzz.sweep import Damage, everything, files_of, judge, read, some, swaps
from tests.kit.programs import environment, program

PLACES = 110  # of each directory
MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module", params=["killed", "closed"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(request.param) / "data"
    command = program("tests.fuzz.directory_program", root, request.param)
    done = subprocess.run(command, env=environment(), timeout=300, check=False)
    assert done.returncode == (-9 if request.param == "killed" else 0)
    return root


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """Where the damaged copies are."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as place:
        yield Path(place, "data")


async def sweep(directory: Path, scratch: Path, places: Iterable[Damage]) -> None:
    """Judge each; all failures are told."""
    shutil.copytree(directory, scratch)
    sound = await read(scratch)
    assert {topic.rsplit("/")[-1]: len(left["untouched"]) for topic, left in sound.items()} == {
        "loose": 20, "shaped": 120, "transacted": 15,
    }  # fmt: skip
    wrong = [text for damage in places if (text := await judge(directory, damage, scratch, sound)) is not None]
    assert not wrong, "\n".join(wrong)


def test_the_directories_have_files_of_each_kind(directory: Path, request: pytest.FixtureRequest) -> None:
    names = {path.name for path in files_of(directory)}
    assert {"metadata.db", "metadata.mark", "metadata.db.lock", "inherited", "0.log"} <= names
    assert ("metadata.db-wal" in names) == ("killed" in str(directory))
    assert len(list(directory.glob("segments/*/*/shaped/*-0/*.log"))) > 2


@pytest.mark.timeout(600)
async def test_d6_damage_anywhere_is_equal_or_reported(directory: Path, scratch: Path) -> None:
    await sweep(directory, scratch, some(directory, random.Random(20), PLACES))


@pytest.mark.fuzz
@pytest.mark.timeout(0)
async def test_fuzz_damage_everywhere_is_equal_or_reported(directory: Path, scratch: Path) -> None:
    await sweep(directory, scratch, (damage for each in (everything, swaps) for damage in each(directory)))
