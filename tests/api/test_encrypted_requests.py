"""Replies to encrypted requests are encrypted for what has asked, and for nothing else."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.model.names import TopicName
from engine.model.reply_topics import is_reply_topic
from tests.kit.key_pairs import x25519_pair

WAIT_S = 60.0
SECRET = b"nobody else reads this"
PAIR = x25519_pair(1)
PUBLIC, PRIVATE = {"workers": PAIR.public}, {"workers": PAIR.private}


@asynccontextmanager
async def responder(client: engine.AsyncClient, topic: str) -> AsyncIterator[None]:
    async with client.queue_consumer(
        topic, "responders", initial_position="earliest", decryption_keys=PRIVATE
    ) as consumer:

        async def work() -> None:
            async for message in consumer:
                await consumer.reply(message, SECRET + message.value[::-1], properties={"by": SECRET.decode()})
                await consumer.acknowledge(message)

        working = asyncio.create_task(work())
        try:
            yield
        finally:
            working.cancel()
            await asyncio.wait([working])


async def reply_topics(client: engine.AsyncClient) -> list[str]:
    return [one for one in await client.list_topics() if is_reply_topic(TopicName.parse(one))]


async def test_the_reply_to_an_encrypted_request_can_be_read_by_what_has_asked_alone(client: engine.AsyncClient):
    async with responder(client, "q"), client.producer("q", encryption_keys=PUBLIC) as producer:
        reply = await producer.request(b"ab", timeout=WAIT_S)
        assert (reply.value, reply.properties["by"]) == (SECRET + b"ba", SECRET.decode())
        (topic,) = await reply_topics(client)
        start = engine.Checkpoint.earliest()
        async with client.checkpoint_consumer(topic, start=start, decryption_keys=PRIVATE) as other:
            with pytest.raises(engine.MissingKeyError, match="reply"):
                await other.receive(timeout=WAIT_S)


async def test_nothing_of_a_reply_is_in_the_data_directory(tmp_path: Path):
    async with engine.open_async(tmp_path / "data") as opened, responder(opened, "q"):
        async with opened.producer("q", encryption_keys=PUBLIC) as producer:
            await producer.request(b"ab", timeout=WAIT_S)
        encrypted = [path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()]
        assert not any(SECRET in content for content in encrypted)
        async with opened.producer("q") as producer:
            await producer.request(b"ab", timeout=WAIT_S)
        plain = [path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()]
        assert any(SECRET in content for content in plain)


async def test_clients_and_plain_requests_have_keys_and_topics_of_their_own(served: engine.AsyncEngine):
    async with (
        responder(served, "q"),
        engine.AsyncClient(served.service_url) as client,
        client.producer("q") as plain,
        client.producer("q", encryption_keys=PUBLIC) as one,
        served.producer("q", encryption_keys=PUBLIC) as another,
    ):
        asked = [p.request(b"%d" % n, timeout=WAIT_S) for n in range(10, 40) for p in (plain, one, another)]
        values = [reply.value for reply in await asyncio.gather(*asked)]
        assert values == [SECRET + (b"%d" % n)[::-1] for n in range(10, 40) for _ in range(3)]
        assert len(await reply_topics(served)) == 3


async def test_a_namespace_that_demands_encryption_has_requests_and_replies(client: engine.AsyncClient):
    await client.admin.set_namespace_policies("public/default", {"encryption_required": True})
    async with responder(client, "q"):
        async with client.producer("q", encryption_keys=PUBLIC) as producer:
            assert (await producer.request(b"ab", timeout=WAIT_S)).value == SECRET + b"ba"
        async with client.producer("q") as producer:
            with pytest.raises(engine.EncryptionRequiredError):
                await producer.request(b"ab", timeout=WAIT_S)


async def test_a_reply_that_the_namespace_does_not_take_is_refused(client: engine.AsyncClient):
    """The topic of requests takes plain ones, and says so itself."""
    await client.admin.create_topic("q")
    await client.admin.set_namespace_policies("public/default", {"encryption_required": True})
    await client.admin.set_topic_policies("q", {"encryption_required": False})
    async with (
        client.producer("q") as producer,
        client.queue_consumer("q", "responders", initial_position="earliest") as consumer,
    ):
        asking = asyncio.create_task(producer.request(b"ab", timeout=WAIT_S))
        request = await consumer.receive(timeout=WAIT_S)
        assert request is not None
        with pytest.raises(engine.EncryptionRequiredError):
            await consumer.reply(request, b"ba")
        asking.cancel()
        await asyncio.wait([asking])


async def test_a_plain_reply_to_an_encrypted_request_is_not_taken(client: engine.AsyncClient):
    async with (
        client.producer("q", encryption_keys=PUBLIC) as producer,
        client.queue_consumer("q", "s", initial_position="earliest", decryption_keys=PRIVATE) as consumer,
    ):
        asking = asyncio.create_task(producer.request(b"ab", timeout=WAIT_S))
        request = await consumer.receive(timeout=WAIT_S)
        assert request is not None
        async with client.producer(request.properties["reply_to"]) as plain:
            await plain.send(b"ba", properties={"correlation_id": request.properties["correlation_id"]})
        with pytest.raises(engine.EncryptionRequiredError, match="the reply must be encrypted"):
            await asking


@pytest.mark.parametrize("key", ["", "no base64", "QUJD", base64.b64encode(bytes(32)).decode()])
async def test_what_is_no_key_has_no_reply(client: engine.AsyncClient, key: str):
    topic = "replies-" + "0" * 32
    await client.admin.create_topic(topic)
    async with client.producer("q") as producer, client.queue_consumer("q", "s") as consumer:
        await producer.send(b"x", properties={"reply_to": topic, "correlation_id": "1", "reply_key": key})
        request = await consumer.receive(timeout=WAIT_S)
        assert request is not None
        with pytest.raises(engine.InvalidArgumentError, match="reply_key must be a public key"):
            await consumer.reply(request, b"x")


async def test_a_key_among_the_properties_of_a_plain_request_is_not_sent(client: engine.AsyncClient):
    async with responder(client, "q"), client.producer("q") as producer:
        reply: Any = await producer.request(b"ab", timeout=WAIT_S, properties={"reply_key": "mine"})
        assert reply.value == SECRET + b"ba"
