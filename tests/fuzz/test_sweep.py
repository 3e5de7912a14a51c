"""One flipped bit, a block of zeros, a missing end, a wrong file: equal, or reported, in every file of a directory.

The directories are of a process that was killed after a quiet moment, and of one that was closed. In them are sealed
and active segments of several files, inherited duplicate detection, transactions, and the metadata with their log and
mark. Where nothing was quiet, the windows are those of docs/guarantees.md; tests/storage/test_witness.py has them.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

import engine
from tests.fuzz.directory_program import CONFIG
from tests.fuzz.sweep import Damage, Parts, files_of, read, some, sweep
from tests.kit.programs import environment, program

PLACES = 110  # of each directory


@pytest.fixture(scope="module", params=["killed", "closed"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(request.param) / "data"
    command = program("tests.fuzz.directory_program", root, request.param)
    done = subprocess.run(command, env=environment(), timeout=300, check=False)
    assert done.returncode == (-9 if request.param == "killed" else 0)
    return root


async def sound_reading(directory: Path, tmp_path: Path) -> dict[str, int]:
    """How many messages a subscription that never was used has left, by topic."""
    shutil.copytree(directory, tmp_path / "copy")
    return {t.rsplit("/")[-1]: len(left["untouched"]) for t, left in (await read(tmp_path / "copy")).items()}


def test_the_directories_have_files_of_each_kind(directory: Path, request: pytest.FixtureRequest) -> None:
    names = {path.name for path in files_of(directory)}
    assert {"metadata.db", "metadata.mark", "metadata.db.lock", "inherited", "0.log"} <= names
    assert ("metadata.db-wal" in names) == ("killed" in str(directory))
    assert len(list(directory.glob("segments/*/*/shaped/*-0/*.log"))) > 1


@pytest.mark.timeout(600)
async def test_d6_damage_anywhere_is_equal_or_reported(directory: Path, tmp_path: Path) -> None:
    later = 7 if "killed" in str(directory) else 0
    expected = {"loose": 14 + later, "shaped": 46 + later, "transacted": 15 + later}
    assert await sound_reading(directory, tmp_path) == expected
    wrong: list[str] = []
    async for _ in sweep(directory, some(directory, random.Random(20), PLACES), wrong):
        pass
    assert not wrong, "\n".join(wrong)


async def test_the_parts_alone_accept_no_other_content(directory: Path, tmp_path: Path) -> None:
    """What they find decides for most of the places: an intact file with something else in it is not accepted."""
    parts, scratch = Parts(directory), tmp_path / "copy"
    await parts.learn(scratch)
    changed = tmp_path / "changed"
    shutil.copytree(directory, changed)
    async with engine.open_async(changed, config=CONFIG, shared=False) as e, await e.producer("transacted") as producer:
        await producer.send(b"more", key=b"0")
    for path in (Path("metadata.db"), next(path for path in files_of(directory) if "transacted" in path.parts)):
        folder = path.parent

        def harm(root: Path, folder: Path = folder) -> None:
            for old in (root / folder).glob("*.*"):
                old.unlink()
            for new in (changed / folder).glob("*.*"):
                shutil.copy(new, root / folder)

        assert await parts.accepts(Damage("none", (path,), 0, lambda root: None), scratch)
        assert not await parts.accepts(Damage("other", (path,), 0, harm), scratch)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
def test_fuzz_damage_everywhere_is_equal_or_reported(directory: Path) -> None:
    parts = os.cpu_count() or 1
    commands = [program("tests.fuzz.sweep", directory, part, parts) for part in range(parts)]
    running = [subprocess.Popen(c, env=environment(), stdout=subprocess.PIPE, text=True) for c in commands]
    said = [process.communicate()[0] for process in running]
    assert all(process.returncode == 0 for process in running), "\n".join(said)
