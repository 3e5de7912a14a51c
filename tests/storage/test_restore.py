"""A segment that survives the loss of its machines: its files are restored from logs of objects, and opened."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.aio.workers import InlineWorkers
from engine.errors import CorruptionError
from engine.metadata.memory import MemoryMetadataStore
from engine.storage.disk.disk import OsDisk
from engine.storage.file.format import Opening
from engine.storage.file.logfile import parse_file_name
from engine.storage.file.restore import restore
from engine.storage.objects.format import WalGroup
from engine.storage.objects.references import SegmentObjects
from engine.storage.objects.takeover import close, recovered
from engine.storage.objects.wal import ObjectWal
from engine.storage.objects.writer import WalConfig
from engine.storage.segment import Segment
from engine.storage.store import SegmentStore
from engine.testing.clock import FakeClock
from engine.testing.objects import FaultyObjectStore
from tests.kit.stores import make_store, name, read_blocks
from tests.storage.test_succession import append, messages, own

FAST = WalConfig(flush_s=0.01)
SEGMENT = "/topics/public/default/t/segments/0"


class Machines:
    """An object store, metadata, and machines that lose their disks one behind the other."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._store = FaultyObjectStore(random.Random(1))
        self._metadata = MemoryMetadataStore(FakeClock())
        self.objects = SegmentObjects()
        self.term = 0

    def directory(self) -> Path:
        return self._root / f"machine-{self.term}"

    async def next(self) -> Machine:
        """Another machine, with an empty disk, takes the segment over."""
        self.term += 1
        rng = random.Random(self.term)
        wal = await ObjectWal.open(
            self._store, self._metadata, "c", f"s{self.term}", "engine://x", rng=rng, config=FAST
        )
        closed = await close(wal, self.objects)
        store = make_store(self.directory(), file_size_max=4096)
        groups = recovered(wal, closed, SEGMENT)
        names = await restore(OsDisk(), InlineWorkers(), store.directory(name()), groups)
        segment, _ = await own(store, self.term)
        self.objects = closed.served(wal.session, wal.next_n, self.term)
        return Machine(store, segment, wal, self.term, names)


class Machine:
    """The owner of a segment; what it appends goes into its log as it does into its files."""

    def __init__(self, store: SegmentStore, segment: Segment, wal: ObjectWal, term: int, restored: list[str]) -> None:
        self.store, self.segment, self.wal, self.restored = store, segment, wal, restored
        self._term = term
        self._known = set(restored)

    async def append(self, *sequences: int, text: str = "message") -> None:
        (first, *_) = await append(self.segment, *sequences, text=text)
        for path in log_files(self.store):
            if path.name not in self._known:
                self._known.add(path.name)
                opening = Opening.unpack(path.read_bytes()[:64], path.name)
                if opening.first_offset > first:
                    first = await self._entries(first, opening.first_offset)
                header = path.read_bytes()[: opening.data_position]
                await self.wal.append(WalGroup(SEGMENT, self._term, first, first, [header]))
        await self._entries(first, self.segment.durable_offset)

    async def _entries(self, first: int, end: int) -> int:
        for block in await read_blocks(self.segment, first):
            if first <= block.first_offset < end:
                body = bytes(block.data)
                await self.wal.append(WalGroup(SEGMENT, self._term, block.first_offset, block.next_offset, [body]))
                first = block.next_offset
        return first


def log_files(store: SegmentStore) -> list[Path]:
    return sorted(Path(store.directory(name())).glob("*.log"), key=lambda path: parse_file_name(path.name))


async def test_a_segment_goes_on_on_machines_that_never_saw_its_files(tmp_path: Path):
    machines, expected, sequence = Machines(tmp_path), [], 1
    for round_ in range(4):
        machine = await machines.next()
        assert await messages(machine.segment) == expected
        for _ in range(3):
            text = f"{round_} " * 900  # a file holds two of these
            await machine.append(sequence, text=text)
            expected.append(f"{text} {sequence}")
            sequence += 1
        assert await messages(machine.segment) == expected
        # The machine is lost here: its files are not closed, and never read again.
    last = await machines.next()
    assert await messages(last.segment) == expected
    assert len(last.restored) >= 8
    assert {parse_file_name(each)[1] for each in last.restored} == {1, 2, 3, 4}


async def test_restored_files_are_those_of_their_owner_byte_for_byte(tmp_path: Path):
    machines = Machines(tmp_path)
    first = await machines.next()
    await first.append(1, 2, text="x" * 500)
    written = Path(first.store.directory(name()))
    second = await machines.next()
    assert second.restored == ["0-1.log"]
    restored = (Path(second.store.directory(name())) / "0-1.log").read_bytes()
    there = (written / "0-1.log").read_bytes()
    # What an owner changes in place, and the zeros that it writes ahead, are not in its log.
    assert restored[:192] == there[:192]
    assert restored[320:] == there[320 : len(restored)]
    assert not any(there[len(restored) :])


def leave_behind(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "0-1.log").write_bytes(b"old data")
    (directory / "7-1.log").write_bytes(b"invented")


async def test_r11_a_directory_is_emptied_before_it_is_restored(tmp_path: Path):
    machines = Machines(tmp_path)
    first = await machines.next()
    await first.append(1, 2)
    machines.term += 1
    leave_behind(Path(make_store(machines.directory()).directory(name())))
    machines.term -= 1
    second = await machines.next()
    assert await messages(second.segment) == ["message 1", "message 2"]


@pytest.mark.parametrize("header", [False, True])
async def test_entries_without_the_header_of_their_file_are_damage(tmp_path: Path, header: bool):
    machines = Machines(tmp_path)
    first = await machines.next()
    wrong = WalGroup(SEGMENT, 1, 0, 0, [b"no header" * 20]) if header else WalGroup(SEGMENT, 1, 0, 1, [b"entries"])
    await first.wal.append(wrong)
    with pytest.raises(CorruptionError, match="header"):
        await machines.next()
