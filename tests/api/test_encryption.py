"""Encryption from end to end, as programs use it: only consumers with a private key can read what was encrypted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.client.base import encryption
from engine.client.base.encryption import Encryptor
from engine.model.compression import ENCRYPTED
from tests.kit.key_pairs import rsa_pair, x25519_pair

ALICE, EVE = x25519_pair(1), x25519_pair(3)
PUBLIC, PRIVATE = {"alice": ALICE.public}, {"alice": ALICE.private}
SECRET = b"nobody else reads this"
WAIT_S = 60.0


def values(count: int) -> list[bytes]:
    return [SECRET + b" %d" % i for i in range(count)]


async def send(client: engine.AsyncClient, count: int, topic: str = "t", **options: Any) -> None:
    async with client.producer(topic, encryption_keys=PUBLIC, **options) as producer:
        for i, value in enumerate(values(count)):
            producer.send_nowait(value, key=f"k{i % 7}", properties={"n": str(i)})
        await producer.flush()


async def received(consumer: Any, count: int) -> list[bytes]:
    async with asyncio.timeout(WAIT_S):
        return [(await consumer.receive()).value for _ in range(count)]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
async def test_consumers_of_each_kind_read_it(client: engine.AsyncClient, compression: str):
    await send(client, 50, compression=compression)
    async with client.stream_consumer("t", "s", initial_position="earliest", decryption_keys=PRIVATE) as stream:
        message = await stream.receive(timeout=WAIT_S)
        assert message is not None
        assert (message.key, message.properties) == (b"k0", {"n": "0"}) or message.value != values(1)[0]
        assert sorted([message.value, *await received(stream, 49)]) == sorted(values(50))
    async with client.queue_consumer("t", "q", initial_position="earliest", decryption_keys=PRIVATE) as queue:
        assert sorted(await received(queue, 50)) == sorted(values(50))
    start = engine.Checkpoint.earliest()
    async with client.checkpoint_consumer("t", start=start, decryption_keys=PRIVATE) as checkpoint:
        assert sorted(await received(checkpoint, 50)) == sorted(values(50))
    pytest.importorskip("pyarrow")
    table = await client.table("t", decryption_keys=PRIVATE)
    assert sorted(table["value"].to_pylist()) == sorted(values(50))


def test_the_blocking_client_has_it_too(blocking: engine.Client):
    rsa = rsa_pair()
    with blocking.producer("t", encryption_keys={"rsa": rsa.public}) as producer:
        producer.send(SECRET)
    with blocking.stream_consumer(
        "t", "s", initial_position="earliest", decryption_keys={"rsa": rsa.private}
    ) as consumer:
        message = consumer.receive(timeout=WAIT_S)
        assert message is not None
        assert message.value == SECRET


def files_below(directory: Path) -> Iterator[bytes]:
    return (path.read_bytes() for path in directory.rglob("*") if path.is_file() and not path.is_socket())


async def test_nothing_of_it_is_in_the_data_directory(tmp_path: Path):
    async with engine.open_async(tmp_path / "data") as opened:
        await send(opened, 20)
        async with opened.producer("plain") as producer:
            await producer.send(b"this can be read")
    contents = list(files_below(tmp_path / "data"))
    assert any(b"this can be read" in content for content in contents)
    assert not any(SECRET in content for content in contents)


async def test_a_missing_key_and_a_wrong_key_are_two_errors_and_lose_nothing(client: engine.AsyncClient):
    await send(client, 3)
    for keys, error in (
        (None, engine.MissingKeyError), ({"bob": EVE.private}, engine.MissingKeyError),
        ({"alice": EVE.private}, engine.WrongKeyError),
    ):  # fmt: skip
        async with client.queue_consumer(
            "t", "s", initial_position="earliest", decryption_keys=keys, on_corrupt="skip"
        ) as consumer:
            for _ in range(2):
                with pytest.raises(error):
                    await consumer.receive(timeout=WAIT_S)
            with pytest.raises(error):
                await consumer.receive_batch(timeout=WAIT_S)
            assert consumer.statistics().corrupt_entries == 0
    async with client.queue_consumer("t", "s", decryption_keys=PRIVATE) as consumer:
        assert sorted(await received(consumer, 3)) == values(3)


async def test_what_comes_before_it_is_read_first(client: engine.AsyncClient):
    await client.admin.create_topic("t", segments=1)
    async with client.producer("t") as producer:
        await producer.send(b"plain", key="k")
    await send(client, 1)
    async with client.stream_consumer("t", "s", initial_position="earliest") as consumer:
        assert await received(consumer, 1) == [b"plain"]
        with pytest.raises(engine.MissingKeyError):
            await consumer.receive(timeout=WAIT_S)


async def test_bad_keys_are_refused_when_they_are_given(client: engine.AsyncClient):
    with pytest.raises(engine.InvalidArgumentError, match="encryption_keys"):
        await client.producer("t", encryption_keys={"alice": ALICE.private})
    with pytest.raises(engine.InvalidArgumentError, match="decryption_keys"):
        await client.stream_consumer("t", "s", decryption_keys={"alice": ALICE.public})


async def test_it_goes_through_splits(client: engine.AsyncClient):
    """Entries that meet a sealed segment are decrypted, cut anew, and encrypted under another nonce."""
    await client.admin.create_topic("t", segments=1)
    async with (
        client.producer("t", encryption_keys=PUBLIC, batching=engine.Batching(max_messages=50)) as producer,
        client.queue_consumer("t", "s", initial_position="earliest", decryption_keys=PRIVATE) as consumer,
    ):
        expected = values(3000)
        for i, value in enumerate(expected):
            producer.send_nowait(value, key=f"k{i}")
            if i in (500, 1500):
                active = (await client.admin.get_metadata("t"))["segments"]
                name = next(int(ident) for ident, facts in active.items() if facts["state"] == "ACTIVE")
                await client.admin.split_segment("t", name)
        await producer.flush()
        assert sorted(await received(consumer, len(expected))) == sorted(expected)


async def test_slow_consumers_share_one_entry(client: engine.AsyncClient):
    """Parts of it cannot be cut by the broker: each consumer is sent all of it, and told what is not for it."""
    await client.admin.create_topic("t", segments=1)
    async with (
        client.queue_consumer("t", "s", receive_queue_size=1, decryption_keys=PRIVATE) as one,
        client.queue_consumer("t", "s", receive_queue_size=1, decryption_keys=PRIVATE) as other,
    ):
        await send(client, 60, batching=engine.Batching(max_messages=60))
        found: list[bytes] = []
        async with asyncio.timeout(WAIT_S):
            while len(found) < 60:
                for consumer in (one, other):
                    if (message := await consumer.receive(timeout=0.02)) is not None:
                        found.append(message.value)
                        await consumer.acknowledge(message)
        assert sorted(found) == sorted(values(60))


async def test_transactions_hide_and_show_it(client: engine.AsyncClient):
    async with (
        client.producer("t", encryption_keys=PUBLIC) as producer,
        client.stream_consumer("t", "s", initial_position="earliest", decryption_keys=PRIVATE) as consumer,
    ):
        async with client.transaction() as aborted:
            await producer.send(b"aborted", transaction=aborted)
            await aborted.abort()
        async with client.transaction() as transaction:
            await producer.send(b"committed", transaction=transaction)
        assert await received(consumer, 1) == [b"committed"]


async def test_a_named_producer_sends_again_and_it_is_stored_once(client: engine.AsyncClient):
    """Sequence ids are in the header, which the broker reads: the bytes of a repetition differ."""
    for count in (5, 9):
        async with client.producer("t", name="p", initial_sequence_id=-1, encryption_keys=PUBLIC) as producer:
            for i, value in enumerate(values(count)):
                await producer.send(value, sequence_id=i)
    async with client.queue_consumer("t", "s", initial_position="earliest", decryption_keys=PRIVATE) as consumer:
        assert sorted(await received(consumer, 9)) == values(9)
        assert await consumer.receive(timeout=0) is None


async def test_delayed_messages_wait(client: engine.AsyncClient):
    async with (
        client.producer("t", encryption_keys=PUBLIC, batching=engine.Batching(max_messages=2)) as producer,
        client.queue_consumer("t", "s", decryption_keys=PRIVATE) as consumer,
    ):
        begun = asyncio.get_running_loop().time()
        late = asyncio.ensure_future(producer.send(b"late", key="k", deliver_after=0.5))
        await asyncio.gather(late, producer.send(b"now", key="k"))
        assert sorted(await received(consumer, 2)) == [b"late", b"now"]
        assert asyncio.get_running_loop().time() >= begun + 0.5


async def test_dead_letters_stay_secret(client: engine.AsyncClient):
    await send(client, 1)
    async with (
        client.queue_consumer(
            "t", "s", initial_position="earliest", nack_backoff=0, decryption_keys=PRIVATE,
            dead_letter=engine.DeadLetter(max_redeliveries=0),
        ) as consumer,
        client.queue_consumer("t-DLQ", "s", initial_position="earliest") as blind,
        client.queue_consumer("t-DLQ", "d", initial_position="earliest", decryption_keys=PRIVATE) as dead,
    ):  # fmt: skip
        message = await consumer.receive(timeout=WAIT_S)
        assert message is not None
        await consumer.negative_acknowledge(message)
        assert await received(dead, 1) == values(1)
        with pytest.raises(engine.MissingKeyError):
            await blind.receive(timeout=WAIT_S)


async def test_schemas_are_declared_and_values_decoded(client: engine.AsyncClient):
    async with client.producer("t", schema=str, encryption_keys=PUBLIC) as producer:
        await producer.send("text")
    async with client.stream_consumer(
        "t", "s", schema=str, initial_position="earliest", decryption_keys=PRIVATE
    ) as consumer:
        message = await consumer.receive(timeout=WAIT_S)
        assert message is not None
        assert message.value == "text"


@pytest.mark.parametrize("level", ["topic", "namespace"])
async def test_a_topic_may_demand_encryption(client, level):
    """What is not encrypted is refused with nothing stored, message by message, also in a transaction."""
    await client.admin.create_topic("t")
    policy = {"encryption_required": True}
    if level == "topic":
        await client.admin.set_topic_policies("t", policy)
    else:
        await client.admin.set_namespace_policies("public/default", policy)
    assert (await client.admin.get_topic_policies("t"))["encryption_required"] is True
    async with client.producer("t") as plain, client.producer("t", encryption_keys=PUBLIC) as producer:
        with pytest.raises(engine.EncryptionRequiredError, match="must be encrypted end to end"):
            await plain.send(b"plain")
        with pytest.raises(engine.EncryptionRequiredError):
            async with client.transaction() as transaction:
                await plain.send(b"in a transaction", transaction=transaction)
        await producer.send(b"secret")
        async with client.transaction() as transaction:
            await producer.send(b"in a transaction", transaction=transaction)
    async with client.stream_consumer("t", "s", initial_position="earliest", decryption_keys=PRIVATE) as consumer:
        assert [(await consumer.receive(timeout=60)).value for _ in range(2)] == [b"secret", b"in a transaction"]


async def test_a_topic_may_do_without_what_its_namespace_demands(client):
    await client.admin.set_namespace_policies("public/default", {"encryption_required": True})
    await client.admin.create_topic("open")
    await client.admin.set_topic_policies("open", {"encryption_required": False})
    async with client.producer("open") as producer:
        await producer.send(b"plain")


async def test_no_nonce_comes_twice_where_a_split_has_entries_encrypted_again(
    client: engine.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    """What a data key has ever encrypted, the stored and the refused, each has a nonce of its own."""
    used: list[tuple[bytes, bytes]] = []
    again: list[int] = []

    def enclose(data: bytes, nonce: bytes, ident: bytes, *more: Any) -> bytes:
        used.append((ident, nonce))
        return encryption_enclose(data, nonce, ident, *more)

    def expand(self: Encryptor, codec: int, body: Any, raw_size: int) -> bytes:
        again.append(codec & ENCRYPTED)
        return open_own(self, codec, body, raw_size)

    encryption_enclose, open_own = encryption.enclose, Encryptor.open
    monkeypatch.setattr(encryption, "enclose", enclose)
    monkeypatch.setattr(Encryptor, "open", expand)
    await client.admin.create_topic("t", segments=1)
    async with (
        client.producer("t", encryption_keys=PUBLIC, batching=engine.Batching(max_messages=50)) as producer,
        client.queue_consumer("t", "s", initial_position="earliest", decryption_keys=PRIVATE) as consumer,
    ):
        sent = 0
        while not any(again):
            metadata = await client.admin.get_metadata("t")
            active = [int(ident) for ident, facts in metadata["segments"].items() if facts["state"] == "ACTIVE"]
            splitting = asyncio.ensure_future(client.admin.split_segment("t", active[sent % len(active)]))
            while not splitting.done():
                producer.send_nowait(SECRET, key=f"k{sent}")
                sent += 1
                await asyncio.sleep(0)
            await splitting
        await producer.flush()
        assert await received(consumer, sent) == [SECRET] * sent
    assert len(set(used)) == len(used)
    assert {ident for ident, _ in used} == {used[0][0]}, "all of it under one key"
