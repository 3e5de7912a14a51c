"""Requests and their replies: each gets its own, whatever else comes, late, twice or never."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.client.views import requests
from engine.model.names import TopicName
from engine.model.reply_topics import is_reply_topic
from tests.chaos.server import Server

WAIT_S = 60.0


@asynccontextmanager
async def responder(client: engine.AsyncClient, topic: str, **options: Any) -> AsyncIterator[list[bytes]]:
    """Answers each request with its value upside down; yields the values that it has received."""
    received: list[bytes] = []
    async with client.queue_consumer(topic, "responders", initial_position="earliest", **options) as c:

        async def work() -> None:
            async for message in c:
                received.append(message.value)
                await c.reply(message, message.value[::-1], properties={"by": c.name})
                await c.acknowledge(message)

        working = asyncio.create_task(work())
        try:
            yield received
        finally:
            working.cancel()
            await asyncio.wait([working])


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not reached():  # noqa: ASYNC110 - of counts that nothing tells of
            await asyncio.sleep(0.01)


async def reply_topics(client: engine.AsyncClient) -> list[str]:
    return [one for one in await client.list_topics() if is_reply_topic(TopicName.parse(one))]


async def test_many_requests_share_one_topic_of_replies(client: engine.AsyncClient):
    async with client.producer("q") as p, responder(client, "q") as received:
        replies = await asyncio.gather(*(p.request(b"v%d" % n, timeout=WAIT_S, key=f"k{n % 9}") for n in range(300)))
        assert [reply.value for reply in replies] == [(b"v%d" % n)[::-1] for n in range(300)]
        assert len(received) == 300
        assert set(replies[0].properties) == {"by", "correlation_id"}
        assert len(await reply_topics(client)) == 1
        await client.admin.split_segment("q", 0)
        assert (await p.request(b"ab", timeout=WAIT_S, properties={"a": "b"})).value == b"ba"
        assert len(await reply_topics(client)) == 1


async def test_the_topic_of_replies_goes_with_its_client(served: engine.AsyncEngine):
    async with responder(served, "q"):
        async with engine.AsyncClient(served.service_url) as client, client.producer("q") as p:
            assert (await p.request(b"ab", timeout=WAIT_S)).value == b"ba"
            assert len(await reply_topics(served)) == 1
        assert await reply_topics(served) == []


async def test_a_request_may_have_an_id_of_its_own(client: engine.AsyncClient):
    async with responder(client, "t"), client.producer("t") as p:
        reply = await p.request(b"abc", timeout=WAIT_S, properties={"correlation_id": "mine"})
        assert (reply.value, reply.properties["correlation_id"]) == (b"cba", "mine")
    async with client.producer("silent") as p:
        both = (p.request(b"1", timeout=1.0, properties={"correlation_id": "mine"}) for _ in range(2))
        first, second = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(first, engine.TimeoutError)
    assert isinstance(second, engine.InvalidArgumentError)
    assert "correlation_id must differ from those of requests that wait, got mine" in str(second)


async def test_no_reply(client: engine.AsyncClient):
    async with client.producer("q") as p:
        await client.exchange.requests._inbox(TopicName.parse("q"), encrypted=False)  # the first takes longest
        with pytest.raises(engine.NoResponderError, match="no subscription of"):
            await p.request(b"a", timeout=0.2)
        async with client.queue_consumer("q", "s", initial_position="earliest") as c:
            request = await c.receive(timeout=WAIT_S)
            with pytest.raises(engine.TimeoutError) as failed:
                await p.request(b"b", timeout=0.2)
            assert not isinstance(failed.value, engine.NoResponderError)
            # A late reply, and a second one, disturb nobody.
            await c.reply(request, b"late")
            waiting = asyncio.ensure_future(p.request(b"c", timeout=WAIT_S))
            while (message := await c.receive()).value != b"c":
                pass
            await c.reply(message, b"first")
            await c.reply(message, b"second")
            assert (await waiting).value == b"first"
            inbox = await client.exchange.requests._inbox(TopicName.parse("q"), encrypted=False)
            await until(lambda: inbox.dropped == 2)
            assert client.exchange.requests.outstanding == 0


async def test_what_is_no_request_has_no_reply(client: engine.AsyncClient):
    async with client.producer("q") as p, client.queue_consumer("q", "s", initial_position="earliest") as c:
        await p.send(b"plain")
        with pytest.raises(engine.InvalidArgumentError, match="must be a request"):
            await c.reply(await c.receive(), b"x")
        await p.send(b"x", properties={"reply_to": "payments", "correlation_id": "1"})
        with pytest.raises(engine.InvalidArgumentError, match="payments is none"):
            await c.reply(await c.receive(), b"x")
        gone = "topic://public/default/replies-" + "0" * 32
        await p.send(b"x", properties={"reply_to": gone, "correlation_id": "1"})
        with pytest.raises(engine.NotFoundError, match="the requester is gone"):
            await c.reply(await c.receive(), b"x")
        assert await reply_topics(client) == []
        for wrong in (0, -1, None, "x"):
            with pytest.raises(engine.InvalidArgumentError):
                await p.request(b"x", timeout=wrong if wrong != 0 else -0.5)  # type: ignore[arg-type]


async def test_limits(client: engine.AsyncClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requests, "REQUESTS_MAX", 1)
    async with client.producer("q") as p:
        waiting = asyncio.ensure_future(p.request(b"a", timeout=WAIT_S))
        await asyncio.sleep(0)
        with pytest.raises(engine.QueueFullError):
            await p.request(b"b", timeout=WAIT_S)
        waiting.cancel()
        await asyncio.wait([waiting])
        waiting = asyncio.ensure_future(p.request(b"c", timeout=WAIT_S))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(engine.AlreadyClosedError):
            await waiting


async def test_a_deleted_topic_of_replies_is_made_anew(client: engine.AsyncClient):
    async with client.producer("q") as p, responder(client, "q"):
        assert (await p.request(b"ab", timeout=WAIT_S)).value == b"ba"
        inbox = await client.exchange.requests._inbox(TopicName.parse("q"), encrypted=False)
        await client.admin.delete_topic(str(inbox.topic))
        await until(lambda: inbox.failure is not None)
        assert (await p.request(b"cd", timeout=WAIT_S)).value == b"dc"


async def test_a_responder_keeps_few_producers(client: engine.AsyncClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requests, "RESPONDERS_MAX", 2)
    async with responder(client, "q"), client.producer("q") as p:
        for _ in range(4):
            client.exchange.__dict__.pop("requests", None)  # as another client
            assert (await p.request(b"ab", timeout=WAIT_S)).value == b"ba"
        assert len(client.exchange.responses._producers) == 2


def test_the_blocking_form(blocking: engine.Client):
    with blocking.producer("q") as p, blocking.stream_consumer("q", "s", initial_position="earliest") as c:

        def work() -> None:
            while (message := c.receive()).value != b"the last":
                c.acknowledge_cumulative(message)
                c.reply(message, b"re: " + message.value)

        thread = threading.Thread(target=work)
        thread.start()
        assert p.request(b"x", timeout=WAIT_S).value == b"re: x"
        p.send(b"the last")
        thread.join()


async def test_the_broker_and_a_responder_are_killed(tmp_path: Path):
    """The broker loses what it had in memory, a responder what it had not acknowledged: replies may come twice."""
    server = Server(tmp_path / "data")
    await server.start()
    async with engine.AsyncClient(server.url) as asking, engine.AsyncClient(server.url) as answering:  # noqa: SIM117
        async with asking.producer("q") as p:
            async with responder(answering, "q"):
                assert (await p.request(b"ab", timeout=WAIT_S)).value == b"ba"
                asked = [asyncio.ensure_future(p.request(b"%d!" % n, timeout=WAIT_S)) for n in range(50)]
                await asyncio.sleep(0)
                await server.kill()
                await server.start()
                assert [(await one).value for one in asked] == [b"!" + (b"%d" % n)[::-1] for n in range(50)]
            async with answering.queue_consumer("q", "responders") as dying:
                waiting = asyncio.ensure_future(p.request(b"ef", timeout=WAIT_S))
                while (message := await dying.receive()).value != b"ef":  # what was not acknowledged at the kill
                    await dying.acknowledge(message)
                await dying.reply(message, b"by the first")  # and it dies before it has acknowledged
            async with responder(answering, "q"):
                assert (await waiting).value == b"by the first"
                assert (await p.request(b"gh", timeout=WAIT_S)).value == b"hg"
    await server.close()


async def test_the_broker_deletes_what_a_client_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("engine.broker.upkeep.reply_topics.REPLY_TOPIC_IDLE_S", 0.0)
    broker = Broker(tmp_path / "data", config=BrokerConfig(retention_interval=3600.0))
    await broker.start()
    url = "engine://{}:{}".format(*await broker.serve("127.0.0.1", 0))
    retention = broker._parts.retention
    async with engine.AsyncClient(url) as other, responder(other, "q"):
        client = engine.AsyncClient(url)
        p = await client.producer("q")
        assert (await p.request(b"ab", timeout=WAIT_S)).value == b"ba"
        await retention.sweep()
        assert len(await reply_topics(other)) == 1  # it is in use
        monkeypatch.setattr(client.exchange.requests, "_delete", lambda topic: asyncio.sleep(3600))
        monkeypatch.setattr(requests, "GOODBYE_S_MAX", 0.0)
        await client.close()
        async with asyncio.timeout(WAIT_S):
            while await reply_topics(other):
                await retention.sweep()
                await asyncio.sleep(0.01)
        assert "topic://public/default/q" in await other.list_topics()
    await broker.close()
