"""How far a log was durable is known without later traffic (D6); offsets that were seen are never given again (D4)."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import CorruptionError, InvalidArgumentError, UnknownOutcomeError
from engine.limits import LOG_FILE_MESSAGES_MAX
from engine.storage.file.continuation import NOTHING, Gaps, Known, continue_at
from engine.storage.file.format import HEADER_SIZES, VERSION, WITNESSES_AT, Closing, Header, State, Witness
from engine.storage.file.logfile import FileFacts, LogFile, new_file
from engine.storage.segment import Segment
from engine.storage.store import SegmentStore
from engine.testing.disk import Fault, SimDisk
from tests.kit.entry_images import entry, values_of
from tests.kit.stores import log_files, make_store, name, read_blocks

RELAXED = ("interval", "os")
HEAD = HEADER_SIZES[VERSION]


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for it, as long as a slow machine may take."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - of another thread, and of files
            await asyncio.sleep(0.01)


async def killed(root: Path, *, durability: str = "fsync", quiet: bool = True, messages: int = 40) -> Path:
    """One burst in one commit, then the end of the process; `quiet`: not before the file's witness was written."""
    store = make_store(root)
    segment = await store.create(name(), durability=durability)
    await asyncio.gather(*(segment.append(entry(i, (b"%03d" % i * 9,))) for i in range(messages)))
    path = log_files(store, name())[0]
    if quiet:
        await eventually(lambda: witnessed(path) == messages)
    segment.release()
    return path


def witnessed(path: Path) -> int:
    """The durable offset that the file states."""
    return witness_of(path.read_bytes()).durable_offset


def witness_of(image: bytes) -> Witness:
    """The newer of a file's two."""
    witness = Header.unpack(image[:HEAD], "the file").witness
    assert witness is not None
    return witness


async def reopened(root: Path, known: Known = NOTHING, durability: str = "fsync") -> tuple[SegmentStore, Segment]:
    """As a new process finds it."""
    store = make_store(root)
    return store, await store.open(name(), durability=durability, known=known)


async def values(segment: Segment, offset: int = 0) -> list[bytes]:
    """All there are."""
    return [value for block in await read_blocks(segment, offset) for _, value in values_of(block.data)]


# -- the witness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [0.05, 0.5, 0.98])
async def test_d6_a_flipped_bit_in_the_last_burst_is_damage_and_nothing_is_cut(tmp_path: Path, where: float) -> None:
    path = await killed(tmp_path)
    image = bytearray(path.read_bytes())
    end = len(image.rstrip(b"\0"))
    image[int(HEAD + (end - HEAD) * where)] ^= 4
    path.write_bytes(image)
    with pytest.raises(CorruptionError, match=r"0\.log, position \d+: segment 0, offset \d+.*durable once"):
        await reopened(tmp_path)
    assert path.read_bytes() == image


async def test_d6_truncation_at_any_length_after_a_quiet_moment_is_damage(tmp_path: Path) -> None:
    path = await killed(tmp_path)
    image = path.read_bytes()
    end = len(image.rstrip(b"\0"))
    for size in [*range(0, HEAD + 8, 37), *range(HEAD, end, 101), end - 1]:
        path.write_bytes(image[:size])
        with pytest.raises(CorruptionError, match=r"0\.log"):
            await reopened(tmp_path)
    path.write_bytes(image[: end + -end % 8])
    store, segment = await reopened(tmp_path)
    assert len(await values(segment)) == 40
    await store.close()


async def test_a_torn_witness_leaves_the_other_one(tmp_path: Path) -> None:
    path = await killed(tmp_path)
    image = bytearray(path.read_bytes())
    for slot in range(2):
        torn = bytearray(image)
        at = WITNESSES_AT + slot * 64
        torn[at + 20 : at + 64] = bytes(44)
        path.write_bytes(torn)
        store, segment = await reopened(tmp_path)
        assert len(await values(segment)) == 40
        segment.release()
    image[WITNESSES_AT : WITNESSES_AT + 128] = bytes(128)
    path.write_bytes(image)
    with pytest.raises(CorruptionError, match="neither of the two witnesses"):
        await reopened(tmp_path)
    await store.close()


async def test_without_a_quiet_moment_the_last_commit_is_the_window_and_its_cut_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The window that docs/guarantees.md gives: killed within 50 ms of the last acknowledgement, and damaged."""
    store = make_store(tmp_path)
    segment = await store.create(name())
    await segment.append(entry(0))
    path = log_files(store, name())[0]
    segment.release()
    assert witnessed(path) == 0
    image = bytearray(path.read_bytes())
    image[HEAD + 130] ^= 1
    path.write_bytes(image)
    with caplog.at_level(logging.WARNING, "engine.storage"):
        store, segment = await reopened(tmp_path)
    assert segment.next_offset == 0
    statistics = store.statistics()
    assert statistics.torn_tails == 1
    assert statistics.torn_bytes > 100
    assert f"position {HEAD}: " in caplog.text
    assert "offset 0" in caplog.text
    await store.close()


async def test_zeros_that_were_written_ahead_are_no_torn_tail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await killed(tmp_path)
    store, _ = await reopened(tmp_path)
    assert store.statistics().torn_tails == 0
    assert not caplog.records
    await store.close()


async def test_a_file_that_is_opened_again_keeps_what_its_close_said(tmp_path: Path) -> None:
    """The closing block goes with the first append; from then on the witness says how far the file was durable."""
    store = make_store(tmp_path)
    segment = await store.create(name())
    await asyncio.gather(*(segment.append(entry(i)) for i in range(10)))
    await store.close()
    store, segment = await reopened(tmp_path)
    await segment.append(entry(10))
    path = log_files(store, name())[0]
    segment.release()
    assert witnessed(path) == 10


async def test_the_witness_becomes_durable_without_another_append() -> None:
    """On a medium that forgets what was not synced: after a while, once."""
    disk = SimDisk(random.Random(3))
    store = make_store("/data", disk=disk.mount())
    segment = await store.create(name())
    await segment.append(entry(0))
    syncs = segment.statistics().syncs
    await eventually(lambda: segment.statistics().syncs == syncs + 1)
    disk.crash()
    store = make_store("/data", disk=disk.mount())
    segment = await store.open(name())
    assert witness_of(disk.read(*disk.paths())).durable_offset == 1
    await store.close()


async def test_a_witness_that_could_not_be_written_leaves_the_other_one() -> None:
    """The next one takes the same place: what is torn there is never beside a second one."""
    disk = SimDisk(random.Random(5))
    store = make_store("/data", disk=disk.mount())
    segment = await store.create(name())
    (path,) = disk.paths()
    good = disk.read(path)[WITNESSES_AT : WITNESSES_AT + 64]
    for i in range(1, 5):
        await segment.append(entry(i))
        disk.faults = [Fault("write", errno.EIO)]
        await eventually(lambda: not disk.faults[0].times)
        assert disk.read(path)[WITNESSES_AT : WITNESSES_AT + 64] == good
    await segment.append(entry(5))
    await eventually(lambda: witness_of(disk.read(path)) == Witness(1, 5, 0))
    disk.kill()
    store = make_store("/data", disk=disk.mount())
    assert (await store.open(name())).next_offset == 5
    await store.close()


# -- what others know --------------------------------------------------------------------------------------------------


async def test_d6_in_fsync_an_end_below_what_others_know_is_damage(tmp_path: Path) -> None:
    await killed(tmp_path)
    with pytest.raises(CorruptionError, match=r"0\.log.*ends at offset 40, and the cursor of 'a' stands at 41"):
        await reopened(tmp_path, Known(41, "the cursor of 'a'"))
    store, _ = await reopened(tmp_path, Known(40, "the cursor of 'a'"))
    await store.close()


@pytest.mark.parametrize("state", ["clean", "sealed"])
async def test_d6_what_was_closed_in_order_has_no_gap_in_any_mode(tmp_path: Path, state: str) -> None:
    store = make_store(tmp_path)
    segment = await store.create(name(), durability="os")
    await segment.append(entry(0))
    if state == "sealed":
        await segment.seal()
    await store.close()
    store, segment = await reopened(tmp_path, durability="os")
    assert not list(segment.gaps)
    assert segment.next_offset == 1
    await store.close()
    with pytest.raises(CorruptionError, match="ends at offset 1, and a checkpoint stands at 2"):
        await reopened(tmp_path, Known(2, "a checkpoint"), "os")


@pytest.mark.parametrize("durability", RELAXED)
async def test_d4_after_a_crash_in_a_relaxed_mode_no_offset_is_given_again(
    tmp_path: Path, durability: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = await killed(tmp_path, durability=durability, quiet=False)
    path.write_bytes(path.read_bytes()[: HEAD + 1000])  # what a power cut left
    store, segment = await reopened(tmp_path, durability=durability)
    kept = len(await values(segment))
    assert 0 < kept < 40
    assert list(segment.gaps) == [(kept, LOG_FILE_MESSAGES_MAX)]
    assert store.statistics().gaps == 1
    assert f"ends at offset {kept} and goes on at {LOG_FILE_MESSAGES_MAX}" in caplog.text
    (place,) = await segment.append(entry(40, (b"new",)))
    assert place.first_offset == LOG_FILE_MESSAGES_MAX
    assert await values(segment, 40) == [b"new"]
    assert len(await values(segment)) == kept + 1
    await store.close()
    store, segment = await reopened(tmp_path, Known(LOG_FILE_MESSAGES_MAX + 1, "a cursor"), durability)
    assert list(segment.gaps) == [(kept, LOG_FILE_MESSAGES_MAX)], "it is in the file's header"
    assert await values(segment, 39) == [b"new"]
    await segment.seal()
    await store.close()


async def test_a_gap_survives_a_close_without_an_append(tmp_path: Path) -> None:
    """Closed in order, the old file would have said that nothing is missing."""
    path = await killed(tmp_path, durability="os", quiet=False)
    path.write_bytes(path.read_bytes()[: HEAD + 500])
    store, segment = await reopened(tmp_path, durability="os")
    gaps = list(segment.gaps)
    await store.close()
    store, segment = await reopened(tmp_path, durability="os")
    assert list(segment.gaps) == gaps != []
    (place,) = await segment.append(entry(40))
    assert place.first_offset == LOG_FILE_MESSAGES_MAX
    await store.close()


async def test_d4_gaps_of_crashes_in_a_row_are_one_run(tmp_path: Path) -> None:
    """Nothing is appended between them, so that files without entries lie inside."""
    await killed(tmp_path, durability="os", quiet=False)
    for crash in range(1, 4):
        store, segment = await reopened(tmp_path, durability="os")
        assert list(segment.gaps) == [(40, crash * LOG_FILE_MESSAGES_MAX)]
        assert segment.messages_end == 40
        assert len(await values(segment)) == 40
        segment.release()
    store, segment = await reopened(tmp_path, durability="os")
    await segment.append(entry(40, (b"new",)))
    assert (await values(segment))[39:] == [b"%03d" % 39 * 9, b"new"]
    assert segment.gaps.skip(40) == 4 * LOG_FILE_MESSAGES_MAX
    await store.close()


@pytest.mark.parametrize("durability", RELAXED)
async def test_d4_a_failed_sync_in_a_relaxed_mode_gives_up_what_was_seen(durability: str) -> None:
    disk = SimDisk(random.Random(1))
    store = make_store("/data", disk=disk.mount(), interval_ms=3_600_000)
    segment = await store.create(name(), durability=durability)
    told: list[int] = []
    segment.on_gap = lambda: told.append(1)
    await asyncio.gather(*(segment.append(entry(i)) for i in range(5)))
    assert segment.durable_offset == 5, "acknowledged, and not synced"
    disk.faults = [Fault("sync", errno.EIO)]
    await segment._commit.drain()
    (place,) = await segment.append(entry(5, (b"new",)))
    assert place.first_offset == 5
    assert list(segment.gaps) == [(0, 5)]
    assert told
    assert await values(segment) == [b"new"]
    await store.close()


async def test_a_file_that_cannot_be_opened_again_gives_up_no_offsets() -> None:
    """No reader has seen the append, and a close that reaches the disk must not end below the known offsets."""
    disk = SimDisk(random.Random(1))
    store = make_store("/data", disk=disk.mount())
    segment = await store.create(name(), durability="os")
    await segment.append(entry(0))
    await store.close()
    store = make_store("/data", disk=disk.mount())
    segment = await store.open(name(), durability="os")
    disk.faults = [Fault("sync", errno.EIO)]
    with pytest.raises(UnknownOutcomeError):
        await segment.append(entry(1))
    assert not list(segment.gaps)
    assert segment.next_offset == 1
    await store.close()


# -- the rule, as a table ----------------------------------------------------------------------------------------------


def file(first: int, end: int, durability: str | None = "fsync", *, state: str = "") -> LogFile:
    """As recovery leaves it. `durability` None: of the version that does not say."""
    made = new_file("/d", FileFacts(0, 0, 1, 0, durability or "fsync", 0, 0), first)
    if durability is None:
        made.origin = made.witness = None
    made.end_offset = end
    if state:
        made.closing = Closing(State[state], end, 0, 0, 0)
    return made


@pytest.mark.parametrize(
    ("last", "known", "durability", "right"),
    [
        (file(0, 10), 10, "fsync", 10),
        (file(0, 10), 0, "fsync", 10),
        (file(0, 10), 11, "fsync", None),
        (file(0, 10), 11, "os", None),  # what counts is the mode it was written in
        (file(0, 10, "os"), 0, "fsync", LOG_FILE_MESSAGES_MAX),
        (file(7, 10, "interval"), 11, "interval", 7 + LOG_FILE_MESSAGES_MAX),
        (file(7, 10, "os"), 1 << 40, "os", 1 << 40),
        (file(0, 10, "os", state="CLEAN"), 10, "os", 10),
        (file(0, 10, "os", state="CLEAN"), 11, "os", None),
        (file(0, 10, "os", state="SEALED"), 11, "os", None),
        (file(0, 10, None), 11, "fsync", None),
        (file(0, 10, None), 11, "os", LOG_FILE_MESSAGES_MAX),
        (file(0, 10, None, state="CLEAN"), 11, "os", 11),  # an older build gave offsets again
        (file(0, 10, None, state="SEALED"), 11, "os", None),
    ],
)
def test_where_a_log_goes_on(last: LogFile, known: int, durability: str, right: int | None) -> None:
    if right is None:
        with pytest.raises(CorruptionError, match="ends at offset 10, and a cursor stands at 11"):
            continue_at(last, Known(known, "a cursor"), durability)
    else:
        assert continue_at(last, Known(known, "a cursor"), durability) == right


def test_gaps_lie_between_files() -> None:
    facts = FileFacts(0, 0, 1, 0, "os", 0, 0)
    files = [new_file("/d", facts, 5), new_file("/d", facts, 30, previous_end=20), new_file("/d", facts, 40)]
    gaps = Gaps(files, (45, 50))
    assert list(gaps) == [(20, 30), (45, 50)]
    assert [gaps.skip(offset) for offset in (0, 19, 20, 29, 30, 45, 50)] == [0, 19, 30, 30, 30, 50, 50]
    assert gaps.within(0, 20) is None
    assert list(gaps.within(28, 47) or ()) == [28, 29, 45, 46]
    assert list(Gaps(files[1:])) == [], "what lies before the first file is retention's"


async def test_an_append_of_more_messages_than_a_file_may_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They bound what a power cut may take, so they bound a file."""
    monkeypatch.setattr("engine.storage.commit.groups.LOG_FILE_MESSAGES_MAX", 5)
    store = make_store(tmp_path)
    segment = await store.create(name())
    with pytest.raises(InvalidArgumentError, match="at most 5 messages"):
        await segment.append(entry(0, tuple(b"%d" % i for i in range(6))))
    for i in range(4):
        await segment.append(entry(3 * i, (b"a", b"b", b"c")))
    assert [int(path.stem) for path in log_files(store, name())] == [0, 3, 6, 9]
    assert segment.next_offset == 12
    await store.close()
