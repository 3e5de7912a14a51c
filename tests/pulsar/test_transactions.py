"""Transactions on classic topics, by frames: what was sent and acknowledged in one counts when it is committed."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

import engine
from engine.pulsar.messages import MessageIdData, command, framed
from engine.pulsar.server_errors import NO_COORDINATOR, TRANSACTION_NOT_FOUND
from tests.pulsar.conftest import EARLIEST, connect, is_quiet, service_url, take
from tests.pulsar.raw import Raw, greeted
from tests.reference.pulsar_reference import PulsarMessage, payload_of

COMMIT, ABORT = 0, 1
SHARED, EXCLUSIVE = 1, 0
Txn = dict[str, int]


async def opened(raw: Raw, topic: str) -> None:
    await greeted(raw)
    await raw.say_command("tc_connect", request=1, tc=0)
    assert not (await raw.heard("tc_connect_response")).HasField("error")
    await raw.say_command("producer", topic=topic, producer=1, request=2, transactional=True)
    await raw.heard("producer_success")


async def begun(raw: Raw, topic: str) -> Txn:
    """A transaction that has said what it will write to and acknowledge in."""
    await raw.say_command("new_txn", request=3, tc=0, ttl_ms=60_000)
    said = await raw.heard("new_txn_response")
    txn = {"txn_low": said.txn_low, "txn_high": said.txn_high}
    await raw.say_command("add_partition", request=4, partitions=[topic], **txn)
    assert not (await raw.heard("add_partition_response")).HasField("error")
    subscriptions = [{"topic": topic, "subscription": "s"}]
    await raw.say_command("add_subscription", request=5, subscriptions=subscriptions, **txn)
    assert not (await raw.heard("add_subscription_response")).HasField("error")
    return txn


async def send(raw: Raw, sequence: int, values: list[bytes], txn: Txn) -> None:
    head = command("send", producer=1, sequence=sequence, count=len(values), **txn)
    payload = payload_of([PulsarMessage(value, b"k") for value in values], sequence=sequence)
    size = 4 + len(head) + len(payload)
    await raw.say(b"".join((size.to_bytes(4, "big"), len(head).to_bytes(4, "big"), head, payload)))
    await raw.heard("send_receipt")


async def end(raw: Raw, txn: Txn, action: int) -> None:
    await raw.say_command("end_txn", request=6, action=action, **txn)
    assert not (await raw.heard("end_txn_response")).HasField("error")


async def test_messages_are_seen_once_they_are_committed(served: engine.Engine, topic: str) -> None:
    client = connect(service_url(served))
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    async with Raw(served) as raw:
        await opened(raw, topic)
        aborted = await begun(raw, topic)
        await send(raw, 0, [b"never", b"seen"], aborted)
        committed = await begun(raw, topic)
        await send(raw, 10, [b"a", b"b"], committed)
        assert is_quiet(consumer)
        await end(raw, aborted, ABORT)
        assert is_quiet(consumer)
        await end(raw, committed, COMMIT)
        assert [m.data() for m in take(consumer, 2)] == [b"a", b"b"]
        assert is_quiet(consumer)
        await raw.say_command("end_txn", request=7, action=COMMIT, txn_low=5, txn_high=0)
        assert (await raw.heard("end_txn_response")).error == TRANSACTION_NOT_FOUND
        await raw.say_command("tc_connect", request=8, tc=7)
        assert (await raw.heard("tc_connect_response")).error == NO_COORDINATOR
    client.close()


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
async def test_acknowledgements_count_once_they_are_committed(served: engine.Engine, topic: str, kind: int) -> None:
    client = connect(service_url(served))
    producer = client.create_producer(topic)
    for n in range(4):
        producer.send(b"%d" % n)
    left: list[list[bytes]] = []
    for action in (ABORT, COMMIT):
        async with Raw(served) as raw:
            await opened(raw, topic)
            await raw.say(
                framed("subscribe", topic=topic, subscription="s", type=kind, consumer=1, request=7, initial_position=1)
            )
            await raw.heard("success")
            await raw.say_command("flow", consumer=1, permits=100)
            ids: list[Any] = [(await raw.heard("message")).message_id for _ in range(4)]
            txn = await begun(raw, topic)
            for one in ids[:3]:
                named = MessageIdData(ledger=one.ledger, entry=one.entry)
                await raw.say_command("ack", consumer=1, type=0, ids=[named], request=8, **txn)
                assert not (await raw.heard("ack_response")).HasField("error")
            await end(raw, txn, action)
            await raw.say_command("close_consumer", consumer=1, request=9)
            await raw.heard("success")
        types = {EXCLUSIVE: pulsar.ConsumerType.Exclusive, SHARED: pulsar.ConsumerType.Shared}
        consumer = client.subscribe(topic, "s", types[kind], initial_position=EARLIEST)
        left.append([m.data() for m in take(consumer, 4 if action == ABORT else 1)])
        assert is_quiet(consumer)
        consumer.close()
    assert left == [[b"0", b"1", b"2", b"3"], [b"3"]]
    client.close()
