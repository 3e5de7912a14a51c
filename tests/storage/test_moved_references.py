"""R19: a silent segment, whose files hold all, keeps nothing of the log but the header of its last file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InvalidArgumentError, NotOwnerError, StorageError
from engine.storage.objects.format import WalGroup
from engine.storage.objects.references import Reference, RolledFile, SegmentObjects
from tests.storage.object_machines import Machine, Machines
from tests.storage.test_consolidation import fill, trim
from tests.storage.test_succession import append, messages


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path, file_size_max=4096)


async def silent(machine: Machine, start: int = 1, count: int = 10) -> list[str]:
    """Messages, all of which are in named files."""
    expected = await fill(machine, start, count)
    await machine.segment.end_aged(0)
    await machine.consolidate()
    assert machine.consolidation.named.end_offset == machine.segment.durable_offset
    return expected


async def others(machine: Machine, count: int = 30) -> None:
    """Other segments go on in the same log."""
    for number in range(count):
        await machine.wal.append(WalGroup("/elsewhere", 1, number, number + 1, [b"x" * 100]))


async def log_size(machine: Machine) -> int:
    """The objects of its log that are left, when it was trimmed."""
    await trim(machine)
    return len([name for name in machine.machines.store.objects if name.startswith(f"wal/c/{machine.wal.session}/")])


async def test_the_log_goes_but_for_a_header_and_another_machine_goes_on(machines: Machines) -> None:
    first = await machines.machine()
    expected = await silent(first)
    await others(first)
    assert await log_size(first) >= 30, "without R19 the segment keeps what the others write"
    assert first.consolidation.is_behind(first.wal.unneeded, 20)
    assert await first.consolidation.move_on()
    assert not first.consolidation.is_behind(first.wal.unneeded, 20)
    assert await log_size(first) <= 1
    second = await machines.machine()
    assert await messages(second.segment) == expected
    expected += await fill(second, 20, 3)
    third = await machines.machine()
    assert await messages(third.segment) == expected


async def test_messages_behind_the_header_are_kept(machines: Machines) -> None:
    first = await machines.machine()
    expected = await silent(first)
    for round_ in range(3):
        await others(first, 5)
        assert await first.consolidation.move_on()
        expected += await fill(first, 20 + 10 * round_, 6)
        assert not await first.consolidation.move_on(), "they are in no file yet"
        await first.segment.end_aged(0)
        await first.consolidate()
    await trim(first)
    assert await messages((await machines.machine()).segment) == expected


async def test_messages_that_come_meanwhile_are_kept(machines: Machines) -> None:
    first = await machines.machine()
    expected = await silent(first)
    await others(first)
    machines.store.delay_s_max = 0.05
    moving = asyncio.create_task(first.consolidation.move_on())
    await asyncio.sleep(0)
    expected += await fill(first, 20, 6)
    assert await moving
    await first.consolidate()
    await trim(first)
    assert await messages((await machines.machine()).segment) == expected


async def test_a_header_that_no_record_speaks_of_does_no_harm(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine is lost between the two steps, or goes on."""
    first = await machines.machine()
    expected = await silent(first)

    async def change(_: Any) -> SegmentObjects:
        raise StorageError("the metadata store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(first.record, "change", change)
        for _ in range(2):
            with pytest.raises(StorageError):
                await first.consolidation.move_on()
    expected += await fill(first, 20, 2)
    second = await machines.machine()
    assert await messages(second.segment) == expected


@pytest.mark.parametrize("count", [0, 10])
async def test_logs_of_former_owners_are_not_needed_any_more(machines: Machines, count: int) -> None:
    """Also of a segment that never had a message."""
    expected = await silent(await machines.machine(), count=count)
    for number in range(3):
        machine = await machines.machine()
        assert len((await machines.objects()).wal) == 2
        assert machine.consolidation.is_behind(machine.wal.unneeded, 1_000)
        assert await machine.consolidation.move_on()
        assert [each.session for each in (await machines.objects()).wal] == [machine.wal.session]
        assert await messages(machine.segment) == expected, number
    assert await append(machine.segment, 40) == [len(expected)]


async def test_a_segment_whose_files_are_all_deleted_moves_on(machines: Machines) -> None:
    machine = await machines.machine()
    end = len(await silent(machine))
    await machine.segment.retain(end, retention_ms=None, retention_bytes=0)
    await others(machine)
    assert await machine.consolidation.move_on()
    await trim(machine)
    again = await machines.machine()
    assert (again.segment.first_offset, again.segment.durable_offset) == (end, end)
    assert await append(again.segment, 30) == [end]


async def test_what_is_not_an_owner_moves_nothing(machines: Machines) -> None:
    first = await machines.machine()
    expected = await silent(first)
    second = await machines.machine()
    before = await machines.objects()
    with pytest.raises(NotOwnerError):
        await first.consolidation.move_on()
    assert await machines.objects() == before
    assert await messages(second.segment) == expected


async def test_a_sealed_segment_stays_sealed(machines: Machines) -> None:
    machine = await machines.machine()
    await silent(machine)
    await machine.segment.seal()
    assert not await machine.consolidation.move_on()
    await machine.consolidate()
    assert not await machine.consolidation.move_on()
    after = await machines.machine()
    assert after.segment.sealed


def test_what_a_record_says_of_it() -> None:
    files = (RolledFile(0, 9, 100, 1, "f"),)
    closed, own = Reference("a", 3, 7, 1), Reference("b", 2, None, 5)
    objects = SegmentObjects((closed, own), files)
    assert objects.moved(9, "b", 8) == SegmentObjects((Reference("b", 8, None, 5),), files)
    assert objects.moved(9, "b", 1).wal == (own,), "it never goes back"
    assert SegmentObjects((), files).moved(9, "b", 8).wal == (), "sealed meanwhile"
    with pytest.raises(InvalidArgumentError, match="files must hold all below offset 10, got 9"):
        objects.moved(10, "b", 8)
    with pytest.raises(InvalidArgumentError, match="must be that of 'c'"):
        objects.moved(9, "c", 8)
