"""What lists of topics cost a broker: permits for what is put together and for what waits for sockets (PIP-442)."""

from __future__ import annotations

import asyncio
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import engine.control.topic.topic_lists
from engine.aio.memory_limiter import LimitType
from engine.aio.semaphore import AsyncSemaphore
from engine.broker.pools.pools import BrokerMemory
from engine.broker.server import Broker
from engine.broker.session import list_requests, topic_lists
from engine.broker.settings.config import BrokerConfig
from engine.client.topic.topic_list import TopicListSession, TopicQuery
from engine.control.topic.list_memory import LIST_SIZE, LISTED_NAME_SIZE, READ_TOPIC_SIZE
from engine.control.topic.topic_lists import TopicFacts, TopicList
from engine.errors import PermitQueueFullError, PermitTimeoutError, TooManyRequestsError
from engine.limits import MIB, TOPIC_LIST_INITIAL_SIZE
from engine.model.names import TopicName
from engine.model.topic_filter import TopicFilter
from engine.testing.loop import run_virtual
from engine.wire.commands import Command, Header, WatchTopicListUpdate, decode
from engine.wire.packing import PackedHeader
from tests.kit.peer import Peer, until

NS = "public/default"
LIST = {"namespace": NS, "properties": None, "pattern": None}
HEAP, DIRECT = LimitType.HEAP_MEMORY, LimitType.DIRECT_MEMORY


async def names_of(peer: Peer, **asked: Any) -> list[str]:
    answer = await peer.ask(Command.GET_TOPICS_OF_NAMESPACE, **{**LIST, "after": None, **asked})
    return list(answer["result"]["topics"])


async def watch(peer: Peer) -> tuple[int, dict[str, Any]]:
    session = peer.next_id()
    return session, await peer.ask(Command.WATCH_TOPIC_LIST, session_id=session, **LIST, hash=None)


async def until_queued(broker: Broker, kind: LimitType, count: int) -> None:
    await until(lambda: broker.memory.topic_lists.statistics()[kind].queue == count)


async def until_returned(broker: Broker) -> None:
    """Every permit has come back."""
    pools = broker.memory.topic_lists
    await until(lambda: not any(pool.used or pool.queue for pool in pools.statistics().values()))


@pytest.mark.parametrize("kind", [HEAP, DIRECT])
async def test_without_memory_a_list_waits_and_nothing_else_does(broker, connect, kind):
    await broker.service.create_topic("a")
    held = await broker.memory.topic_lists.acquire(100 * MIB, kind)
    peer = await connect()
    waiting = asyncio.ensure_future(names_of(peer))
    await until_queued(broker, kind, 1)
    assert (await peer.lookup("a"))["dag"]["epoch"] >= 0  # over the same connection
    assert not waiting.done()
    broker.memory.topic_lists.release(held)
    assert await waiting == ["topic://public/default/a"]
    await until_returned(broker)


@pytest.mark.parametrize("kind", ["heap", "direct"])
async def test_after_its_time_a_list_is_refused_by_a_typed_error(start_broker, kind):
    async with start_broker(**{f"topic_list_{kind}_timeout": 0.01}) as broker:
        held = await broker.memory.topic_lists.acquire(100 * MIB, LimitType(kind))
        peer = await Peer.connect(broker)
        with pytest.raises(PermitTimeoutError, match=f"topic_list_{kind}"):
            await names_of(peer)
        with pytest.raises(PermitTimeoutError, match=f"topic_list_{kind}"):
            await watch(peer)
        assert broker.memory.topic_lists.statistics()[LimitType(kind)].timeouts == 2
        broker.memory.topic_lists.release(held)
        await names_of(peer)  # the connection is as good as before
        await until_returned(broker)


async def test_a_full_queue_refuses_at_once(start_broker):
    async with start_broker(topic_list_heap_queue_max=0) as broker:
        await broker.memory.topic_lists.acquire(100 * MIB, HEAP)
        with pytest.raises(PermitQueueFullError):
            await names_of(await Peer.connect(broker))


@pytest.mark.parametrize("kind", [HEAP, DIRECT])
async def test_who_is_gone_does_not_wait_any_more(broker, connect, kind):
    await broker.service.create_topic("a")
    assert await names_of(await connect())  # there is a list
    held = await broker.memory.topic_lists.acquire(100 * MIB, kind)
    peers = [await connect() for _ in range(3)]
    asked = [asyncio.ensure_future(ask(peer)) for peer in peers for ask in (names_of, watch)]
    await until_queued(broker, kind, 3)  # one after the other over each connection
    for peer in peers:
        peer.stream.abort()
    await asyncio.gather(*asked, return_exceptions=True)
    await until_queued(broker, kind, 0)
    broker.memory.topic_lists.release(held)
    await until_returned(broker)


async def test_a_change_that_there_is_no_memory_for_is_told_when_there_is(start_broker, monkeypatch):
    monkeypatch.setattr(topic_lists, "_AGAIN_S", 0.01)
    async with start_broker(topic_list_direct_timeout=0.01) as broker:
        peer = await Peer.connect(broker)
        session, _ = await watch(peer)
        held = await broker.memory.topic_lists.acquire(100 * MIB, DIRECT)
        await broker.service.create_topic("a")
        await until(lambda: broker.memory.topic_lists.statistics()[DIRECT].timeouts)
        broker.memory.topic_lists.release(held)
        _, told, _ = await peer.take(Command.WATCH_TOPIC_LIST_UPDATE, session_id=session)
        assert told["added"] == ["topic://public/default/a"]


async def test_who_reads_nothing_holds_one_frame_however_much_it_asks_for(start_broker):
    async with start_broker() as broker:
        await asyncio.gather(*(broker.service.create_topic(f"{i:0>240}") for i in range(400)))
        url = "engine://{}:{}".format(*await broker.serve("127.0.0.1", 0))
        deaf, reader = await Peer.connect(broker, url), await Peer.connect(broker, url)
        await names_of(deaf)
        deaf.stop_reading()
        for _ in range(500):  # 50 MB of answers, far more than sockets hold
            deaf.send(Command.GET_TOPICS_OF_NAMESPACE, {"request_id": deaf.next_id(), **LIST, "after": None})
        pool = broker.memory.topic_lists.pool(DIRECT)
        stuck = next(c for c in broker.connections if c.stream.peer != reader.stream.peer)
        await until(lambda: stuck.stream.unsent_bytes)
        for _ in range(5):
            assert len(await names_of(reader)) > 100
        assert 0 < pool.used <= TOPIC_LIST_INITIAL_SIZE
        assert stuck.stream.unsent_bytes <= TOPIC_LIST_INITIAL_SIZE
        deaf.stream.abort()
        await until_returned(broker)


async def test_who_does_not_take_its_list_in_time_is_dropped_and_holds_nothing(start_broker, monkeypatch):
    monkeypatch.setattr(topic_lists, "TOPIC_LIST_TAKEN_S_MAX", 0.1)
    monkeypatch.setattr(topic_lists, "TOPIC_LIST_TAKEN_RATE_MIN", 1 << 30)
    async with start_broker(keep_alive=0) as broker:
        await asyncio.gather(*(broker.service.create_topic(f"{i:0>240}") for i in range(400)))
        url = "engine://{}:{}".format(*await broker.serve("127.0.0.1", 0))
        deaf = await Peer.connect(broker, url)
        await names_of(deaf)
        deaf.stop_reading()
        for _ in range(500):
            deaf.send(Command.GET_TOPICS_OF_NAMESPACE, {"request_id": deaf.next_id(), **LIST, "after": None})
        await until(lambda: not broker.connections)
        await until_returned(broker)
        assert await names_of(await Peer.connect(broker, url))


async def test_lists_of_one_connection_are_counted(broker, monkeypatch):
    monkeypatch.setattr(list_requests, "TOPIC_LISTS_PER_CONNECTION_MAX", 1)
    peer = await Peer.connect(broker)
    await watch(peer)
    with pytest.raises(TooManyRequestsError):
        await watch(peer)
    await names_of(peer)


async def test_a_namespace_is_read_and_lists_are_made_under_permits_of_their_size(start_broker, monkeypatch):
    """Four filters at once, in a pool that has room for one list and a part of it: each waits for its turn."""
    taken: list[int] = []
    async with start_broker() as broker:
        await asyncio.gather(*(broker.service.create_topic(f"{i:0>100}") for i in range(3_000)))
        pool = broker.memory.topic_lists.pool(HEAP)
        pool.resize(3 * TOPIC_LIST_INITIAL_SIZE)
        grant = AsyncSemaphore._grant

        def noting(self: AsyncSemaphore, permit: Any, size: int) -> Any:
            found = grant(self, permit, size)
            if self is pool:
                taken.append(pool.used)
            return found

        monkeypatch.setattr(AsyncSemaphore, "_grant", noting)
        pages = {**LIST, "after": None}
        peers = [await Peer.connect(broker) for _ in range(4)]
        asked = [
            peer.ask(Command.GET_TOPICS_OF_NAMESPACE, **{**pages, "pattern": f".*{n}"}) for n, peer in enumerate(peers)
        ]
        assert all(answer["result"]["topics"] for answer in await asyncio.gather(*asked))
        assert max(taken) >= 3_000 * READ_TOPIC_SIZE, "the namespace, while it is read, alone"
        assert LIST_SIZE + 3_000 * LISTED_NAME_SIZE in taken
        assert await names_of(await Peer.connect(broker))
        await until_returned(broker)


async def test_a_namespace_that_there_is_no_memory_to_read_is_refused_by_name_and_read_later(start_broker):
    async with start_broker(topic_list_heap_timeout=0.01) as broker:
        await broker.service.create_topic("a")
        held = await broker.memory.topic_lists.acquire(100 * MIB, HEAP)
        peer = await Peer.connect(broker)
        for ask in (names_of, watch, names_of):
            with pytest.raises(PermitTimeoutError, match="topic_list_heap"):
                await ask(peer)
        broker.memory.topic_lists.release(held)
        assert await names_of(peer) == ["topic://public/default/a"]
        await until_returned(broker)


def test_a_list_takes_no_more_than_it_has_a_permit_for():
    facts = {
        name: TopicFacts(10**12 + n, {}, str(name)) for n in range(4_000) for name in [TopicName("t", "n", f"{n:0>60}")]
    }
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        lists = [TopicList(TopicFilter({}, f".*{end}")) for end in ("", "", "[0-9]", "[^x]")]
        for one in lists:
            one.fill(facts)
            one.finish()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert all(len(one.names) == 4_000 for one in lists)
    assert taken < len(lists) * (LIST_SIZE + 4_000 * LISTED_NAME_SIZE)


async def test_filters_that_match_too_much_are_refused(broker, monkeypatch):
    monkeypatch.setattr(engine.control.topic.topic_lists, "LISTED_NAMES_MAX", 4)
    for name in "abc":
        await broker.service.create_topic(name)
    peer = await Peer.connect(broker)
    await watch(peer)
    with pytest.raises(TooManyRequestsError, match="3 names"):
        await peer.ask(Command.WATCH_TOPIC_LIST, session_id=99, **{**LIST, "pattern": ".*"}, hash=None)
    await watch(peer)  # one that is there


# -- what a client knows in the end ------------------------------------------------------------------------------------


class Wire:
    """A connection whose peer takes a frame when it is told to."""

    def __init__(self) -> None:
        self.topic_lists: dict[int, Any] = {}
        self.writable, self.closed = True, False
        self.list_turn = asyncio.Lock()
        self.stream = self
        self.frames: list[Header] = []
        self.waiting: list[Any] = []
        self.principal = None
        self.among: frozenset[str] | None = None  # that the principal may look up
        rights = SimpleNamespace(listed=lambda principal, namespace: self.among)
        self.host = SimpleNamespace(memory=BrokerMemory(BrokerConfig()), tasks=self, rights=rights)

    def spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        return asyncio.ensure_future(work)

    def send(self, header: PackedHeader, payload: bytes = b"") -> None:
        self.frames.append(decode(*header))

    unsent_bytes = 1 << 40  # so that there is no hurry

    def when_taken(self, tell: Any) -> None:
        self.waiting.append(tell)

    def take(self) -> None:
        waiting, self.waiting = self.waiting, []
        for tell in waiting:
            tell()


STEP = st.one_of(
    st.tuples(st.just("change"), st.integers(0, 11), st.integers(0, 3)),
    st.tuples(st.just("rights"), st.integers(0, 12), st.just(0)),
    st.tuples(st.just("take"), st.just(0), st.just(0)),
    st.tuples(st.just("wait"), st.just(0), st.just(0)),
)


BEGINS_TWICE = [
    ("change", 1, 1),
    ("wait", 0, 0),
    ("change", 0, 1),
    ("change", 0, 2),
    ("take", 0, 0),
    ("wait", 0, 0),
    ("change", 0, 1),
    ("change", 0, 2),
]


@settings(max_examples=300, deadline=None)
@example(set(), BEGINS_TWICE, 1, 2)
@given(
    st.sets(st.integers(0, 11)), st.lists(STEP, max_size=60), st.sampled_from([1, 2, 5]), st.sampled_from([2, 4, 50])
)
def test_whatever_changes_meanwhile_the_client_has_the_list_in_the_end(first, steps, per_frame, kept):
    async def play() -> None:
        facts = {TopicName.parse(f"t{n:02}"): TopicFacts(1, {}) for n in first}
        lists: dict[TopicFilter, TopicList] = {}
        wire, pool = Wire(), SimpleNamespace(options=None)
        wire.host.service = SimpleNamespace(
            topic_lists=SimpleNamespace(open=opened(facts, lists), leave=lambda *_: None)
        )
        client = TopicListSession(pool, TopicQuery(NS), lambda *_: None)
        session = topic_lists.TopicListSession(wire, 1, NS)
        await session.open(7, TopicFilter({}, None), None)
        for what, number, born in steps:
            if what == "change":
                topic = TopicName.parse(f"t{number:02}")
                change(facts, lists, topic, TopicFacts(born, {}) if born else None)
            elif what == "rights":
                wire.among = None if number > 11 else frozenset(f"t{n:02}" for n in range(number))
                session.rights_changed()
            elif what == "take":
                wire.take()
            else:
                await asyncio.sleep(1.0)
            deliver(wire, client)
        for _ in range(200):  # more than there are parts
            await asyncio.sleep(1.0)
            wire.take()
            deliver(wire, client)
        listed = lists[TopicFilter(among=wire.among)]
        assert client.born == listed.born()
        assert client._hash == listed.hash
        assert not client._parts
        again = TopicList(TopicFilter({}, None))
        again.fill({TopicName.parse(name): TopicFacts(born, {}) for name, born in listed.born().items()})
        assert again.hash == listed.hash  # whichever way it was reached
        session.close()
        await asyncio.sleep(0)
        assert [pool.used for pool in wire.host.memory.topic_lists.statistics().values()] == [0, 0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_lists, "TOPICS_PER_FRAME_MAX", per_frame)
        patch.setattr(engine.control.topic.topic_lists, "TOPIC_CHANGES_KEPT", kept)
        run_virtual(play())


Facts = dict[TopicName, TopicFacts]


def opened(facts: Facts, lists: dict[TopicFilter, TopicList]) -> Any:
    async def open_list(namespace: str, topics: TopicFilter) -> TopicList:
        if topics not in lists:
            lists[topics] = TopicList(topics)
            lists[topics].fill(facts)
            lists[topics].finish()
        return lists[topics]

    return open_list


def change(facts: Facts, lists: dict[TopicFilter, TopicList], topic: TopicName, now: TopicFacts | None) -> None:
    if now is None:
        facts.pop(topic, None)
    else:
        facts[topic] = now
    for listed in lists.values():
        listed.changed(topic, now)


def deliver(wire: Wire, client: TopicListSession) -> None:
    frames, wire.frames = wire.frames, []
    for header in frames:
        assert isinstance(header, WatchTopicListUpdate)
        assert len(header.snapshot or []) + len(header.removed) + len(header.added) <= 5
        client.frame_received(header, memoryview(b""))
