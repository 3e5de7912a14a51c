"""What is read of a closed segment without opening it is what opening it finds, whatever way it was left."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engine.errors import CorruptionError
from engine.limits import MIB
from engine.storage.file.extent import NO_FILES
from engine.storage.segment import Segment
from engine.storage.store import SegmentStore
from tests.kit.entry_images import entry
from tests.kit.stores import log_files, make_store, name

WHOLE = (0xFFFF,)


async def append(segment: Segment, count: int, size: int = 100) -> None:
    for _ in range(count):
        await segment.append(bytearray(entry(segment.next_offset, (b"x" * size,) * 3)))


async def compare(store: SegmentStore) -> None:
    """Measure, and then open: the same."""
    before = [path.read_bytes() for path in log_files(store, name())]
    found = await store.extent(name(), WHOLE)
    assert [path.read_bytes() for path in log_files(store, name())] == before, "nothing is written"
    segment = await store.open(name())
    stated = segment.statistics()
    assert (found.first_offset, found.end_offset) == (stated.first_offset, segment.messages_end)
    assert (found.files, found.size_bytes, found.sealed) == (stated.files, stated.size_bytes, segment.sealed)
    assert list(found.gaps) == [run for run in segment.gaps if run[1] <= found.end_offset]
    await store.close()


@pytest.mark.parametrize("how", ["closed", "sealed", "killed", "torn", "rolled", "never written"])
async def test_the_extent_is_what_opening_finds(tmp_path: Path, how: str) -> None:
    store = make_store(tmp_path / "a", file_size_max=MIB if how == "rolled" else 256 * MIB)
    segment = await store.create(name())
    if how != "never written":
        await append(segment, 50, 20_000 if how == "rolled" else 100)
    if how == "sealed":
        await segment.seal()
    if how in ("killed", "torn"):
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        store = make_store(tmp_path / "b")
        if how == "torn":
            (path,) = log_files(store, name())
            path.write_bytes(path.read_bytes().rstrip(b"\0") + b"torn")
    else:
        await store.close()
        assert (len(log_files(store, name())) > 1) == (how == "rolled")
        store = make_store(tmp_path / "a")
    await compare(store)


async def test_a_relaxed_log_is_measured_with_its_gap(tmp_path: Path) -> None:
    store = make_store(tmp_path / "a")
    await append(await store.create(name(), durability="os"), 10)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    store = make_store(tmp_path / "b")
    await append(await store.open(name(), durability="os"), 10)
    await store.close()
    found = await make_store(tmp_path / "b").extent(name(), WHOLE)
    assert found.gaps.count(0, found.end_offset) == found.end_offset - 60 > 0
    await compare(make_store(tmp_path / "b"))


async def test_no_files_and_damage(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    assert await store.extent(name(), WHOLE) is NO_FILES
    await append(await store.create(name()), 5)
    await store.close()
    (path,) = log_files(store, name())
    path.write_bytes(b"\0" * 400)
    with pytest.raises(CorruptionError, match="position 0"):
        await make_store(tmp_path).extent(name(), WHOLE)
