"""Batches whose sequence ids interleave, as frames by hand and as the client's key-based batching makes them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any

import pulsar
import pytest

import engine
from engine.errors import NotOwnerError
from engine.pulsar import interleaved
from engine.pulsar.messages import framed
from engine.storage.segment import Segment
from tests.pulsar.conftest import CODECS, EARLIEST, WAIT_MS, is_quiet, take
from tests.pulsar.opaque import KEYS, make_keys, metadata_of, send_of
from tests.pulsar.raw import Raw, framed_payload, framed_send, greeted
from tests.pulsar.test_transactions import COMMIT, begun, end
from tests.reference.pulsar_reference import PulsarMessage, batch_of, payload_of

KEYED = pulsar.BatchingType.KeyBased
KEY_SHARED = pulsar.ConsumerType.KeyShared
A, B, C = (0, 3, 6), (1, 4, 7), (2, 5, 8)


def batch(ids: Iterable[int], key: bytes | None = b"k", **fields: Any) -> bytes:
    """The frame of a SEND; the value of a message is its sequence id."""
    messages = [PulsarMessage(b"%d" % number, key, sequence=number) for number in ids]
    assert messages[0].sequence is not None
    return framed_send(1, messages, messages[0].sequence, **fields)


@asynccontextmanager
async def producing(served: Any, topic: str, name: str = "", **fields: Any) -> AsyncIterator[Raw]:
    async with Raw(served) as raw:
        await greeted(raw)
        await raw.say(framed("producer", topic=topic, producer=1, request=1, name=name, **fields))
        await raw.heard("producer_success")
        yield raw


async def answers(raw: Raw, count: int, *, ping: bool = True) -> list[tuple[int, int | str]]:
    """To so many SENDs: the sequence id, and the entry or the error. `ping`: answer the server's."""
    found: list[tuple[int, int | str]] = []
    while len(found) < count:
        heard = await raw.hear()
        assert heard is not None, found
        name, said = heard
        if name == "ping" and ping:
            await raw.say_command("pong")
        elif name == "send_receipt":
            found.append((said.sequence, said.message_id.entry))
        elif name == "send_error":
            found.append((said.sequence, said.message))
    return found


def stored(served: engine.Engine, topic: str) -> list[int]:
    """The sequence ids of all that is there, in the order of the log; each value is its id."""
    numbers = []
    with served.checkpoint_consumer(topic, start=engine.Checkpoint.earliest()) as consumer:
        while messages := consumer.receive_batch(timeout=0.2):
            for message in messages:
                assert message.value == b"%d" % message.sequence_id
                numbers.append(message.sequence_id)
    return numbers


async def test_batches_that_fill_each_other_are_stored_as_one_by_rising_ids(served, topic):
    async with producing(served, topic) as raw:
        await raw.say(batch(A, b"a"), batch(B, b"b"), batch(C, b"c"), batch([9], b"a"))
        assert await answers(raw, 4, ping=False) == [(0, 0), (1, 3), (2, 6), (9, 9)]
    assert stored(served, topic) == list(range(10))


async def test_keyless_messages_among_them(served, topic):
    async with producing(served, topic) as raw:
        await raw.say(
            batch((0, 5), b"a"), batch((1, 4), None), framed_send(1, [PulsarMessage(b"2"), PulsarMessage(b"3")], 2)
        )
        assert [number for number, _ in await answers(raw, 3, ping=False)] == [0, 1, 2]
    assert stored(served, topic) == list(range(6))


async def test_batches_of_one_id_each_are_stored_once_each(served, topic):
    """Of a client that gives its messages no ids of their own, and counts batches."""
    sends = [
        framed_payload(1, payload_of([PulsarMessage(b"%d" % s, key)] * n, sequence=s), sequence=s, count=n)
        for s, n, key in ((0, 5, b"k"), (1, 3, None), (2, 4, b"k"))
    ]
    async with producing(served, topic, "writer") as raw:
        await raw.say(*sends)
        assert await answers(raw, 3, ping=False) == [(0, 0), (1, 5), (2, 8)]
    async with producing(served, topic, "writer") as raw:
        await raw.say(sends[2], framed_payload(1, payload_of([PulsarMessage(b"3")], sequence=3), sequence=3, count=1))
        assert [number for number, _ in await answers(raw, 2, ping=False)] == [2, 3]
    assert stored(served, topic) == [0] * 5 + [1] * 3 + [2] * 4 + [3]


async def test_a_gap_that_stays_is_known_by_a_pong_or_by_what_comes_behind(served, topic):
    async with producing(served, topic) as raw:
        await raw.say(batch(A, b"a"), batch(B, b"b"))
        await raw.heard("ping")  # nothing is stored before the client has answered
        await raw.say(batch((10, 12)))  # begins above all that is held
        assert await answers(raw, 2, ping=False) == [(0, 0), (1, 3)]
        assert await answers(raw, 1) == [(10, 6)]
    assert stored(served, topic) == [0, 1, 3, 4, 6, 7, 10, 12]


async def test_what_comes_behind_the_pong_is_waited_for(served, topic):
    async with producing(served, topic) as raw:
        await raw.say(batch(A, b"a"), batch(B, b"b"))
        await raw.heard("ping")
        await raw.say(framed("pong"), batch(C, b"c"))
        assert await answers(raw, 3, ping=False) == [(0, 0), (1, 3), (2, 6)]
    assert stored(served, topic) == list(range(9))


async def test_transactions_are_not_mixed_with_what_is_outside(served, topic):
    async with producing(served, topic) as raw:
        txn = await begun(raw, topic)
        await raw.say(batch((0, 2), b"a", **txn), batch((1, 3), b"b", **txn))
        assert [number for number, _ in await answers(raw, 2, ping=False)] == [0, 1]
        await raw.say(batch((4, 6), **txn), batch((5, 7)))  # what is held for 5 is stored, and 5 comes late
        got = await answers(raw, 2)
        assert [(number, isinstance(said, int)) for number, said in got] == [(4, True), (5, False)]
        assert stored(served, topic) == []
        await end(raw, txn, COMMIT)
    assert stored(served, topic) == [0, 1, 2, 3, 4, 6]


async def test_what_comes_late_for_a_gap_is_refused_and_what_came_before_is_a_duplicate(served, topic):
    async with producing(served, topic) as raw:
        await raw.say(batch(A))
        assert await answers(raw, 1) == [(0, 0)]
        await raw.say(batch(B), batch([5]), batch([6]), batch([3, 5]), batch([7]))
        got = await answers(raw, 5)
        assert [number for number, _ in got] == [1, 5, 6, 3, 7]
        errors = [said for _, said in got if isinstance(said, str)]
        assert len(errors) == 3
        assert all("sequence ids must rise, got" in text for text in errors)
        assert got[4] == (7, 3)
    assert stored(served, topic) == [0, 3, 6, 7]


async def test_what_comes_late_for_a_gap_is_refused_on_the_next_connection_too(served, topic):
    """Whose client did not hear of the refusal. What it sends for the first time, and what is stored, is taken."""
    async with producing(served, topic, "writer") as raw:
        await raw.say(batch(A))
        assert await answers(raw, 1) == [(0, 0)]
        await raw.say(batch(B, b"b"))
    for epoch in (1, 2):  # and on the one behind that
        async with producing(served, topic, "writer", epoch=epoch) as raw:
            await raw.say(batch(B, b"b"), batch(A), batch([7 + epoch]))
            got = await answers(raw, 3)
            assert [(number, isinstance(said, int)) for number, said in got] == [
                (1, False), (0, True), (7 + epoch, True),
            ]  # fmt: skip
            assert "sequence ids must rise" in str(got[0][1])
    assert stored(served, topic) == [0, 3, 6, 8, 9]


async def test_of_another_producer_of_the_name_it_is_a_duplicate(served, topic):
    """It begins anew (epoch 0), and says by its ids what it has sent before."""
    async with producing(served, topic, "writer") as raw:
        await raw.say(batch(A))
        assert await answers(raw, 1) == [(0, 0)]
    async with producing(served, topic, "writer") as raw:
        await raw.say(batch([1]))
        assert [number for number, said in await answers(raw, 1) if isinstance(said, int)] == [1]
    assert stored(served, topic) == [0, 3, 6]


async def test_what_was_passed_on_and_not_stored_leaves_no_gap(served, topic, monkeypatch):
    """The next connection may send all of it in whatever order."""
    async with producing(served, topic, "writer") as raw:
        await raw.say(batch([0]))
        assert await answers(raw, 1) == [(0, 0)]

        def refuse(_: Segment, waiter: Any, *__: Any, **___: Any) -> None:
            waiter.set_exception(NotOwnerError("it moves"))

        with monkeypatch.context() as patch:
            patch.setattr(Segment, "append_for", refuse)
            await raw.say(batch((4, 6)))
            while (heard := await raw.hear()) is not None and heard[0] != "close_producer":
                if heard[0] == "ping":
                    await raw.say_command("pong")
        assert heard is not None
    async with producing(served, topic, "writer", epoch=1) as raw:
        await raw.say(batch((1, 3)), batch((2, 4)), batch((5, 6)))
        assert [number for number, said in await answers(raw, 3) if isinstance(said, int)] == [1, 2, 5]
    assert stored(served, topic) == list(range(7))


def test_what_is_remembered_of_producers_has_a_bound(monkeypatch):
    monkeypatch.setattr(interleaved, "REMEMBERED_MAX", 2)
    remembered, passed = interleaved.Remembered(), interleaved.Passed(6, ((1, 2), (4, 5)))
    for name in (b"a", b"b", b"c"):
        remembered.keep("t", name, passed)
    remembered.keep("t", b"b", None)
    assert [remembered.take("t", name).highest for name in (b"a", b"b", b"c", b"c")] == [-1, -1, 6, -1]
    assert passed.as_stored(3) == interleaved.Passed(3, ((1, 2),))


async def test_what_has_no_answer_is_stored_once_when_it_is_sent_again(served, topic):
    async with producing(served, topic, "named") as raw:
        await raw.say(batch(A), batch(B))
        await raw.heard("ping")
    async with producing(served, topic, "named") as raw:  # nothing was stored: what is held goes with its connection
        await raw.say(batch(A), batch(B), batch(C))
        assert await answers(raw, 3, ping=False) == [(0, 0), (1, 3), (2, 6)]
    async with producing(served, topic, "named") as raw:  # all was stored, and only A's answer came
        await raw.say(batch(B), batch(C), batch((9, 11)), batch((10, 12)))
        assert [number for number, _ in await answers(raw, 4)] == [1, 2, 9, 10]
    async with producing(served, topic, "named") as raw:  # a part of what was flushed then
        await raw.say(batch((10, 12, 14)), batch((13,)))
        assert [number for number, _ in await answers(raw, 2)] == [10, 13]
    assert stored(served, topic) == list(range(15))


async def test_a_producer_that_is_closed_has_stored_what_was_held(served, topic):
    async with producing(served, topic) as raw:
        await raw.say(batch((0, 4)), batch((1, 3)))
        await raw.say_command("close_producer", producer=1, request=2)
        await raw.heard("success")
    assert stored(served, topic) == [0, 1, 3, 4]


async def test_an_error_of_one_does_not_stop_those_that_are_held(served, topic):
    async with producing(served, topic) as raw:
        await raw.say(
            batch(A), framed_send(1, [PulsarMessage(b"x", properties=(("p", "x" * 70_000),))], 1), batch(B), batch(C)
        )
        got = await answers(raw, 4)
        assert [number for number, _ in got] == [0, 1, 1, 2]
        assert [said for _, said in got if isinstance(said, int)] == [0, 3, 6]
    assert stored(served, topic) == list(range(9))


async def test_more_than_may_be_held_is_refused_and_nothing_of_it_is_stored(served, topic, monkeypatch):
    monkeypatch.setattr(interleaved, "HELD_SENDS_MAX", 50)
    count = 2_000
    async with producing(served, topic) as raw:
        # (0, 2001), (1, 2002) and so on: what is between is not there before the last one, and 2000 never is.
        await raw.say(*(batch((number, number + count + 1)) for number in range(count)))
        got = await answers(raw, count)
    assert [number for number, _ in got] == list(range(count))
    taken = [number for number, said in got if isinstance(said, int)]
    assert taken == list(range(count))[-(count % 51) :]
    assert stored(served, topic) == [*taken, *(number + count + 1 for number in taken)]
    assert all("at most 50, got" in said for _, said in got if isinstance(said, str))


async def test_the_bytes_that_are_held_have_a_bound(served, topic):
    large = b"x" * (3 << 20)
    frames = [
        framed_send(1, [PulsarMessage(large, b"k", sequence=n), PulsarMessage(b"", b"k", sequence=n + 10)], n)
        for n in (0, 2, 4)
    ]
    async with producing(served, topic) as raw:
        await raw.say(*frames, batch([20]))
        got = await answers(raw, 4, ping=False)
    assert [(number, isinstance(said, int)) for number, said in got] == [(0, False), (2, False), (4, False), (20, True)]
    assert stored(served, topic) == [20]


async def test_one_batch_alone_may_be_as_large_as_may_be(served, topic, monkeypatch):
    monkeypatch.setattr(interleaved, "HELD_BYTES_MAX", 0)
    async with producing(served, topic) as raw:
        await raw.say(batch(A))
        assert await answers(raw, 1) == [(0, 0)]


async def test_absurd_ids_are_taken_as_they_are(served, topic):
    top = 2**63 - 1
    async with producing(served, topic) as raw:
        await raw.say(batch((5, 3, 4)), batch((7, top)), batch((8, 8, 9)), batch([top]))
        got = await answers(raw, 4)
    assert [number for number, _ in got] == [5, 7, 8, top]
    assert got[0] == (5, 0)
    assert "sequence ids must rise" in str(got[2][1])
    assert stored(served, topic) == [3, 4, 5, 7, top]


async def test_encrypted_batches_that_interleave_are_refused(served, topic):
    def sealed(sequence: int, count: int) -> bytes:
        said = metadata_of(sequence, encryption_keys=KEYS, encryption_algorithm="AES", count=count)
        return send_of(sequence, said, b"sealed")

    async with producing(served, topic) as raw:
        await raw.say(sealed(0, 3), sealed(1, 3), sealed(0, 3), sealed(9, 3))
        got = await answers(raw, 4)
    assert [number for number, _ in got] == [0, 1, 0, 9]
    assert "key-based batching does not go together with encryption" in str(got[1][1])
    assert [isinstance(said, int) for _, said in got] == [True, False, True, True]


@pytest.mark.parametrize("bound", ["SEALED_MAX", "PARTS_REMEMBERED_MAX"])
async def test_encrypted_batches_are_refused_on_the_next_connection_too(served, topic, monkeypatch, bound):
    """Also those of which as many came before that the first ones are not known any more: they count as stored."""
    monkeypatch.setattr(interleaved, bound, 2)

    def sealed(first: int, last: int, count: int) -> bytes:
        said = metadata_of(first, encryption_keys=KEYS, encryption_algorithm="AES", count=count, highest_sequence=last)
        return send_of(first, said, b"sealed")

    async with producing(served, topic, "writer") as raw:
        await raw.say(sealed(0, 0, 1), sealed(1, 1, 1), sealed(2, 6, 3))
        assert [number for number, said in await answers(raw, 3) if isinstance(said, int)] == [0, 1, 2]
    async with producing(served, topic, "writer", epoch=1) as raw:
        await raw.say(sealed(0, 0, 1), sealed(1, 1, 1), sealed(3, 3, 1), sealed(2, 6, 3), sealed(7, 7, 1))
        got = await answers(raw, 5)
    assert [number for number, said in got if isinstance(said, int)] == [0, 1, 2, 7]
    assert "key-based batching does not go together with encryption" in str(got[2][1])


async def test_a_delayed_batch_keeps_its_time_among_others(served, client, topic):
    """What holds for a batch as a whole holds for its own messages alone."""
    head = metadata_of(1, deliver_at=4_000_000_000_000, count=2)
    late = send_of(1, head, batch_of([PulsarMessage(b"%d" % number, b"k", sequence=number) for number in (1, 3)]))
    async with producing(served, topic) as raw:
        await raw.say(batch((0, 2, 4)), late)
        assert [number for number, _ in await answers(raw, 2, ping=False)] == [0, 1]
    assert stored(served, topic) == list(range(5))
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST)
    assert [message.data() for message in take(consumer, 3)] == [b"0", b"2", b"4"]
    assert is_quiet(consumer)


async def test_buckets_of_a_scalable_topic(served, topic):
    """Each has messages of all batches, in order; what is sent again is stored once in each."""
    name = topic.replace("persistent://", "topic://")
    served.admin.create_topic(name, key_hash="murmur3", entry_buckets=4)
    segment = name.replace("topic://", "segment://") + "/0000-ffff-0"
    frames = [
        framed_send(1, [PulsarMessage(b"%d" % n, b"k%d" % n, sequence=n) for n in ids], ids[0]) for ids in (A, B, C)
    ]
    async with producing(served, segment, "named") as raw:
        await raw.say(*frames)
        assert [number for number, _ in await answers(raw, 3, ping=False)] == [0, 1, 2]
    async with producing(served, segment, "named") as raw:
        await raw.say(*frames[1:], batch([9]))
        assert [number for number, _ in await answers(raw, 3)] == [1, 2, 9]
        await raw.say(framed_send(1, [PulsarMessage(b"%d" % n, b"k%d" % n, sequence=n) for n in (13, 11, 12, 10)], 13))
        assert isinstance((await answers(raw, 1, ping=False))[0][1], int)
    assert sorted(stored(served, name)) == list(range(14))


# -- the client ----------------------------------------------------------------------------------------------------


def send_all(producer: Any, count: int, keys: int) -> list[Any]:
    results: list[Any] = []
    over = threading.Event()

    def sent(result: Any, ident: Any) -> None:
        results.append((result, ident))
        if len(results) == count:
            over.set()

    for number in range(count):
        producer.send_async(b"%d" % number, sent, partition_key=f"k{number * 7919 % keys}")
    producer.flush()
    assert over.wait(WAIT_MS / 1000)
    assert {result for result, _ in results} == {pulsar.Result.Ok}
    return [ident for _, ident in results]


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize(("count", "keys"), [(12, 3), (3_000, 1_000), (3_000, 7)])
def test_key_based_batches_lose_and_double_nothing(served, client, topic, codec, count, keys):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=KEYED, batching_max_publish_delay_ms=20, compression_type=codec,
        block_if_queue_full=True,
    )  # fmt: skip
    told = send_all(producer, count, keys)
    messages = take(consumer, count)
    assert [int(message.data()) for message in messages] == list(range(count))
    assert [message.partition_key() for message in messages] == [f"k{n * 7919 % keys}" for n in range(count)]
    assert is_quiet(consumer)
    assert stored(served, topic) == list(range(count))
    places = [ident.entry_id() + max(ident.batch_index(), 0) for ident in told]
    assert sorted(places) == list(range(count))  # each send is told a place of its own


def test_key_shared_consumers_get_each_key_in_order(client, topic):
    consumers = [client.subscribe(topic, "s", KEY_SHARED, initial_position=EARLIEST) for _ in range(3)]
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=KEYED, batching_max_publish_delay_ms=20, block_if_queue_full=True
    )
    count, keys = 1_000, 40
    send_all(producer, count, keys)
    found: dict[str, list[int]] = {}
    owners: dict[str, set[int]] = {}
    while sum(map(len, found.values())) < count:
        for index, consumer in enumerate(consumers):
            for message in drained(consumer):
                found.setdefault(message.partition_key(), []).append(int(message.data()))
                owners.setdefault(message.partition_key(), set()).add(index)
                consumer.acknowledge(message)
    assert sorted(chain.from_iterable(found.values())) == list(range(count))
    assert all(numbers == sorted(numbers) for numbers in found.values())
    assert {len(indexes) for indexes in owners.values()} == {1}


def drained(consumer: Any) -> list[Any]:
    messages = []
    while True:
        try:
            messages.append(consumer.receive(50))
        except pulsar.Timeout:
            return messages


def test_partitions_and_a_consumer_of_the_broker_itself(served, client, topic):
    served.admin.create_topic(topic, properties={"pulsar.partitions": "3"})
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=KEYED, batching_max_publish_delay_ms=20, block_if_queue_full=True
    )
    send_all(producer, 600, 20)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    found: dict[str, list[int]] = {}
    for message in take(consumer, 600):
        found.setdefault(message.partition_key(), []).append(int(message.data()))
    assert is_quiet(consumer)
    assert sorted(chain.from_iterable(found.values())) == list(range(600))
    assert all(numbers == sorted(numbers) for numbers in found.values())


def test_the_client_is_told_that_encryption_does_not_go_together_with_it(client, topic, tmp_path, caplog):
    make_keys(tmp_path / "secret.pem", tmp_path / "public.pem")
    reader = pulsar.CryptoKeyReader(str(tmp_path / "public.pem"), str(tmp_path / "secret.pem"))
    producer = client.create_producer(
        topic, batching_enabled=True, batching_type=KEYED, batching_max_publish_delay_ms=10_000, encryption_key="k",
        crypto_key_reader=reader,
    )  # fmt: skip
    results: list[tuple[int, Any]] = []
    over = threading.Event()

    def sent(number: int, result: Any) -> None:
        results.append((number, result))
        if len(results) == 9:
            over.set()

    for number in range(9):
        producer.send_async(b"%d" % number, lambda result, _, n=number: sent(n, result), partition_key=f"k{number % 3}")
    with pytest.raises(pulsar.ChecksumError):  # by which this client gives a message up
        producer.flush()
    assert over.wait(WAIT_MS / 1000)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, crypto_key_reader=reader)
    good = [number for number, result in results if result == pulsar.Result.Ok]
    assert sorted(int(message.data()) for message in take(consumer, len(good))) == sorted(good)
    assert len(good) == 3
    assert "key-based batching does not go together with encryption" in caplog.text
    assert is_quiet(consumer)
