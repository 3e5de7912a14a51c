"""The log of a session, rule by rule, on a store in memory: what is sent when, what is acknowledged, what is read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from engine._native.format.crc32c import crc32c
from engine.errors import (
    AlreadyClosedError,
    AlreadyExistsError,
    CorruptionError,
    FencedError,
    InvalidArgumentError,
    UnknownOutcomeError,
    UnsupportedError,
)
from engine.limits import WAL_PENDING_MAX, WAL_WINDOW
from engine.metadata.memory import MemoryMetadataStore
from engine.storage.objects import fence as fencing
from engine.storage.objects import records
from engine.storage.objects.footers import Footers, HoleError
from engine.storage.objects.format import (
    FENCE,
    TRAILER_SIZE,
    LogName,
    Trailer,
    WalGroup,
    pack_object,
    unpack_footers,
)
from engine.storage.objects.ports import ObjectMissingError
from engine.storage.objects.wal import ObjectWal
from engine.storage.objects.writer import WalConfig
from engine.testing.clock import FakeClock
from engine.testing.loop import run_virtual
from engine.testing.objects import FaultyObjectStore

SEGMENT, OTHER = "/topics/t/n/a/segments/0", "/topics/t/n/a/segments/1"
LOG = LogName("c", "a")


class Held(FaultyObjectStore):
    """A store whose PUTs of held names wait until they are released."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.held: dict[str, asyncio.Event] = {}
        self.put: list[str] = []

    def hold(self, n: int) -> None:
        self.held[LOG.object(n)] = asyncio.Event()

    def release(self, n: int) -> None:
        self.held.pop(LOG.object(n)).set()

    async def put_if_absent(self, name, buffers) -> None:
        self.put.append(name)
        if name in self.held and bytes(buffers[0]) != FENCE:
            await self.held[name].wait()
        await super().put_if_absent(name, buffers)


@dataclass
class Bench:
    """A store, the metadata, and sessions by name."""

    store: Held = field(default_factory=Held)
    metadata: MemoryMetadataStore = field(default_factory=lambda: MemoryMetadataStore(FakeClock()))
    config: WalConfig = field(default_factory=WalConfig)
    sessions: list[ObjectWal] = field(default_factory=list)

    async def open(self, name: str = "a", grace_s: float = 600.0) -> ObjectWal:
        rng = random.Random(len(self.sessions))
        url = f"engine://{name}:6650"
        wal = await ObjectWal.open(
            self.store, self.metadata, "c", name, url, rng=rng, config=self.config, grace_s=grace_s
        )
        self.sessions.append(wal)
        return wal


def virtual_with(bench: Bench) -> Callable[[Callable[[], Awaitable[None]]], Callable[[], None]]:
    """Run a test on virtual time; its sessions are closed."""

    async def body(test: Callable[[], Awaitable[None]]) -> None:
        await test()
        for wal in bench.sessions:
            await wal.writer.close()

    return lambda test: lambda: run_virtual(body(test))


def virtual(test: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on virtual time with a bench of its own."""

    def wrapped() -> None:
        bench = Bench()
        virtual_with(bench)(lambda: test(bench))()

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


def group(offset: int, body: bytes = b"body", segment: str = SEGMENT) -> WalGroup:
    return WalGroup(segment, 7, offset, offset + 1, [body])


async def in_objects(wal: ObjectWal, count: int, first: int = 0) -> None:
    """Append groups, each in an object of its own."""
    for offset in range(first, first + count):
        appended = asyncio.ensure_future(wal.append(group(offset, b"body %d" % offset)))
        await asyncio.sleep(0)
        await wal.drain()
        assert await appended == offset


async def read(wal: ObjectWal, start: int, end: int, segment: str = SEGMENT) -> list[tuple[int, bytes]]:
    return [(g.first_offset, bytes(data)) async for g, data in wal.read("a", start, end, segment)]


# -- writing -----------------------------------------------------------------------------------------------------------


@virtual
async def test_nothing_is_put_where_nothing_was_appended(bench: Bench):
    await bench.open()
    await asyncio.sleep(10)
    assert not bench.store.put


@virtual
async def test_r7_an_object_is_acknowledged_when_all_before_it_are_stored(bench: Bench):
    wal = await bench.open()
    bench.store.hold(0)
    first = asyncio.ensure_future(wal.append(group(0)))
    await asyncio.sleep(0.15)
    second = asyncio.ensure_future(wal.append(group(1)))
    await asyncio.sleep(5)
    assert LOG.object(1) in bench.store.objects
    assert not first.done()
    assert not second.done()
    assert wal.writer.acknowledged == 0
    bench.store.release(0)
    assert [await first, await second] == [0, 1]


@virtual
async def test_as_many_objects_as_the_window_has_are_in_flight_and_the_next_grows_meanwhile(bench: Bench):
    wal = await bench.open()
    bench.store.hold(0)
    appends = []
    for offset in range(40):
        appends.append(asyncio.ensure_future(wal.append(group(offset))))
        await asyncio.sleep(0.11)
    assert len(bench.store.put) == WAL_WINDOW
    assert wal.next_n == WAL_WINDOW
    bench.store.release(0)
    assert await asyncio.gather(*appends) == [*range(WAL_WINDOW), *[WAL_WINDOW] * (40 - WAL_WINDOW)]


@virtual
async def test_appends_wait_for_room_and_keep_their_order(bench: Bench):
    wal = await bench.open()
    bench.store.hold(0)
    size = WAL_PENDING_MAX // 16
    appends = [asyncio.ensure_future(wal.append(group(n, bytes(size if n < 20 else 1)))) for n in range(40)]
    await asyncio.sleep(1)
    assert sum(memoryview(b).nbytes for o in wal.writer._flying for b in o.buffers) <= WAL_PENDING_MAX + (1 << 20)
    assert not any(each.done() for each in appends)
    bench.store.release(0)
    await asyncio.gather(*appends)
    assert [offset for offset, _ in await read(wal, 0, wal.next_n)] == list(range(40))


@virtual
async def test_r7_an_object_that_was_stored_and_answered_with_an_error_is_found_by_its_uuid(bench: Bench):
    wal = await bench.open()
    bench.store.stored_fail_rate = 1.0
    await in_objects(wal, 3)
    assert len(bench.store.put) == 3


@virtual
async def test_r7_an_object_of_another_writer_ends_the_session(bench: Bench):
    wal = await bench.open()
    await bench.store.put_if_absent(LOG.object(0), [b"another uuid, 16", b"data"])
    with pytest.raises(UnknownOutcomeError, match="may be stored"):
        await wal.append(group(0))
    assert isinstance(await wal.ended, FencedError)
    with pytest.raises(FencedError):
        await wal.append(group(1))


@virtual
async def test_r8_a_put_that_stays_unresolved_ends_the_session(bench: Bench):
    wal = await bench.open()
    bench.store.hold(0)
    with pytest.raises(UnknownOutcomeError, match="did not say within 30 s"):
        await asyncio.gather(wal.append(group(0)), wal.append(group(1)))
    assert isinstance(await wal.ended, FencedError)


@virtual
async def test_r9_r10_drain_waits_for_all_that_was_appended(bench: Bench):
    wal = await bench.open()
    bench.store.hold(1)
    await wal.append(group(0))
    second = asyncio.ensure_future(wal.append(group(1)))
    drained = asyncio.ensure_future(wal.drain())
    await asyncio.sleep(5)
    assert not drained.done()
    bench.store.release(1)
    assert await drained == 2
    assert await second == 1
    assert await wal.drain() == wal.next_n == 2


@virtual
async def test_r14_a_session_that_ends_in_order_records_its_end(bench: Bench):
    wal, other = await bench.open(), await bench.open("b")
    await in_objects(wal, 2)
    await wal.close()
    await wal.close()
    assert (await records.read(bench.metadata, "a")).record.fenced == 2
    with pytest.raises(AlreadyClosedError):
        await wal.append(group(2))
    assert await other.fence("a") == 2
    assert len(bench.store.objects) == 2  # no FENCE was needed


@virtual
async def test_a_session_begins_once(bench: Bench):
    await bench.open()
    with pytest.raises(AlreadyExistsError, match="there is, or was, a session 'a'"):
        await bench.open()


@pytest.mark.parametrize("name", ["", "A", "a/b", "-a", "a" * 65])
def test_names_of_sessions_are_checked(name: str):
    async def body() -> None:
        with pytest.raises(InvalidArgumentError, match="session must be"):
            await Bench().open(name)

    run_virtual(body())


@pytest.mark.parametrize("config", [{"flush_s": 0.0}, {"flush_s": 2.0}, {"resolve_s": 0}])
def test_the_configuration_is_checked(config: dict[str, float]):
    with pytest.raises(InvalidArgumentError, match="must be"):
        WalConfig(**config)


# -- the fence ---------------------------------------------------------------------------------------------------------


@virtual
async def test_r4_the_fence_is_at_the_first_hole_and_ends_the_session(bench: Bench):
    wal, other = await bench.open(), await bench.open("b")
    await in_objects(wal, 2)
    bench.store.hold(2)
    appends = [asyncio.ensure_future(wal.append(group(2)))]
    await asyncio.sleep(0.2)
    appends.append(asyncio.ensure_future(wal.append(group(3))))
    await asyncio.sleep(0.2)
    assert LOG.object(3) in bench.store.objects
    assert await other.fence("a") == 2
    bench.store.release(2)
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [UnknownOutcomeError] * 2
    assert "fenced at or below 2" in str(await wal.ended)
    assert await read(other, 0, 2) == [(0, b"body 0"), (1, b"body 1")]


@virtual
async def test_r4_successors_are_told_one_end(bench: Bench):
    wal, others = await bench.open(), [await bench.open(f"b{n}") for n in range(3)]
    await in_objects(wal, 1)
    assert await asyncio.gather(*(other.fence("a") for other in others)) == [1, 1, 1]
    assert (await records.read(bench.metadata, "a")).record.fenced == 1
    assert sum(data == FENCE for data in bench.store.objects.values()) >= 16


@virtual
async def test_r5_a_fence_on_a_name_that_was_deleted_meanwhile_means_nothing(bench: Bench):
    wal, other = await bench.open(grace_s=0.0), await bench.open("b")
    await in_objects(wal, 3)
    found = fencing._first_without_data

    async def late(store, log, trimmed: int) -> int:
        """As if the list were older than a trim."""
        fencing._first_without_data = found
        await wal.trim("a", 2)
        assert await wal.delete_trimmed() == 2
        return 0

    fencing._first_without_data = late
    try:
        assert await other.fence("a") == 3
    finally:
        fencing._first_without_data = found
    assert bench.store.objects[LOG.object(0)] == FENCE
    assert await read(other, 2, 3) == [(2, b"body 2")]


@virtual
async def test_a_session_that_was_never_opened_cannot_be_fenced(bench: Bench):
    with pytest.raises(Exception, match="there is no session 'x'"):
        await (await bench.open()).fence("x")


@virtual
async def test_what_waits_for_a_quiet_log_waits_while_one_is_on_its_way_and_no_longer_than_it_says(bench: Bench):
    wal, loop = await bench.open(), asyncio.get_running_loop()
    bench.store.hold(0)
    appended = asyncio.ensure_future(wal.append(group(0)))
    await asyncio.sleep(bench.config.flush_s + 0.001)
    begun = loop.time()
    await wal.writer.quiet(2.0)
    assert loop.time() - begun == pytest.approx(2.0)
    waiting = asyncio.ensure_future(wal.writer.quiet(60.0))
    bench.store.release(0)
    await appended
    assert not waiting.done(), "the next object may follow at once"
    begun = loop.time()
    await waiting
    assert loop.time() - begun < 1.0


# -- reading -----------------------------------------------------------------------------------------------------------


@virtual
async def test_a_long_log_is_read_through_one_object_in_64(bench: Bench):
    wal = await bench.open()
    await in_objects(wal, 200)
    before = bench.store.statistics().requests["get"]
    found = await Footers(bench.store).of(LOG, 10, 200, SEGMENT)
    assert [footer.n for footer in found] == list(range(10, 200))
    assert bench.store.statistics().requests["get"] - before == 3 + 8
    assert await read(wal, 60, 70) == [(n, b"body %d" % n) for n in range(60, 70)]


@virtual
async def test_groups_of_a_segment_lie_together_and_are_read_together(bench: Bench):
    wal = await bench.open()
    bodies = [(0, SEGMENT), (0, OTHER), (1, SEGMENT), (2, SEGMENT)]
    await asyncio.gather(*(wal.append(group(offset, b"%d" % offset, segment)) for offset, segment in bodies))
    before = bench.store.statistics().requests["get"]
    assert await read(wal, 0, 1) == [(0, b"0"), (1, b"1"), (2, b"2")]
    assert bench.store.statistics().requests["get"] - before == 1 + 1
    assert await read(wal, 0, 1, OTHER) == [(0, b"0")]


@virtual
async def test_large_footers_are_read_with_a_second_request(bench: Bench):
    wal = await bench.open()
    await asyncio.gather(*(wal.append(group(n)) for n in range(2_000)))
    assert len(await read(wal, 0, 1)) == 2_000


@virtual
async def test_r12_a_hole_is_an_error_of_its_own(bench: Bench):
    wal, other = await bench.open(), await bench.open("b")
    await in_objects(wal, 3)
    del bench.store.objects[LOG.object(1)]
    with pytest.raises(HoleError, match="no object lies at wal/c/a/000000000001"):
        await read(other, 0, 3)
    await other.fence("a")
    with pytest.raises(HoleError, match="a FENCE lies at wal/c/a/000000000001"):
        await read(other, 0, 3)


@pytest.mark.parametrize("at", [0, 16, 20, 30, 60, -1, -20, -28, -32])
def test_damage_is_found(at: int):
    """A flipped bit anywhere but in the uuid."""

    async def body() -> None:
        bench = Bench()
        wal = await bench.open()
        await wal.append(group(0, b"the body of a group"))
        data = bytearray(bench.store.objects[LOG.object(0)])
        data[at] ^= 1
        bench.store.objects[LOG.object(0)] = bytes(data)
        if at == 0:
            assert await read(wal, 0, 1) == [(0, b"the body of a group")]
        else:
            with pytest.raises(CorruptionError, match="wal/c/a/000000000000"):
                await read(wal, 0, 1)
        await wal.writer.close()

    run_virtual(body())


@virtual
async def test_an_object_of_another_session_or_n_is_damage(bench: Bench):
    wal = await bench.open()
    await in_objects(wal, 2)
    bench.store.objects[LOG.object(0)] = bench.store.objects[LOG.object(1)]
    with pytest.raises(CorruptionError, match="that of another n"):
        await read(wal, 0, 1)
    bench.store.objects["wal/c/b/000000000000"] = bench.store.objects[LOG.object(1)]
    with pytest.raises(CorruptionError, match="the object is of session 'a'"):
        await Footers(bench.store).of(LogName("c", "b"), 0, 1, SEGMENT)


def test_the_format_is_that_of_the_page():
    """The bytes, by hand. Not to be changed: objects of earlier versions are read."""
    groups = [WalGroup("/s", 2, 3, 5, [b"abc", b"de"]), WalGroup("/t", 9, 0, 1, [b"f"])]
    buffers, own = pack_object(LogName("c", "ab"), 6, b"u" * 16, groups)
    image = b"".join(map(bytes, buffers))
    assert image[:22] == b"u" * 16 + b"abcdef"
    assert image[22:26] == b"ENWF"
    assert image[30:52].hex() == "7e000000010002000600000000000000020000006162"
    first = "10000000000000000500000000000000030000000000000005000000000000000200000000000000"
    assert image[52:92].hex() == first
    assert image[96:100] == b"\x02\x00/s"
    assert image[22:-32] == own
    assert image[-32:-28] == b"ENWT"
    assert image[-24:].hex() == "16000000000000007e000000000000000100000001000000"
    trailer = Trailer.unpack(memoryview(image)[-TRAILER_SIZE:], "x")
    (footer,) = unpack_footers(memoryview(image)[trailer.position : -32], 1, "ab", "x")
    assert [g[:5] + g[5:7] for g in footer.groups] == [(6, "/s", 2, 3, 5, 16, 5), (6, "/t", 9, 0, 1, 21, 1)]


def test_a_later_format_is_refused():
    _, own = pack_object(LogName("c", "a"), 0, b"u" * 16, [])
    later = bytearray(own)
    later[12] = 2
    later[4:8] = crc32c(later[8:]).to_bytes(4, "little")
    with pytest.raises(UnsupportedError, match="an object of format 2; this build reads format 1"):
        unpack_footers(memoryview(later), 1, "a", "x")


@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 255), st.integers(0, 3))
@example(b"\xff" * 40, 14, 255, 1)
def test_footers_that_pass_their_checksum_are_read_or_damage(tail: bytes, at: int, value: int, count: int):
    """Whatever is changed in a footer whose checksum was made to fit, nothing but a typed error comes of it."""
    groups = [WalGroup("/s", 2, 3, 5, [b"abc"]), WalGroup("/t", 9, 0, 1, [b"f"])]
    image = bytearray(pack_object(LogName("c", "ab"), 6, b"u" * 16, groups)[1] + tail)
    image[at % len(image)] = value
    image[8:12] = len(image).to_bytes(4, "little")
    image[4:8] = crc32c(image[8:]).to_bytes(4, "little")
    try:
        found = unpack_footers(memoryview(image), count, "ab", "x")
    except (CorruptionError, UnsupportedError) as e:
        assert "x: " in str(e)  # noqa: PT017 - most examples are damage, some are not
    else:
        assert all(isinstance(group.segment, str) for footer in found for group in footer.groups)


GOLDEN = Path(__file__).parents[1] / "golden" / "objects" / "object-63-v1.bin"


def golden_object() -> bytes:
    """How the golden file was made: the 64th object of a session, which repeats the footers of three before it."""
    log = LogName("golden", "session-1")
    before = [pack_object(log, n, bytes(16), [WalGroup(SEGMENT, 1, n, n + 1, [b"body"])])[1] for n in (60, 61, 62)]
    groups = [WalGroup(SEGMENT, 1, 63, 65, [b"two ", b"entries"]), WalGroup(OTHER, 7, 0, 0, [b"a header"])]
    return b"".join(map(bytes, pack_object(log, 63, bytes(range(16)), groups, before)[0]))


def test_objects_of_earlier_versions_are_read():
    data = memoryview(GOLDEN.read_bytes())
    trailer = Trailer.unpack(data[-TRAILER_SIZE:], "golden")
    found = unpack_footers(data[trailer.position : -TRAILER_SIZE], trailer.count, "session-1", "golden")
    assert [footer.n for footer in found] == [60, 61, 62, 63]
    assert [bytes(data[g.position :][: g.size]) for g in found[-1].groups] == [b"two entries", b"a header"]
    assert [g.segment for g in found[-1].groups] == [SEGMENT, OTHER]
    assert bytes(data) == golden_object()


# -- trimming ----------------------------------------------------------------------------------------------------------


@virtual
async def test_r15_trimmed_objects_are_deleted_after_the_grace(bench: Bench):
    wal = await bench.open(grace_s=600.0)
    await in_objects(wal, 5)
    await wal.trim("a", 3)
    assert (await records.read(bench.metadata, "a")).record.trimmed == 3
    assert await wal.delete_trimmed() == 0
    await asyncio.sleep(600)
    assert await wal.delete_trimmed() == 3
    assert list(bench.store.objects) == [LOG.object(3), LOG.object(4)]
    assert await wal.delete_trimmed() == 0


@virtual
async def test_r15_no_more_is_trimmed_than_is_acknowledged(bench: Bench):
    wal = await bench.open(grace_s=0.0)
    await in_objects(wal, 2)
    await wal.trim("a", 100)
    assert (await records.read(bench.metadata, "a")).record.trimmed == 2


@virtual
async def test_r6_r15_a_session_that_was_fenced_trims_nothing_and_no_fence_goes(bench: Bench):
    wal, other = await bench.open(grace_s=0.0), await bench.open("b")
    await in_objects(wal, 2)
    assert await other.fence("a") == 2
    with pytest.raises(FencedError, match="session 'a' was fenced at 2"):
        await wal.trim("a", 2)
    await wal.delete_trimmed()
    assert await read(other, 0, 2) == [(0, b"body 0"), (1, b"body 1")]
    assert bench.store.objects[LOG.object(2)] == FENCE


@virtual
async def test_r15_only_the_own_session_is_trimmed(bench: Bench):
    wal = await bench.open()
    with pytest.raises(InvalidArgumentError, match="session must be the own one, 'a', got 'b'"):
        await wal.trim("b", 0)


# -- what is found by reading ------------------------------------------------------------------------------------------


@virtual
async def test_a_reference_that_is_being_written_holds_the_log(bench: Bench) -> None:
    wal = await bench.open()
    with wal.beginning() as start:
        await in_objects(wal, 3)
        assert (wal.unneeded, wal.writer.acknowledged) == (start, start + 3)
    assert wal.unneeded == start + 3


class Broken(Held):
    """A store whose PUTs end in an error that no store should raise."""

    error: Exception | None = None

    async def put_if_absent(self, name, buffers) -> None:
        if self.error is not None:
            raise self.error
        await super().put_if_absent(name, buffers)


def test_a_fault_in_a_put_ends_the_session_and_nothing_waits_for_it() -> None:
    bench = Bench(store=Broken())

    @virtual_with(bench)
    async def body() -> None:
        wal = await bench.open()
        bench.store.error = ValueError("a fault of the library")
        with pytest.raises(UnknownOutcomeError, match="a fault of the library"):
            await wal.append(group(0))
        assert wal.writer.over is not None

    body()


def test_a_put_that_finds_no_bucket_is_sent_again() -> None:
    bench = Bench(store=Broken())

    @virtual_with(bench)
    async def body() -> None:
        wal = await bench.open()
        bench.store.error = ObjectMissingError("no such bucket")
        waiting = asyncio.ensure_future(wal.append(group(0)))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        bench.store.error = None
        assert await waiting == 0

    body()
