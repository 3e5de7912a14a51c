"""Topic lists through the memory limiter: they wait, are refused by name, let others pass, and leak nothing."""

from __future__ import annotations

import asyncio

import pytest

import engine
from engine.aio.memory_limiter import LimitType
from engine.broker.session import topic_lists
from engine.errors import PermitQueueFullError, PermitTimeoutError
from engine.limits import PROXY_LIST_REQUESTS_MAX, TOPIC_LIST_INITIAL_SIZE
from engine.proxy import lists, session
from engine.wire.commands import Command
from tests.kit.peer import Peer
from tests.proxy.proxies import Served, until

NAMESPACE = "public/default"
HEAP, DIRECT = LimitType.HEAP_MEMORY, LimitType.DIRECT_MEMORY


async def listing(peer: Peer) -> list[str]:
    """A page of the names."""
    answer = await peer.ask(Command.GET_TOPICS_OF_NAMESPACE, namespace=NAMESPACE)
    return list(answer["result"]["topics"])


async def heard(peer: Peer) -> None:
    """Everything else of the connection passes."""
    peer.send(Command.PING, {})
    await peer.take(Command.PONG)


@pytest.mark.parametrize("pool", [HEAP, DIRECT])
async def test_a_list_waits_and_lets_others_pass(front: Served, pool: LimitType) -> None:
    front.limit(heap=TOPIC_LIST_INITIAL_SIZE + 10_000, direct=TOPIC_LIST_INITIAL_SIZE + 10_000)
    await front.create(3)
    permit = await front.proxy.limiter.acquire(TOPIC_LIST_INITIAL_SIZE + 10_000, pool)
    peer = await Peer.connect(front.broker, front.url)
    waiting = asyncio.create_task(listing(peer))
    await until(lambda: front.proxy.limiter.pool(pool).queue == 1)
    await heard(peer)
    segment = await peer.segment("topic-000000")
    assert await peer.producer(segment)
    assert not waiting.done()
    front.proxy.limiter.release(permit)
    assert len(await waiting) == 3
    await until(lambda: front.used() == (0, 0))


@pytest.mark.parametrize("pool", [HEAP, DIRECT])
async def test_a_list_that_waits_too_long_is_refused_by_name(front: Served, pool: LimitType) -> None:
    front.limit(timeout=0.05)
    await front.create(1)
    permit = await front.proxy.limiter.acquire(2**20, pool)
    async with engine.AsyncClient(front.url) as client:
        with pytest.raises(PermitTimeoutError, match=f"topic_list_{pool.value}"):
            await client.list_topics(NAMESPACE)
    assert front.proxy.limiter.statistics()[pool].timeouts == 1
    front.proxy.limiter.release(permit)
    await until(lambda: front.used() == (0, 0))


async def test_a_full_queue_refuses_at_once(front: Served) -> None:
    front.limit(queue_max=1)
    permit = await front.proxy.limiter.acquire(2**20, HEAP)
    peer = await Peer.connect(front.broker, front.url)
    first = asyncio.create_task(listing(peer))
    await until(lambda: front.proxy.limiter.pool(HEAP).queue == 1)
    with pytest.raises(PermitQueueFullError):
        await listing(peer)
    front.proxy.limiter.release(permit)
    assert await first == []


@pytest.mark.parametrize("pool", [HEAP, DIRECT])
async def test_who_goes_away_while_waiting_leaks_nothing(front: Served, pool: LimitType) -> None:
    front.limit()
    await front.create(2)
    permit = await front.proxy.limiter.acquire(2**20, pool)
    peer = await Peer.connect(front.broker, front.url)
    peer.send(Command.GET_TOPICS_OF_NAMESPACE, {"request_id": 1, "namespace": NAMESPACE})
    peer.send(Command.WATCH_TOPIC_LIST, {"request_id": 2, "session_id": 3, "namespace": NAMESPACE})
    await until(lambda: front.proxy.limiter.pool(pool).queue > 0)
    peer.stream.abort()
    await until(lambda: front.proxy.statistics().sessions == 0)
    assert front.proxy.limiter.pool(pool).queue == 0
    front.proxy.limiter.release(permit)
    assert front.used() == (0, 0)


async def test_memory_comes_back_when_the_bytes_have_left(front: Served) -> None:
    """Of a client that asks again and again and reads nothing, until it is gone."""
    front.limit(heap=2**22, direct=2**22)
    await front.create(1_000, width=200)
    peer = await Peer.connect(front.broker, front.url)
    peer.stop_reading()
    for request_id in range(1, 90):
        peer.send(Command.GET_TOPICS_OF_NAMESPACE, {"request_id": request_id, "namespace": NAMESPACE})
    await until(lambda: front.used()[1] > 100_000)
    other = await Peer.connect(front.broker, front.url)
    assert await listing(other)
    assert front.used()[1] <= 2**22
    peer.stream.abort()
    await until(lambda: front.used() == (0, 0))


async def test_a_watch_gets_every_change_though_memory_is_scarce(front: Served) -> None:
    front.limit(heap=TOPIC_LIST_INITIAL_SIZE, direct=TOPIC_LIST_INITIAL_SIZE, timeout=0.05)
    await front.create(5)
    async with engine.AsyncClient(front.url) as client, await client.watch_topics(NAMESPACE) as watch:
        first = await watch.next_change(timeout=20)
        assert first is not None
        assert len(first.added) == 5
        permit = await front.proxy.limiter.acquire(TOPIC_LIST_INITIAL_SIZE, DIRECT)
        await front.broker.admin.create_topic("late")
        await until(lambda: front.proxy.limiter.statistics()[DIRECT].timeouts > 0)
        producer = await client.producer("topic-000001")
        await producer.send(b"the same connection goes on")
        front.proxy.limiter.release(permit)
        change = await watch.next_change(timeout=20)
        assert change is not None
        assert change.added == ("topic://public/default/late",)
    await until(lambda: front.used() == (0, 0))


async def test_a_watch_that_ends_before_it_was_let_through_never_begins(front: Served) -> None:
    front.limit()
    permit = await front.proxy.limiter.acquire(2**20, HEAP)
    peer = await Peer.connect(front.broker, front.url)
    peer.send(Command.WATCH_TOPIC_LIST, {"request_id": 1, "session_id": 2, "namespace": NAMESPACE})
    await until(lambda: front.proxy.limiter.pool(HEAP).queue == 1)
    peer.send(Command.WATCH_TOPIC_LIST_CLOSE, {"session_id": 2})
    await until(lambda: front.proxy.limiter.pool(HEAP).queue == 0)
    front.proxy.limiter.release(permit)
    await heard(peer)
    assert all(not connection.topic_lists for connection in front.broker.connections)
    assert front.used() == (0, 0)


async def test_requests_that_all_want_to_grow_do_not_wait_for_each_other(front: Served) -> None:
    """The initial permits take up all there is when the first answer comes."""
    front.limit(heap=4 * TOPIC_LIST_INITIAL_SIZE)
    await front.create(300, width=200)
    peers = [await Peer.connect(front.broker, front.url) for _ in range(8)]
    lists = await asyncio.gather(*(listing(peer) for peer in peers for _ in range(4)))
    assert all(lists)
    assert front.proxy.limiter.statistics()[HEAP].timeouts == 0
    await until(lambda: front.used() == (0, 0))


async def test_more_requests_than_a_connection_may_have(front: Served) -> None:
    permit = await front.proxy.limiter.acquire(100 * 2**20, HEAP)
    peer = await Peer.connect(front.broker, front.url)
    for request_id in range(1, PROXY_LIST_REQUESTS_MAX + 2):
        peer.send(Command.GET_TOPICS_OF_NAMESPACE, {"request_id": request_id, "namespace": NAMESPACE})
    _, header, _ = await peer.take(Command.ERROR, request_id=PROXY_LIST_REQUESTS_MAX + 1)
    assert header["code"] == PermitQueueFullError.code
    front.proxy.limiter.release(permit)
    for request_id in range(1, PROXY_LIST_REQUESTS_MAX + 1):
        await peer.take(Command.SUCCESS, request_id=request_id)


async def test_a_list_of_several_frames(front: Served) -> None:
    front.limit(heap=2**18, direct=2**18)
    await front.create(1_100)
    async with engine.AsyncClient(front.url) as client, await client.watch_topics(NAMESPACE) as watch:
        assert len(await client.list_topics(NAMESPACE)) == 1_100
        first = await watch.next_change(timeout=20)
        assert first is not None
        assert len(first.added) == 1_100
    await until(lambda: front.used() == (0, 0))


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little time to take a part of a list."""
    monkeypatch.setattr(topic_lists, "TOPIC_LIST_TAKEN_S_MAX", 0.2)
    monkeypatch.setattr(topic_lists, "TOPIC_LIST_TAKEN_RATE_MIN", 1 << 30)


async def deaf(front: Served, pages: int = 100) -> Peer:
    """A client that asks for lists, and reads nothing of them."""
    peer = await Peer.connect(front.broker, front.url)
    peer.stop_reading()
    for request_id in range(1, pages):
        peer.send(Command.GET_TOPICS_OF_NAMESPACE, {"request_id": request_id, "namespace": NAMESPACE})
    return peer


async def test_clients_that_do_not_read_their_lists_give_way_to_others(front: Served, hurry: None) -> None:
    """They hold what there is for as long as they may; neither they nor their brokers are read from."""
    front.limit(heap=2**20, direct=4 * TOPIC_LIST_INITIAL_SIZE)
    await front.create(300, width=240)
    silent = [await deaf(front) for _ in range(6)]
    await until(lambda: front.used()[1] > 2 * TOPIC_LIST_INITIAL_SIZE)
    other = await Peer.connect(front.broker, front.url)
    assert await listing(other)
    assert await listing(other)
    await until(lambda: front.used() == (0, 0))
    assert len(silent) == 6


async def test_the_broker_s_end_is_not_waited_for_while_nothing_is_read_from_it(front: Served, hurry: None) -> None:
    front.limit(heap=2**22, direct=2**22)
    await front.create(300, width=240)
    await deaf(front)
    await until(lambda: front.used()[1] > 2 * TOPIC_LIST_INITIAL_SIZE)
    for connection in list(front.broker.connections):
        connection.stream.abort()
    await until(lambda: front.proxy.statistics().sessions == 0)
    assert front.used() == (0, 0)


async def test_a_client_that_takes_nothing_else_is_dropped_too(front: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PROXY_STALL_S_MAX", 0.2)
    monkeypatch.setattr(session, "TOPIC_LIST_TAKEN_RATE_MIN", 1 << 30)
    await front.create(1)
    peer = await Peer.connect(front.broker, front.url)
    (served,) = front.proxy._sessions
    served.full(served.client, True)  # what asyncio says when more is queued than the mark
    served.full(served.client, False)
    await heard(peer)
    served.full(served.client, True)
    await until(lambda: front.proxy.statistics().sessions == 0)
    await peer.lost


async def test_a_request_that_the_broker_does_not_answer_gives_its_permit_back(
    front: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "PROXY_ANSWER_S_MAX", 0.05)
    front.limit()
    held = await front.broker.memory.topic_lists.acquire(100 * 2**20, HEAP)
    peer = await Peer.connect(front.broker, front.url)
    waiting = asyncio.create_task(listing(peer))
    await until(lambda: front.broker.memory.topic_lists.pool(HEAP).queue == 1)
    await until(lambda: front.used() == (0, 0))
    front.broker.memory.topic_lists.release(held)
    assert await waiting == []
    await until(lambda: front.used() == (0, 0))
