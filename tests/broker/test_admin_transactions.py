"""Transactions for operators: in process, over HTTP, by the client, as metrics, and in a topic's statistics."""

from __future__ import annotations

import pytest

from engine.broker.metrics.transactions import statistics
from engine.broker.server import Broker
from engine.client.client import AsyncClient
from engine.errors import InvalidArgumentError, TransactionConflictError, TransactionNotFoundError
from engine.wire.commands import Command
from tests.broker.over_http import call
from tests.broker.transacting import begin, hosted, write
from tests.kit.peer import Peer, make_entries, until

BASE = "/admin/v2/transactions"
UNKNOWN = "00000000000000ff"


async def acknowledging(broker: Broker, topic: str = "work") -> tuple[Peer, str, str]:
    """A peer, a segment, and an open transaction that has acknowledged three messages there, in two requests."""
    peer = await Peer.connect(broker)
    segment = await peer.segment(topic)
    producer = await peer.producer(segment)
    peer.publish(producer, make_entries([b"x"] * 10))
    await peer.receipts(producer, 10)
    consumer = await peer.consumer(segment, "queue")
    ident = await begin(peer)
    await peer.ack(consumer, ranges=[[0, 1]], transaction=ident)
    await peer.ack(consumer, ranges=[[5, 5]], transaction=ident)
    return peer, segment, ident


async def test_open_ones_are_listed_oldest_first(broker, http):
    peer, segment, first = await acknowledging(broker)
    second = await begin(peer, name="batch-7")
    listed = await call(http, "GET", BASE, 200)
    assert [t["id"] for t in listed] == [t["id"] for t in await broker.admin.list_transactions()]
    assert {t["id"]: t["name"] for t in listed} == {first: None, second: "batch-7"}
    assert [t["createdAtMs"] for t in listed] == sorted(t["createdAtMs"] for t in listed)
    assert [t["id"] for t in await call(http, "GET", f"{BASE}?segment={segment}", 200)] == [first]
    assert await call(http, "GET", f"{BASE}?openLongerThan=3600", 200) == []
    assert len(await call(http, "GET", f"{BASE}?limit=1&openLongerThan=0", 200)) == 1
    await peer.ask(Command.END_TXN, id=first, action="commit", accepted=None)
    assert [t["id"] for t in await call(http, "GET", BASE, 200)] == [second]


async def test_one_is_shown_with_where_it_takes_part(broker, http):
    _, segment, ident = await acknowledging(broker)
    shown = await call(http, "GET", f"{BASE}/{ident}", 200)
    assert (shown["id"], shown["state"], shown["finalizedAtMs"]) == (ident, "OPEN", None)
    assert shown["operations"] == [
        {"segment": segment, "kind": "ack", "subscription": "s", "records": 2, "messages": 3}
    ]


async def test_an_open_one_is_aborted(broker, http):
    peer, _, ident = await acknowledging(broker)
    await call(http, "POST", f"{BASE}/{ident}/abort")
    await call(http, "POST", f"{BASE}/{ident}/abort")
    assert (await call(http, "GET", f"{BASE}/{ident}", 200))["state"] == "ABORTED"
    committed = await begin(peer)
    await peer.ask(Command.END_TXN, id=committed, action="commit", accepted=None)
    answer = await call(http, "POST", f"{BASE}/{committed}/abort", 409)
    assert answer["code"] == TransactionConflictError.code
    assert (await call(http, "GET", f"{BASE}/{UNKNOWN}", 404))["code"] == TransactionNotFoundError.code
    assert (await call(http, "POST", f"{BASE}/{UNKNOWN}/abort", 404))["code"] == TransactionNotFoundError.code


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=10001", "openLongerThan=-1", "openLongerThan=nan", "segment=orders"]
)
async def test_queries_that_are_malformed(http, query):
    assert (await call(http, "GET", f"{BASE}?{query}", 400))["code"] == InvalidArgumentError.code
    await call(http, "GET", f"{BASE}/xyz", 400)


async def test_the_client_does_the_same(broker, http):
    _, segment, ident = await acknowledging(broker)
    host, port = await broker.serve("127.0.0.1", 0)
    async with AsyncClient(f"engine://{host}:{port}") as client:
        found = await client.admin.list_transactions(open_longer_than=0, segment=segment, limit=5)
        assert [t["id"] for t in found] == [ident]
        await client.admin.abort_transaction(ident)
        assert (await client.admin.get_transaction(ident))["state"] == "ABORTED"
        with pytest.raises(TransactionNotFoundError):
            await client.admin.abort_transaction(UNKNOWN)
        with pytest.raises(InvalidArgumentError):
            await client.admin.get_transaction("x")


async def test_what_is_counted(broker, http):
    peer, _, ident = await acknowledging(broker)
    now = statistics(broker)
    assert (now.begun, now.operation_writes, now.operation_records, now.followed) == (1, 2, 2, 1)
    await peer.ask(Command.END_TXN, id=ident, action="commit", accepted=None)
    with pytest.raises(TransactionConflictError):
        await peer.ask(Command.END_TXN, id=ident, action="abort", accepted=None)
    text = await call(http, "GET", "/metrics", 200)
    for line in (
        "engine_txn_metadata_store_op_writes_total 2.0",
        'engine_txn_metadata_store_header_cas_total{result="ok"} 1.0',
        'engine_txn_metadata_store_header_cas_total{result="conflict"} 0.0',
        'engine_txn_metadata_store_header_cas_total{result="reject"} 1.0',
        'engine_txn_ended_total{outcome="committed"} 1.0',
        "engine_txn_created_total 1.0",
    ):
        assert line in text.splitlines(), line
    assert "engine_txn_metadata_store_index_query_seconds_count" in text
    assert "# TYPE engine_txn_metadata_store_outstanding_op_records gauge" in text


async def test_a_topic_says_which_transaction_holds_a_segment_back(broker):
    peer = await Peer.connect(broker)
    segment = await peer.segment("work")
    producer = await peer.producer(segment)
    await write(peer, producer, 0, [b"x"] * 3)
    ident = await begin(peer)
    await write(peer, producer, 3, [b"x"] * 2, ident)
    facts = (await broker.admin.get_stats("work"))["segments"]["0"]
    assert (facts["heldBackBy"], facts["readableOffset"], facts["nextOffset"]) == (ident, 3, 5)
    await broker.admin.abort_transaction(ident)
    await until(lambda: hosted(broker, segment).transactions.holding is None)
    facts = (await broker.admin.get_stats("work"))["segments"]["0"]
    assert (facts["heldBackBy"], facts["readableOffset"]) == (None, 5)
