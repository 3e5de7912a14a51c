"""A segment's references to logs of objects, and takeovers that go by them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import msgspec
import pytest

from engine.errors import CorruptionError, EngineError, InvalidArgumentError
from engine.storage.objects import sweep
from engine.storage.objects.format import StoredGroup
from engine.storage.objects.names import FileNames
from engine.storage.objects.references import OlderFiles, Reference, RolledFile, SegmentObjects
from engine.storage.objects.sweep import Sweep
from engine.storage.objects.takeover import recovered
from engine.storage.objects.trim import needed
from engine.storage.objects.wal import ObjectWal
from tests.storage import takeover_scenario
from tests.storage.takeover_scenario import INDEX_LOGS, Broker, JudgementError

SEEDS = 25
LIVES = 200  # until a planted bug is found; most are found in the first ten
FIRST = {"fences_are_swept": 80, "named_at_another_term": 100}  # the seed to begin with, where early ones find nothing
FILE = RolledFile(0, 10, 1_000, 7, "log/a")


def objects(*wal: tuple[str, int, int | None, int], files: tuple[RolledFile, ...] = ()) -> SegmentObjects:
    return SegmentObjects(tuple(Reference(*each) for each in wal), files)


def test_references_survive_their_json():
    some = objects(("a", 0, 5, 1), ("b", 2, None, 3), files=(FILE,))
    text = msgspec.json.encode(some)
    assert msgspec.json.decode(text)["wal"] == [["a", 0, 5, 1], ["b", 2, None, 3]]
    assert msgspec.json.decode(text, type=SegmentObjects) == some


def test_r1_r2_r3_a_takeover_closes_what_is_open_and_adds_its_own():
    before = objects(("a", 0, 5, 1), ("b", 2, None, 3), ("c", 7, None, 4))
    assert before.open_sessions() == ["b", "c"]
    closed = before.closed({"b": 9, "c": 3})  # c was fenced below where it was to begin
    assert closed == objects(("a", 0, 5, 1), ("b", 2, 9, 3), ("c", 7, 7, 4))
    assert closed.served("d", 1, 6) == objects(("a", 0, 5, 1), ("b", 2, 9, 3), ("c", 7, 7, 4), ("d", 1, None, 6))
    with pytest.raises(InvalidArgumentError, match="ends must have every open session, got none of c"):
        before.closed({"b": 9})
    with pytest.raises(InvalidArgumentError, match="every reference must be closed"):
        before.served("d", 1, 6)


def test_r9_a_handover_closes_the_own_reference():
    assert objects(("a", 0, 5, 1), ("b", 2, None, 3)).handed_over("b", 4) == objects(("a", 0, 5, 1), ("b", 2, 4, 3))


def test_r14_a_file_takes_the_place_of_what_it_covers():
    before = objects(("a", 0, 5, 1), ("b", 2, None, 3))
    assert before.named(FILE, "b", 3, 6) == objects(("b", 6, None, 3), files=(FILE,))
    assert before.named(FILE, "b", 3) == objects(("b", 2, None, 3), files=(FILE,))
    assert before.named(FILE, "b", None) == objects(files=(FILE,))
    for file, session, upto in ((FILE, "a", 6), (FILE, "b", 1), (RolledFile(1, 10, 1, 1, "x"), "b", 6)):
        with pytest.raises(InvalidArgumentError, match="must"):
            before.named(file, session, 3, upto)


def test_r14_references_behind_the_file_stay():
    before = objects(("a", 0, 5, 1), ("b", 2, 4, 3), ("a", 7, 9, 5), ("c", 0, None, 8))
    assert before.named(FILE, "c", 3) == objects(*[("b", 2, 4, 3), ("a", 7, 9, 5), ("c", 0, None, 8)], files=(FILE,))
    assert before.named(FILE, "c", 8, 1) == objects(("c", 1, None, 8), files=(FILE,))
    with pytest.raises(InvalidArgumentError, match="of term 8"):
        before.named(FILE, "c", 5, 1)


def test_retention_raises_the_floor_and_a_log_without_files_goes_on_there():
    files = tuple(RolledFile(n, n + 10, 100, 7, f"log/{n}") for n in range(0, 50, 10))
    some = objects(("b", 2, None, 3), files=files)
    assert some.kept(25, ()) == SegmentObjects(some.wal, files[2:], None, 20)
    assert some.kept(5, ()) == some
    none = some.kept(50, ())
    assert (none.files, none.floor, none.named_end) == ((), 50, 50)
    assert none.named(RolledFile(50, 51, 1, 1, "x"), "b", 3, 3).named_end == 51


def test_older_files_go_to_an_index():
    files = tuple(RolledFile(n, n + 10, 100, 7, f"log/{n}") for n in range(0, 50, 10))
    some = objects(("b", 2, None, 3), files=files)
    folded = some.folded(OlderFiles("index", 0, 30, 3, 300), 3)
    assert (folded.files, folded.named_end, folded.file_bytes) == (files[3:], 50, 500)
    left = folded.kept(10, files)
    assert (left.older, left.file_bytes) == (OlderFiles("index", 10, 30, 2, 200), 400)
    assert left.kept(5, files[1:]) == left, "what was kept before stays"
    assert left.kept(20, files[1:]).file_bytes == 300
    none = folded.kept(30, files)
    assert (none.older, none.floor, none.files) == (None, 30, files[3:])
    assert folded.kept(40, files).files == files[4:]
    with pytest.raises(InvalidArgumentError, match="must end with a file"):
        some.folded(OlderFiles("index", 0, 30, 3, 300), 2)


def test_r15_the_first_object_that_is_needed_of_each_session():
    assert objects(("a", 3, 5, 1), ("b", 2, 4, 3), ("a", 8, None, 4)).starts() == {"a": 3, "b": 2}


class Scripted:
    """A log that returns given groups: (term, first offset, next offset) of each session."""

    def __init__(self, **groups: list[tuple[int, int, int]]) -> None:
        self._groups = groups

    async def read(
        self, session: str, start: int, end: int, segment: str
    ) -> AsyncIterator[tuple[StoredGroup, memoryview]]:
        for n, (term, first, following) in enumerate(self._groups[session]):
            if start <= n < end:
                yield StoredGroup(n, segment, term, first, following, 16, 1, 0), memoryview(b"x")


async def offsets(wal: Scripted, found: SegmentObjects) -> list[int]:
    return [group.first_offset async for group, _ in recovered(wal, found, "/s")]  # type: ignore[arg-type]


async def test_r11_recovery_goes_by_the_references_alone():
    wal = Scripted(a=[(1, 0, 4), (1, 4, 6), (1, 6, 9)], b=[(2, 6, 8)])
    assert await offsets(wal, objects(("a", 0, 2, 1), ("b", 0, 1, 2))) == [0, 4, 6]
    behind_a_file = objects(("a", 0, 3, 1), files=(RolledFile(0, 6, 1, 1, "x"),))
    assert await offsets(wal, behind_a_file) == [6]


@pytest.mark.parametrize(("found", "text"), [
    (objects(("a", 1, 3, 1)), "object 1 of session a begins at offset 4, the log ends at 0"),
    (objects(("a", 0, 2, 2)), "object 0 of session a has a group of term 1, not 2"),
    (objects(("a", 0, None, 1)), "a reference to session a is open"),
])  # fmt: skip
async def test_r11_what_does_not_fit_is_damage(found: SegmentObjects, text: str):
    with pytest.raises(CorruptionError, match=text):
        await offsets(Scripted(a=[(1, 0, 4), (1, 4, 6), (1, 6, 9)]), found)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_r1_r2_r3_r9_r10_r11_r12_a_segment_moves_and_loses_nothing(seed: int):
    cluster = takeover_scenario.run(seed)
    assert cluster.served


def test_the_lives_are_of_all_kinds():
    lives = [takeover_scenario.run(seed) for seed in range(8)]
    assert sum(len(life.acknowledged) for life in lives) > 100
    assert sum(life.served for life in lives) > 20
    assert sum(life.handed_over for life in lives) > 5
    assert sum(life.superseded for life in lives) > 0
    assert sum(life.named for life in lives) > 10
    assert sum(life.trimmed for life in lives) > 5
    assert sum(life.swept for life in lives) > 10


@pytest.mark.fuzz
@pytest.mark.parametrize("thousand", range(5))
def test_thousands_of_moves(thousand: int):
    for seed in range(1_000 * thousand, 1_000 * (thousand + 1)):
        takeover_scenario.run(seed)


# -- planted bugs ------------------------------------------------------------------------------------------------------


def one_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: the record has one reference, which a takeover replaces."""
    monkeypatch.setattr(
        SegmentObjects, "served", lambda self, session, n, term: SegmentObjects((Reference(session, n, None, term),))
    )


def own_session_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """R9, R10: objects in flight are left out."""

    async def drain(self: ObjectWal) -> int:
        return self.writer.acknowledged

    monkeypatch.setattr(ObjectWal, "drain", drain)


def no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """R3: the end of a session is what is acknowledged by it, not what a fence says."""

    async def fence(self: ObjectWal, session: str) -> int:
        folder = f"wal/c/{session}"
        return len([info async for info in self._store.list(folder)])

    monkeypatch.setattr(ObjectWal, "fence", fence)


def reference_begins_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """R2: the reference to the own session begins behind objects that it will have."""
    real = SegmentObjects.served
    monkeypatch.setattr(SegmentObjects, "served", lambda self, session, n, term: real(self, session, n + 1, term))


def trimmed_before_the_record_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """R15: the log is trimmed up to where an upload that is under way covers it."""
    real = Broker.name

    async def name(self: Broker, file: RolledFile, term: int, follows: int, upto: int | None) -> None:
        if upto is not None:
            await self.wal.trim(self.wal.session, upto)
            await self.wal.delete_trimmed()
        await real(self, file, term, follows, upto)

    monkeypatch.setattr(Broker, "name", name)


def what_was_handed_over_is_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """R15: only references of segments that the session serves count."""

    async def trim(self: Broker) -> None:
        objects = (await self.cluster.read())[0].objects if self.term else SegmentObjects()
        await self.wal.trim(self.wal.session, needed([objects], self.wal.session, self.wal.writer.acknowledged))
        await self.wal.delete_trimmed()

    monkeypatch.setattr(Broker, "trim", trim)


def trimmed_by_what_is_acknowledged_after_the_records_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """R15: a reference that is added meanwhile begins below."""

    def late(records: object, session: str, acknowledged: int) -> int:
        return needed((), session, 1 << 40)

    monkeypatch.setattr(takeover_scenario, "needed", late)


def a_file_covers_all_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """R14: what lies behind the file goes as well."""
    real = SegmentObjects.named

    def named(self: SegmentObjects, file: RolledFile, session: str, follows: int, upto: int | None) -> SegmentObjects:
        after = real(self, file, session, follows, upto)
        return msgspec.structs.replace(after, wal=after.wal[-1:])

    monkeypatch.setattr(SegmentObjects, "named", named)


def fences_are_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: a PUT that arrives late is taken for a part of the log."""
    monkeypatch.setattr(sweep, "FENCE", b"")


def the_sweep_reads_the_records_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """R16: a session may name a file, and end, between the two."""
    real_referred, real_ended = Sweep._referred, Sweep._ended
    seen: dict[Sweep, tuple[set[str], set[str]]] = {}

    async def ended(self: Sweep) -> set[str]:
        seen[self] = await real_referred(self)
        await asyncio.sleep(2)
        return await real_ended(self)

    async def referred(self: Sweep) -> tuple[set[str], set[str]]:
        return seen[self]

    monkeypatch.setattr(Sweep, "_ended", ended)
    monkeypatch.setattr(Sweep, "_referred", referred)


def names_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """R13: a name without term, session and try: a second upload replaces the first."""

    def following(self: FileNames, segment: str, first: int, term: int) -> str:
        return f"log/c/{first}"

    monkeypatch.setattr(FileNames, "next", following)


def named_at_another_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """R14: a file is named at the term of the moment, not at that at which its upload began, and none looks."""
    real = Broker.name

    async def name(self: Broker, file: RolledFile, term: int, follows: int, upto: int | None) -> None:
        await asyncio.sleep(2)  # the segment may have gone and come back
        await real(self, file, self.term or term, self.term if self.term and follows == term else follows, upto)

    def named(self: SegmentObjects, file: RolledFile, session: str, follows: int, upto: int | None) -> SegmentObjects:
        own = next(each for each in self.wal if each.end is None)
        own = own if upto is None else msgspec.structs.replace(own, start=upto)
        behind = [each for each in self.wal if each.end is not None and each.term >= follows]
        return msgspec.structs.replace(self, wal=(*behind, own), files=(*self.files, file))

    monkeypatch.setattr(Broker, "name", name)
    monkeypatch.setattr(SegmentObjects, "named", named)


def the_trim_goes_by_a_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    """R15: the records that the trim goes by are those of a while ago."""

    async def trim(self: Broker) -> None:
        cluster, session = self.cluster, self.wal.session
        found = await cluster.metadata.newest.list_index(INDEX_LOGS, session, session + "\0")
        mirrored = [msgspec.json.decode(record.value, type=SegmentObjects) for _, record in found]
        self.appends.append(asyncio.ensure_future(late(self, needed(mirrored, session, 1 << 40))))

    async def late(self: Broker, upto: int) -> None:
        await asyncio.sleep(1)
        with suppress(EngineError):
            await self.wal.trim(self.wal.session, upto)
            await self.wal.delete_trimmed()

    monkeypatch.setattr(Broker, "trim", trim)


CONSOLIDATION = [
    named_at_another_term,
    the_trim_goes_by_a_mirror,
    trimmed_before_the_record_names_the_file,
    what_was_handed_over_is_trimmed,
    trimmed_by_what_is_acknowledged_after_the_records_were_read,
    a_file_covers_all_references,
    fences_are_swept,
    the_sweep_reads_the_records_first,
    names_are_used_again,
]


@pytest.mark.parametrize(
    "plant",
    [*CONSOLIDATION, one_reference, own_session_is_not_waited_for, no_fence, reference_begins_too_late],
)
def test_a_planted_bug_is_flagged(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch):
    plant(monkeypatch)
    with pytest.raises((JudgementError, CorruptionError)):
        live(LIVES, first=FIRST.get(plant.__name__, 0))


def live(lives: int, first: int = 0) -> None:
    for seed in range(first, first + lives):
        takeover_scenario.run(seed)
