"""Rolled files become objects: they are uploaded and named, the log is trimmed, old data is read from them, retention
deletes them whole; another machine goes on by them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import CorruptionError, NotOwnerError, StorageError, UnknownOutcomeError
from engine.storage import consolidation
from engine.storage.file import upload as uploading
from engine.storage.objects.names import FileNames, folder, session_of
from engine.storage.objects.references import SegmentObjects
from engine.storage.objects.trim import needed
from tests.kit.stores import forget_tails, name
from tests.storage.object_machines import Machine, Machines
from tests.storage.test_succession import append, messages

TEXT = "x" * 900


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path, file_size_max=4096)


async def fill(machine: Machine, start: int, count: int) -> list[str]:
    """Messages of about a quarter of a file each."""
    for sequence in range(start, start + count):
        await append(machine.segment, sequence, text=TEXT)
    return [f"{TEXT} {sequence}" for sequence in range(start, start + count)]


async def trim(machine: Machine) -> int:
    """As a broker does (R15); how many objects were deleted."""
    acknowledged, session = machine.wal.writer.acknowledged, machine.wal.session
    found = await machine.machines.metadata.newest.list_index("wal-sessions", session, session + "\0")
    assert len(found) <= 1
    await machine.wal.trim(session, needed([await machine.machines.objects()] if found else [], session, acknowledged))
    return await machine.wal.delete_trimmed()


def local(machine: Machine) -> list[str]:
    return sorted(p.name for p in Path(machine.store.directory(name())).glob("*.log"))


async def test_r13_r14_rolled_files_are_uploaded_and_named(machines: Machines):
    machine = await machines.machine()
    expected = await fill(machine, 1, 20)
    assert await machine.consolidate() >= 3
    objects = await machines.objects()
    assert [file.first for file in objects.files] == [0, *(file.end for file in objects.files[:-1])]
    for file in objects.files:
        local_file = (Path(machine.store.directory(name())) / f"{file.first}-1.log").read_bytes()
        assert machines.store.objects[file.key] == local_file
        assert session_of(file.key) == "s1"
        assert file.key.startswith(folder("c") + "/topics/public/default/t/segments/0/")
    assert objects.wal[0].start > 0  # the log begins at the header of the file behind
    assert await machine.consolidate() == 0
    assert await messages(machine.segment) == expected


async def test_pieces_of_files_wait_for_the_log_unless_there_is_a_hurry(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
):
    waits: list[float] = []

    async def quiet(within_s: float) -> None:
        waits.append(within_s)

    monkeypatch.setattr(uploading, "PIECE_SIZE", 1000)
    machine = await machines.machine()
    monkeypatch.setattr(machine.record, "quiet", quiet)
    await fill(machine, 1, 10)
    assert await machine.consolidation.run(machine.segment, lambda: True) >= 2
    assert not waits, "other segments wait"
    await fill(machine, 11, 10)
    assert await machine.consolidation.run(machine.segment) >= 2
    assert len(waits) >= 2 * 4
    assert set(waits) == {consolidation.YIELD_S}
    waits.clear()
    await fill(machine, 21, 4 * (consolidation.BEHIND_MAX + 2))
    rolled = len(consolidation._rolled(machine.segment, machine.consolidation.named.end_offset))
    assert rolled > consolidation.BEHIND_MAX
    count = await machine.consolidation.run(machine.segment)
    assert count == rolled
    assert 0 < len(waits) <= (consolidation.BEHIND_MAX + 1) * 5, "those before are not waited with"


async def test_another_machine_goes_on_by_files_and_the_rest_of_the_log(machines: Machines):
    expected: list[str] = []
    for round_ in range(4):
        machine = await machines.machine()
        assert await messages(machine.segment) == expected
        expected += await fill(machine, 1 + 10 * round_, 10)
        if round_ != 1:
            await machine.consolidate()
            await trim(machine)
        forget_tails(machine.store)
        assert await messages(machine.segment) == expected
        # The machine is lost here, with its disk.
    last = await machines.machine()
    assert await messages(last.segment) == expected
    assert await last.consolidate() > 0  # files that a former owner has rolled
    objects = await machines.objects()
    assert {reference.session for reference in objects.wal} == {last.wal.session}
    assert await messages((await machines.machine()).segment) == expected


async def test_r15_the_log_is_trimmed_once_the_record_names_the_file(machines: Machines):
    machine = await machines.machine()
    await fill(machine, 1, 20)
    assert await trim(machine) == 0
    await machine.consolidate()
    assert await trim(machine) > 10
    left = [n for n in machines.store.objects if n.startswith("wal/")]
    assert len(left) < 10


async def test_r15_what_was_handed_over_is_not_trimmed(machines: Machines):
    machine = await machines.machine()
    expected = await fill(machine, 1, 3)
    await machine.hand_over()
    assert await trim(machine) == 0
    assert await messages((await machines.machine()).segment) == expected


async def test_old_data_is_read_in_ranges_and_kept_within_bounds(machines: Machines):
    first = await machines.machine()
    expected = await fill(first, 1, 40)
    await first.consolidate()
    machine = await machines.machine(cache=16 << 10)
    before = dict(machines.store.statistics().requests)
    assert await messages(machine.segment) == expected
    cache = machine.cache.statistics
    assert cache.misses >= 10
    assert cache.size <= cache.limit
    assert machines.store.statistics().requests["get"] - before["get"] <= cache.misses + 2 * len(
        (await machines.objects()).files
    )
    kept = list((machines.root / "cache-2").iterdir())
    assert sum(path.stat().st_size for path in kept) == cache.size
    assert await machine.segment.offset_at(0) == 0


async def test_named_files_leave_the_disk_when_the_cache_is_full(machines: Machines):
    machine = await machines.machine(cache=8 << 10)
    expected = await fill(machine, 1, 40)
    named = await machine.consolidate()
    assert len(local(machine)) <= 3 < named
    forget_tails(machine.store)
    assert await messages(machine.segment) == expected
    assert machine.segment.first_offset == 0


async def test_a_sealed_segment_needs_no_log(machines: Machines):
    machine = await machines.machine()
    expected = await fill(machine, 1, 6)
    await machine.segment.seal()
    await machine.consolidate()
    assert (await machines.objects()).wal == ()
    assert await machine.consolidate() == 0
    await trim(machine)
    assert [n for n in machines.store.objects if n.startswith("wal/")] == []
    after = await machines.machine()
    assert after.segment.sealed
    assert await messages(after.segment) == expected
    await after.segment.seal()


@pytest.mark.parametrize("entries", [0, 8])
async def test_the_empty_end_of_a_sealed_segment_stays(machines: Machines, entries: int):
    machine = await machines.machine()
    await fill(machine, 1, entries)
    await machine.segment.end_aged(0)
    await machine.segment.seal()
    await machine.consolidate()
    assert (await machines.objects()).wal == ()
    await machine.segment.retain(machine.segment.durable_offset, retention_ms=None, retention_bytes=0)
    [last] = (await machines.objects()).files
    assert last.first == last.end
    after = await machines.machine()
    assert after.segment.sealed
    assert after.segment.durable_offset == machine.segment.durable_offset


async def test_retention_deletes_whole_objects(machines: Machines):
    machine = await machines.machine()
    expected = await fill(machine, 1, 40)
    await machine.consolidate()
    files = (await machines.objects()).files
    assert await machine.segment.retain(files[2].end + 1, retention_ms=None, retention_bytes=0) == 3
    objects = await machines.objects()
    assert (objects.files, objects.floor) == (files[3:], files[2].end)
    assert machine.segment.first_offset == files[3].first
    assert await machine.garbage.delete_due() == 3
    assert not {file.key for file in files[:3]} & machines.store.objects.keys()
    assert await messages(machine.segment) == expected[files[3].first :]
    again = await machines.machine()
    assert again.segment.first_offset == files[3].first
    assert await messages(again.segment) == expected[files[3].first :]


async def test_a_log_whose_files_are_all_deleted_goes_on(machines: Machines):
    machine = await machines.machine()
    await fill(machine, 1, 20)
    await machine.segment.end_aged(0)
    await machine.consolidate()
    end = machine.segment.durable_offset
    await machine.segment.retain(end, retention_ms=None, retention_bytes=0)
    assert (await machines.objects()).files == ()
    again = await machines.machine()
    assert (again.segment.first_offset, again.segment.durable_offset) == (end, end)
    assert await append(again.segment, 30) == [end]


async def test_files_roll_by_age(machines: Machines):
    machine = await machines.machine()
    expected = await fill(machine, 1, 2)
    await machine.segment.end_aged(60_000)
    assert await machine.consolidate() == 0
    machines.clock.advance(61)
    await machine.segment.end_aged(60_000)
    await machine.segment.end_aged(60_000)
    assert await machine.consolidate() == 1
    assert await trim(machine) > 0
    assert await messages((await machines.machine()).segment) == expected


async def test_many_files_go_to_an_index(machines: Machines, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(consolidation, "OBJECT_RECORD_FILES_SIZE_MAX", 600)
    machine, expected = await machines.machine(), []
    for round_ in range(6):
        expected += await fill(machine, 1 + 12 * round_, 12)
        await machine.consolidate()
    objects = await machines.objects()
    assert objects.older is not None
    assert objects.older.count + len(objects.files) > 12
    assert await machine.garbage.delete_due() >= 2  # indexes that others replace
    assert len([n for n in machines.store.objects if n.endswith(".index")]) == 1
    again = await machines.machine()
    assert await messages(again.segment) == expected
    files = await again.consolidation.named.all()
    await again.segment.retain(files[-1].end, retention_ms=None, retention_bytes=0)
    assert (await machines.objects()).older is None
    await again.garbage.delete_due()
    assert [n for n in machines.store.objects if n.endswith(".index")] == []


async def test_large_files_are_uploaded_in_parts(machines: Machines, monkeypatch: pytest.MonkeyPatch):
    machine = await machines.machine()
    expected = await fill(machine, 1, 6)
    monkeypatch.setattr(uploading, "PIECE_SIZE", 1000)
    await machine.consolidate()
    assert machines.store.statistics().requests["multipart"] == len((await machines.objects()).files)
    assert await messages((await machines.machine()).segment) == expected


# -- faults ------------------------------------------------------------------------------------------------------------


async def test_an_upload_of_a_damaged_file_is_refused(machines: Machines):
    machine = await machines.machine()
    await fill(machine, 1, 10)
    path = Path(machine.store.directory(name())) / "0-1.log"
    image = bytearray(path.read_bytes())
    image[1500] ^= 1
    path.write_bytes(image)
    with pytest.raises(CorruptionError, match="is not uploaded"):
        await machine.consolidate()
    assert (await machines.objects()).files == ()


async def test_r14_a_session_that_was_fenced_names_nothing(machines: Machines):
    machine = await machines.machine()
    expected = await fill(machine, 1, 10)
    other = await machines.machine()
    with pytest.raises(NotOwnerError):
        await machine.consolidate()
    assert await machine.garbage.delete_due() == 1  # the orphan
    assert not [n for n in machines.store.objects if n.startswith("log/")]
    assert await messages(other.segment) == expected


async def test_r14_a_file_uploaded_under_another_term_is_not_named(machines: Machines):
    """The session hands the segment over, and gets it back, while it uploads."""
    machine = await machines.machine()
    expected = await fill(machine, 1, 10)
    await machine.hand_over()
    again = await machines.machine(machine.wal)
    machine.lease.held = True
    file, following = consolidation._rolled(machine.segment, 0)[0]
    with pytest.raises(NotOwnerError):
        await machine.consolidation._consolidate(machine.segment, file, following, lambda: False)
    await again.consolidate()
    assert await messages((await machines.machine()).segment) == expected


async def test_an_upload_whose_outcome_is_unknown_takes_another_name(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
):
    machine = await machines.machine()
    expected = await fill(machine, 1, 6)
    real, failures = machines.store.put_if_absent, [UnknownOutcomeError("500"), StorageError("503")]

    async def put_if_absent(key, buffers):
        await real(key, buffers)
        if failures and key.startswith("log/"):
            raise failures.pop()

    monkeypatch.setattr(machines.store, "put_if_absent", put_if_absent)
    for error in (StorageError, UnknownOutcomeError):
        with pytest.raises(error):
            await machine.consolidate()
    assert await machine.consolidate() == 1
    uploaded = [n for n in machines.store.objects if n.startswith("log/")]
    assert len(uploaded) == 3
    assert (await machines.objects()).files[0].key == max(uploaded)
    assert await messages((await machines.machine()).segment) == expected


@pytest.mark.parametrize("harm", ["gone", "short", "changed"])
async def test_a_damaged_object_is_reported(machines: Machines, harm: str):
    machine = await machines.machine()
    await fill(machine, 1, 10)
    await machine.consolidate()
    file = (await machines.objects()).files[0]
    image = machines.store.objects.pop(file.key)
    if harm == "short":
        machines.store.objects[file.key] = image[: file.size // 2]
    elif harm == "changed":
        machines.store.objects[file.key] = image[:1500] + bytes([image[1500] ^ 1]) + image[1501:]
    other = await machines.machine()
    with pytest.raises(CorruptionError, match=file.key):
        await messages(other.segment)


def test_names_are_of_characters_that_every_store_takes():
    names = FileNames("c", "s1")
    first = names.next("/topics/t/n/a%2Fb/../ä b/segments/0", 7, 3)
    assert first == "log/c/topics/t/n/a=252Fb/=2E=2E/=C3=A4=20b/segments/0/00000000000000000007-3-s1-1.log"
    assert names.next("/topics/t/n/a", 7, 3) != names.next("/topics/t/n/a", 7, 3)
    assert session_of(first) == "s1"
    assert session_of("log/c/readme.txt") is None


def test_r15_all_records_count():
    records = [SegmentObjects().served(session, n, 1) for session, n in (("a", 7), ("a", 4), ("b", 1))]
    assert needed(records, "a", 9) == 4
    assert needed(records, "a", 3) == 3
    assert needed([], "a", 9) == 9
