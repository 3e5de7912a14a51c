"""A store in another process: readers that do not read, floods, garbage, and builds that speak otherwise."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.errors import (
    AlreadyClosedError,
    ProtocolError,
    UnsupportedError,
)
from engine.metadata import protocol
from engine.metadata.store import EventKind, Stat
from engine.wire.commands import Metadata, Ping
from tests.kit.peer import until
from tests.metadata.gated import BOUND_S, take
from tests.metadata.served import Served

PUT_REQUEST = protocol.PutOne(1, "/a", b"v", False, 3, None, {"i": ("x", "y")})
PUT, DELETE, END = EventKind.PUT, EventKind.DELETE, EventKind.SNAPSHOT_END


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
