"""A store in another process: connections that break, slow readers, sessions with deadlines, several clients."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from engine.clock import SystemClock
from engine.errors import (
    AlreadyClosedError,
    ConnectError,
    InvalidArgumentError,
    ProtocolError,
    StorageError,
    TimeoutError,
    UnsupportedError,
)
from engine.limits import METADATA_CHANGES_MAX
from engine.metadata import protocol
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.remote import RemoteMetadataStore
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import ABSENT, Append, ConflictError, EventKind, OutcomeUnknownError, Put, Stat
from engine.wire.commands import Metadata, Ping
from tests.kit.peer import until
from tests.metadata.served import TRANSPORTS, Gated, Served, gated

PUT, DELETE, END = EventKind.PUT, EventKind.DELETE, EventKind.SNAPSHOT_END
BOUND_S = 20
PUT_REQUEST = protocol.PutOne(1, "/a", b"v", False, 3, None, {"i": ("x", "y")})


@pytest.fixture(params=TRANSPORTS)
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    async with Served(Gated(), request.param, tmp_path) as made:
        yield made


@pytest.fixture
async def unix(tmp_path: Path) -> AsyncIterator[Served]:
    async with Served(Gated(), "unix", tmp_path) as made:
        yield made


async def take(watch: Any, count: int) -> list[tuple[EventKind, str]]:
    events = [await asyncio.wait_for(anext(aiter(watch)), BOUND_S) for _ in range(count)]
    return [(event.kind, event.key) for event in events]


# -- connections that break --------------------------------------------------------------------------------------------


async def test_a_write_in_flight_over_a_loss_is_unknown_and_reading_back_shows_what_became_of_it(
    served: Served,
) -> None:
    client, store = await served.client(), gated(served)
    store.gate.clear()
    writing = [asyncio.ensure_future(client.put(f"/{i}", b"v", ABSENT)) for i in range(3)]
    await until(lambda: store.waiting > 0)
    served.cut()
    outcomes = await asyncio.gather(*writing, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknownError] * 3
    reading = asyncio.ensure_future(client.list_keys("/", "0"))
    await asyncio.sleep(0)
    assert not reading.done()
    store.gate.set()  # only then is the client welcome again
    assert await reading == ["/0", "/1", "/2"]
    with pytest.raises(ConflictError):
        await client.put("/0", b"w", ABSENT)


async def test_the_writes_of_a_connection_before_the_last_one_are_waited_for_too(served: Served) -> None:
    client, store = await served.client(), gated(served)
    store.gate.clear()
    writing = asyncio.ensure_future(client.put("/a", b"v"))
    await until(lambda: store.waiting == 1)
    for _ in range(3):
        (last,) = served.service._clients.values()
        served.cut()
        await until(lambda last=last: last not in served.service._clients.values())  # type: ignore[misc]
        await until(lambda: served.service._clients)  # it has connected again, and waits for its welcome
    with pytest.raises(OutcomeUnknownError):
        await writing
    reading = asyncio.ensure_future(client.get("/a"))
    await asyncio.wait([reading], timeout=0.1)
    assert not reading.done(), "it would not show the write"
    store.gate.set()
    record = await reading
    assert record is not None
    assert record.value == b"v"


async def test_calls_while_disconnected_wait_and_go_on(served: Served) -> None:
    client = await served.client()
    await client.put("/a", b"1")
    await served.stop()
    await until(lambda: not client.connected)
    calls: list[Awaitable[object]] = [client.get("/a"), client.put("/b", b"2"), client.list("/", "0")]
    waiting = [asyncio.ensure_future(call) for call in calls]
    await asyncio.wait(waiting, timeout=0.05)
    assert not any(call.done() for call in waiting)
    await restart_at_the_same_address(served)
    record, stat, found = await asyncio.wait_for(asyncio.gather(*waiting), BOUND_S)
    assert record is not None
    assert stat is not None
    assert found
    assert client.pid == 8


async def restart_at_the_same_address(served: Served) -> None:
    """TCP takes the port that is free again: clients know one address."""
    url = served.url
    await served.restart()
    for client in served.clients:
        client.url = served.url
    assert served.transport == "tcp" or served.url == url


async def test_calls_end_when_no_service_comes_back(tmp_path: Path) -> None:
    async with Served(Gated(), "unix", tmp_path, timeout=0.2) as served:
        client = await served.client()
        store = gated(served)
        store.gate.clear()
        writing = asyncio.ensure_future(client.put("/a", b""))
        await until(lambda: store.waiting == 1)
        with pytest.raises(OutcomeUnknownError, match=r"process 7\) did not answer within 0.2 s"):
            await writing  # the service is there, and silent
        store.gate.set()
        assert await client.get("/a") is not None
        await served.stop()
        await until(lambda: not client.connected)
        with pytest.raises(TimeoutError, match=r"process 7.*nothing is served there.*nothing was done"):
            await client.put("/b", b"")
        with pytest.raises(TimeoutError):
            await client.get("/a")
    with pytest.raises(ConnectError):
        await served.client()


async def test_a_watch_goes_on_over_lost_connections_and_misses_nothing(served: Served) -> None:
    client, other = await served.client(), await served.client()
    watch, by_index = client.watch("/w/"), client.watch_index("i", "a", "c")
    assert await take(watch, 1) == await take(by_index, 1) == [(END, "")]
    await other.put("/w/1", b"", indexes={"i": "a"})
    await other.put("/w/2", b"", indexes={"i": "b"})
    assert await take(watch, 2) == await take(by_index, 2) == [(PUT, "/w/1"), (PUT, "/w/2")]
    served.cut()  # what follows is done before anything else runs
    await served.store.delete("/w/1")
    await served.store.put("/w/3", b"", indexes={"i": "a"})
    assert by_key(await take(watch, 2)) == by_key(await take(by_index, 2)) == [(DELETE, "/w/1"), (PUT, "/w/3")]


async def test_a_watch_of_one_key_goes_on_over_lost_connections(served: Served) -> None:
    client, other = await served.client(), await served.client()
    watch = client.watch_key("/w/1")
    assert await take(watch, 1) == [(END, "")]
    await other.put("/w/12", b"")
    await other.put("/w/1", b"")
    assert await take(watch, 1) == [(PUT, "/w/1")]
    served.cut()
    await served.store.put("/w/13", b"")
    await served.store.delete("/w/1")
    assert await take(watch, 1) == [(DELETE, "/w/1")]


async def test_a_service_of_an_older_build_tells_of_all_that_begins_likewise_and_it_is_passed_over(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await served.client(), await served.client()
    monkeypatch.setattr(MemoryMetadataStore, "watch_key", MemoryMetadataStore.watch)
    await other.put("/w/12", b"")
    await other.put("/w/1", b"")
    watch = client.watch_key("/w/1")
    assert await take(watch, 2) == [(PUT, "/w/1"), (END, "")]
    await other.put("/w/12", b"")
    await other.delete("/w/12")
    await other.delete("/w/1")
    assert await take(watch, 1) == [(DELETE, "/w/1")]


def by_key(events: list[tuple[EventKind, str]]) -> list[tuple[EventKind, str]]:
    """A watch that begins anew reports deletions behind what its snapshot shows."""
    return sorted(events, key=lambda event: event[1])


async def test_a_watch_whose_changes_the_store_forgot_reports_the_difference(unix: Served) -> None:
    client = await unix.client()
    for i in range(3):
        await unix.store.put(f"/w/{i}", b"")
    watch = client.watch("/w/")
    assert len(await take(watch, 4)) == 4
    await unix.stop()
    await until(lambda: not client.connected)
    await unix.store.delete("/w/1")
    await unix.store.put("/w/2", b"new")
    for _ in range(METADATA_CHANGES_MAX + 1):
        await unix.store.put("/other", b"")
    await unix.restart()
    assert by_key(await take(watch, 2)) == [(DELETE, "/w/1"), (PUT, "/w/2")]
    await unix.store.put("/w/0", b"behind it")
    assert await take(watch, 1) == [(PUT, "/w/0")]


async def test_a_watch_that_was_cut_off_in_its_snapshot_has_one_snapshot(unix: Served) -> None:
    keys = [f"/w/{i:04d}" for i in range(2_000)]
    for key in keys:
        await unix.store.put(key, bytes(4_096))  # more than buffers on the way hold
    client = await unix.client()
    watch = client.watch("/w/")
    seen = dict.fromkeys(key for _, key in await take(watch, 10))
    assert list(seen) == keys[:10]
    link = client._link
    assert link is not None
    link.stream.pause_reading()
    unix.cut()
    await unix.store.delete(keys[5])
    await unix.store.delete(keys[1_999])
    link.stream.resume_reading()  # what is on its way, and then the end
    last: dict[str, EventKind] = {}
    while END not in last.values():
        ((kind, key),) = await take(watch, 1)
        assert (kind, key) != (PUT, keys[1_999])
        last[key] = kind
    assert last[keys[5]] is DELETE
    assert {key for key, kind in last.items() if kind is PUT} == set(keys[10:1_999])
    await unix.store.put("/w/0000", b"behind it")
    assert await take(watch, 1) == [(PUT, "/w/0000")]


# -- slow readers, floods, garbage ------------------------------------------------------------------------------------


async def test_a_client_that_does_not_read_costs_the_service_little(unix: Served) -> None:
    slow, busy = await unix.client(), await unix.client()
    watch = slow.watch("/w/")
    await take(watch, 1)
    link = slow._link
    assert link is not None
    link.stream.pause_reading()
    value = bytes(64 * 1024)
    for i in range(400):  # 25 MiB of events, of four keys
        await busy.put(f"/w/{i % 4}", value)
    unsent = max(stream.unsent_bytes for stream in unix.streams)
    assert unsent < 6 << 20
    link.stream.resume_reading()
    latest: dict[str, int] = {}
    last = (await busy.list("/w/", "/w0"))[-1].stat.version
    while max(latest.values(), default=0) < last:
        event = await asyncio.wait_for(anext(watch), BOUND_S)
        latest[event.key] = event.version
    assert len(latest) == 4


async def test_events_that_a_reader_does_not_take_collapse(served: Served) -> None:
    client = await served.client()
    watch = client.watch("/w/")
    await take(watch, 1)
    for i in range(200):
        await client.put(f"/w/{i % 4}", b"")
    await client.put("/w/new", b"")
    await client.delete("/w/new")
    assert watch.owed == 4


async def test_a_long_list_comes_in_parts_and_is_whole(served: Served) -> None:
    client = await served.client()
    value = bytes(100_000)
    for i in range(60):
        await served.store.put(f"/l/{i:03d}", value, indexes={"i": f"{i:03d}"})
    assert [record.key for record in await client.list("/l/", "/l0")] == [f"/l/{i:03d}" for i in range(60)]
    assert len(await client.list_index("i", "", "z")) == 60
    assert len(await client.list("/l/", "/l0", 7)) == 7


async def test_a_garbage_frame_ends_its_connection_alone(unix: Served) -> None:
    good = await unix.client()
    requests = [
        (Metadata(), b"\xc1"),
        (Metadata(), protocol.encode([[99, 1]])),
        (Metadata(), protocol.joined([protocol.encode(protocol.Get(1, "/a"))])),  # not greeted
        (Ping(), b""),
    ]
    for header, payload in requests:
        bad = await unix.client()
        link = bad._link
        assert link is not None
        before = unix.service.connections
        stranger = await unix.connector.connect(unix.url, lambda stream: Stranger())
        await until(lambda before=before: unix.service.connections == before + 1)  # type: ignore[misc]
        stranger.send(header, payload)
        await until(lambda before=before: unix.service.connections == before)  # type: ignore[misc]
        link.stream.send(header, payload)
        if not (isinstance(header, Metadata) and b"/a" in payload):
            await until(lambda link=link: link.ended.is_set())  # type: ignore[misc]
        assert await bad.get("/a") is None, "it has connected again"
        await bad.close()
    await good.put("/a", b"")


class Stranger:
    """An end that says nothing by itself."""

    def frame_received(self, header: object, payload: memoryview) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


def test_random_bytes_are_messages_or_a_protocol_error() -> None:
    rng = random.Random(5)
    requests = protocol.joined([protocol.encode(protocol.Hello(1, 2, "b")), protocol.encode(PUT_REQUEST)])
    answers = protocol.encode((7, [protocol.Done(1, Stat(1, 2, 3)), protocol.Refused(1, 2, "no")]))
    refused = 0
    for good, decode in ((requests, protocol.decode_requests), (answers, protocol.decode_answers)):
        assert decode(good)
        for _ in range(2_000):
            bad = bytearray(good)
            for _ in range(rng.randint(1, 4)):
                bad[rng.randrange(len(bad))] = rng.randrange(256)
            try:
                decode(bytes(bad[: rng.randint(1, len(bad))]))
            except ProtocolError:
                refused += 1
    assert refused > 1_000


async def test_a_watch_of_a_store_that_is_closed_fails_at_its_reader(unix: Served) -> None:
    client = await unix.client()
    await unix.store.close()
    with pytest.raises(AlreadyClosedError):
        await take(client.watch("/"), 1)


async def test_a_build_of_another_protocol_is_refused_by_name(unix: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PROTOCOL", 2)
    hello = protocol.Hello(3, 1, "engine 9.9")
    monkeypatch.setattr(protocol, "Hello", lambda *arguments: hello)
    with pytest.raises(UnsupportedError, match=r"engine 9\.9 speaks protocol 3 of the metadata store, test 2"):
        await unix.client()


# -- writes of one turn ------------------------------------------------------------------------------------------------


async def test_writes_of_one_turn_are_one_call_of_the_store(served: Served) -> None:
    client, store = await served.client(), gated(served)
    outcomes = await asyncio.gather(
        *(client.put(f"/{i}", b"") for i in range(50)),
        client.put("/0", b"", ABSENT),
        client.delete("/1"),
        return_exceptions=True,
    )
    assert store.calls == 1
    assert isinstance(outcomes[50], ConflictError)
    assert outcomes[51] is True
    assert [isinstance(outcome, Exception) for outcome in outcomes].count(True) == 1


async def test_writes_of_all_kinds_keep_the_order_in_which_they_were_made(served: Served) -> None:
    client = await served.client()
    found = await asyncio.gather(
        client.put("/a", b""),
        client.put_sequence("/s", b""),
        client.put("/b", b""),
        client.put_with_sequence(Put("/c", b""), Append("/s", b"")),
        client.delete_range("/a", "/b"),
        client.put("/a", b"", ABSENT),
    )
    first, second, third, (fourth, appended), deleted, last = found
    versions = [first.version, second.stat.version, third.version, appended.stat.version, fourth.version, last.version]
    assert versions == sorted(versions)
    assert deleted == 1


async def test_an_error_of_the_store_reaches_the_writer_with_its_type(served: Served) -> None:
    client, store = await served.client(), gated(served)
    for failure in (StorageError("the disk"), OutcomeUnknownError("the commit")):
        store.failure = failure
        with pytest.raises(type(failure), match="the "):
            await client.put("/a", b"")
    store.failure = None
    with pytest.raises(InvalidArgumentError, match="text"):
        await client.get("\ud800")
    with pytest.raises(InvalidArgumentError):
        await client.put("/a", b"", 1 << 70)
    await client.put("/a", b"")


# -- two clients -------------------------------------------------------------------------------------------------------


async def test_of_clients_that_compete_for_each_version_one_gets_it(served: Served) -> None:
    clients = [await served.client() for _ in range(3)]
    await clients[0].put("/n", b"0")
    done = 0

    async def count(client: RemoteMetadataStore) -> None:
        nonlocal done
        for _ in range(20):
            while True:
                record = await client.get("/n")
                assert record is not None
                try:
                    await client.put("/n", str(int(record.value) + 1).encode(), record.stat.version)
                except ConflictError:
                    continue
                done += 1
                break

    await asyncio.wait_for(asyncio.gather(*map(count, clients)), 60)
    record = await clients[0].get("/n")
    assert record is not None
    assert int(record.value) == done == 60


async def test_the_mirror_has_own_writes_at_once_and_those_of_others_soon(served: Served) -> None:
    client, other = await served.client(), await served.client()
    await other.put("/a", b"1")
    assert await client.mirror.get("/none") is None
    for value in (b"1", b"1"):
        record = await client.mirror.get("/a")
        assert record is not None
        assert record.value == value
    await client.put("/a", b"2")
    assert (await client.mirror.get("/a")).value == b"2"  # type: ignore[union-attr]
    await other.put("/a", b"3")
    await until_value(client, "/a", b"3")
    await client.delete("/a")
    assert await client.mirror.get("/a") is None
    await other.put("/a", b"4")
    assert (await client.mirror.get("/a")).value == b"4", "absence is not kept"  # type: ignore[union-attr]
    await client.delete_range("/", "0")
    assert await client.mirror.get("/a") is None


async def until_value(client: RemoteMetadataStore, key: str, value: bytes) -> None:
    watch = client.watch(key)
    async for event in watch:
        if event.record is not None and event.record.value == value:
            break
    watch.close()
    record = await client.mirror.get(key)
    assert record is not None
    assert record.value == value, "what a watch has reported"


async def test_a_kept_record_is_read_without_the_service(unix: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await unix.client()
    await client.put("/a", b"1")
    await client.mirror.get("/a")
    asked: list[str] = []
    get = unix.store.newest.get

    async def noted(key: str) -> Any:
        asked.append(key)
        return await get(key)

    monkeypatch.setattr(unix.store, "get", noted)
    for _ in range(10):
        assert await client.mirror.get("/a") is not None
    assert asked == []
    await client.get("/a")
    assert asked == ["/a"], "newest goes to the store"


async def test_what_is_read_behind_an_event_is_as_new_as_the_event(served: Served) -> None:
    """Also a record of another key, which was written before."""
    client, other = await served.client(), await served.client()
    watch = client.watch("/w/")
    await take(watch, 1)
    for i in range(30):
        await other.put("/a", str(i).encode())
        await client.mirror.get("/a")
        await asyncio.gather(other.put("/a", f"{i}!".encode()), other.put(f"/w/{i}", b""))
        await take(watch, 1)
        assert (await client.mirror.get("/a")).value == f"{i}!".encode()  # type: ignore[union-attr]


async def test_nothing_is_kept_over_a_lost_connection(served: Served) -> None:
    client = await served.client()
    await served.store.put("/a", b"1")
    await client.mirror.get("/a")
    served.cut()  # what follows is done before anything else runs
    await served.store.put("/a", b"2")
    await client.get("/another")  # over the next connection
    assert (await client.mirror.get("/a")).value == b"2"  # type: ignore[union-attr]


# -- sessions ----------------------------------------------------------------------------------------------------------


async def test_a_session_lives_over_a_lost_connection_and_ends_when_it_is_not_refreshed(served: Served) -> None:
    client, other = await served.client(), await served.client()
    session = await client.session(2.0)
    await client.put("/a", b"", session=session)
    served.cut()
    deadline = session.deadline
    await session.refresh()
    assert session.deadline > deadline
    await client.put("/b", b"", session=session)
    assert await other.list_keys("/", "0") == ["/a", "/b"]
    watch = other.watch("/")
    await take(watch, 3)
    assert await take(watch, 2) == [(DELETE, "/a"), (DELETE, "/b")]
    assert SystemClock().monotonic() >= session.deadline
    with pytest.raises(AlreadyClosedError):
        await session.refresh()
    with pytest.raises(AlreadyClosedError):
        await client.put("/a", b"", session=session)


async def test_a_session_ends_with_its_store_that_is_closed(served: Served) -> None:
    client, other = await served.client(), await served.client()
    session = await client.session(30.0)
    await client.put("/a", b"", session=session)
    await client.close()
    assert await other.get("/a") is None
    with pytest.raises(InvalidArgumentError, match="timeout"):
        await other.session(1e6)


async def test_d1_a_service_that_dies_comes_back_on_its_file(tmp_path: Path) -> None:
    """Sessions of living clients go on, a watch misses nothing, and what was confirmed is there."""
    path = tmp_path / "metadata.db"

    async def opened() -> SqliteMetadataStore:
        return await SqliteMetadataStore.open(path, clock=SystemClock(), served=True)

    async with Served(await opened(), "unix", tmp_path) as served:
        client, gone = await served.client(), await served.client()
        session, lost = await client.session(20.0), await gone.session(20.0)
        await client.put("/mine", b"", session=session)
        await gone.put("/gone", b"", session=lost)
        local = await served.store.session()
        await served.store.put("/local", b"", session=local)
        watch = client.watch("/w/")
        await client.put("/w/1", b"")
        assert await take(watch, 2) == [(END, ""), (PUT, "/w/1")]
        await served.stop()
        await served.store.close()
        store = await opened()
        await store.put("/w/2", b"")
        await served.restart(store)
        assert await take(watch, 1) == [(PUT, "/w/2")]
        await session.refresh()
        assert await client.list_keys("/", "0") == ["/gone", "/mine", "/w/1", "/w/2"], "a local session ends at once"
        await client.put("/mine2", b"", session=session)
        new = await client.session(5.0)
        assert new.id not in (session.id, lost.id)
