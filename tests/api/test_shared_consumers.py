"""Stream consumers that share a segment by bucket (PIP-486, semantics 11, 12, 15 to 19)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import engine
from engine.model.positions import split_position
from engine.model.subscriptions import DeliveryMode
from tests.api.reshaping import KEYS, Publisher, assert_in_order, until
from tests.api.shared_segment import (
    Worker,
    clients_of,
    crash,
    join,
    keys_of,
    make_topic,
    modes,
    send,
    settled,
    take,
    take_waiting,
    tear,
    values_of,
)

EXCLUSIVE, SHARED = DeliveryMode.EXCLUSIVE, DeliveryMode.SHARED


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[engine.AsyncEngine]:
    async with engine.open_async(tmp_path / "data", shared=False) as e:
        yield e


# -- who gets what -----------------------------------------------------------------------------------------------------


async def test_five_consumers_of_one_rebucketed_segment_all_work(client: engine.AsyncClient):
    await make_topic(client, buckets=1)
    await client.admin.rebucket_segment("t", 0, 8)
    consumers = await join(client, *"abcde")
    await settled(SHARED, *consumers)
    sent = await send(client, 0, 5)
    got = await take_waiting(*consumers)
    assert all(got), "all five receive"
    owners = defaultdict(set)
    for number, messages in enumerate(got):
        for key in keys_of(messages):
            owners[key].add(number)
        assert_in_order(values_of(messages))
    assert all(len(names) == 1 for names in owners.values()), "every key wholly on one consumer"
    assert sorted(v for messages in got for v in values_of(messages)) == sorted(sent)
    for consumer in consumers:
        await consumer.close()


async def test_semantics_17_joins_and_leaves_during_traffic_keep_every_keys_order(client: engine.AsyncClient):
    """For each key the concatenation of what its owners received is what was sent."""
    await make_topic(client)
    rng, values = random.Random(486), list[bytes]()
    workers: dict[str, Worker] = {}
    async with Publisher(client) as publisher:
        for _ in range(25):
            name = rng.choice("abcdef")
            if name in workers:
                await workers.pop(name).leave()
            else:
                workers[name] = Worker((await join(client, name))[0], values)
            await publisher.until(rng.randint(1, 4))
        await publisher.stop()
        workers.setdefault("z", Worker((await join(client, "z"))[0], values))
        await until(lambda: not publisher.missing(values))
        assert_in_order(values)
    for worker in workers.values():
        await worker.leave()


async def test_semantics_15_surplus_consumers_are_idle_until_somebody_leaves(client: engine.AsyncClient):
    await make_topic(client, buckets=2)
    a, b, c = await join(client, *"abc")
    await settled(SHARED, a, b)
    assert not c.attachments
    sent = await send(client, 0, 1)
    got = await take_waiting(a, b, c)
    assert [bool(messages) for messages in got] == [True, True, False]
    assert sorted(v for messages in got for v in values_of(messages)) == sorted(sent)
    await a.close()
    await until(lambda: modes(c) == {0: SHARED})
    again = await take_waiting(b, c)  # closing acknowledged nothing
    assert sorted(v for messages in again for v in values_of(messages)) == sorted(values_of(got[0]))
    await b.acknowledge_cumulative(got[1][-1])
    for consumer, messages in zip((b, c), again, strict=True):
        if messages:
            await consumer.acknowledge_cumulative(messages[-1])
    await send(client, 1, 1)
    assert all(await take_waiting(b, c))


async def test_a_sealed_backlog_is_drained_in_parallel_then_one_reads_each_segment(client: engine.AsyncClient):
    await make_topic(client, buckets=4)
    await client.admin.create_subscription("t", "s", initial_position="earliest")
    sent = await send(client, 0, 25)
    await client.admin.split_segment("t", 0)
    sent += await send(client, 25, 1)
    consumers = await join(client, *"abcdef", ahead=20)
    await settled(SHARED, *consumers[:4])
    assert [modes(c) for c in consumers] == [{0: SHARED}] * 4 + [{}] * 2, "by as many as it has buckets"
    values: list[bytes] = []
    workers = [Worker(consumer, values) for consumer in consumers]
    await until(lambda: all(modes(c) and 0 not in modes(c) for c in consumers[:4]))
    assert all(worker.got for worker in workers[:4]), "all of them had their part"
    for worker in workers[2:]:
        await worker.leave()
    await settled(EXCLUSIVE, *consumers[:2])
    assert [sorted(modes(c)) for c in consumers[:2]] == [[1], [2]]
    await until(lambda: len(values) >= len(sent))
    assert_in_order(values)
    assert len(values) == len(sent)
    for worker in workers[:2]:
        await worker.leave()


async def test_a_sealed_backlog_is_drained_by_one_where_the_broker_says_so(tmp_path: Path):
    config = {"scalable_topic_sealed_segment_drain_enabled": False}
    async with engine.open_async(tmp_path, config=config, shared=False) as opened:
        (client,) = clients_of(opened, 1)
        await make_topic(client, buckets=4)
        await client.admin.create_subscription("t", "s", initial_position="earliest")
        sent = await send(client, 0, 1)
        await client.admin.split_segment("t", 0)
        alone, *others = await join(client, *"abc")
        got = await take(alone, len(sent))
        assert (sorted(values_of(got)), modes(alone)) == (sorted(sent), {0: EXCLUSIVE})
        assert not any(modes(other) for other in others), "who has no segment waits, though it has buckets"
        await alone.acknowledge_cumulative(got[-1])
        await until(lambda: all(modes(c) and 0 not in modes(c) for c in (alone, *others)))
        assert [modes(c) for c in (alone, *others)] == [{1: SHARED}, {1: SHARED}, {2: EXCLUSIVE}]


# -- from one mode to the other ----------------------------------------------------------------------------------------


async def test_semantics_18_who_read_alone_shares_when_all_it_delivered_is_acknowledged(client: engine.AsyncClient):
    await make_topic(client)
    (a,) = await join(client, "a")
    first = await send(client, 0, 1)
    held = await take(a, KEYS)
    (b,) = await join(client, "b")
    await send(client, 1, 1)
    assert await take_waiting(a, b) == [[], []], "nobody reads while something is unacknowledged"
    await a.acknowledge_cumulative(held[-1])
    await settled(SHARED, a, b)
    got = await take_waiting(a, b)
    assert sorted(v for messages in got for v in values_of(messages)) == sorted(v[:-1] + b"1" for v in first)


async def test_semantics_18_flips_there_and_back_deliver_everything_once(client: engine.AsyncClient):
    """What another one acknowledged above what this one has not is a hole, and is skipped."""
    await make_topic(client)
    values: list[bytes] = []
    (a,) = await join(client, "a")
    for counter in range(0, 9, 3):
        await settled(EXCLUSIVE, a)
        await send(client, counter, 1)
        alone = await take(a, KEYS)
        await a.acknowledge_cumulative(alone[-1])
        (b,) = await join(client, "b")
        await settled(SHARED, a, b)
        await send(client, counter + 1, 2)
        of_a, of_b = await take_waiting(a, b)
        await b.acknowledge_cumulative(of_b[-1])
        await a.acknowledge_cumulative(of_a[0])
        await b.close()
        await a.acknowledge_cumulative(of_a[-1])
        for part in (alone, of_a, of_b):
            values += values_of(part)
    await settled(EXCLUSIVE, a)
    assert await a.receive(timeout=0.2) is None
    assert_in_order(values)


async def test_a_share_that_flips_back_before_it_was_let_go_goes_on_where_it_was(client: engine.AsyncClient):
    await make_topic(client)
    (a,) = await join(client, "a")
    await send(client, 0, 2)
    held = await take(a, 10)
    (b,) = await join(client, "b")
    await until(lambda: a.attachments[0].draining)
    await b.close()
    await until(lambda: not a.attachments[0].draining)
    held += await take(a, 2 * KEYS - 10)
    assert_in_order(values_of(held))
    assert a.attachments[0].mode == EXCLUSIVE


async def test_ids_of_one_mode_are_good_in_the_other(client: engine.AsyncClient):
    await make_topic(client)
    (a,) = await join(client, "a")
    await send(client, 0, 1)
    kept = engine.MessageId.from_bytes((await take(a, KEYS))[-1].id.to_bytes())
    assert {split_position(place) for place in kept.positions} == {(0, None)}
    await a.close()
    a, b = await join(client, *"ab")
    await settled(SHARED, a, b)
    of_b = (await take_waiting(a, b))[1]
    if of_b:
        await b.acknowledge_cumulative(of_b[-1])
    await a.acknowledge_cumulative(kept)
    await send(client, 1, 1)
    of_a, of_b = await take_waiting(a, b)
    kept = engine.MessageId.from_bytes(of_b[-1].id.to_bytes())
    assert all(bucket is not None for _, bucket in map(split_position, kept.positions))
    await a.acknowledge_cumulative(of_a[-1])
    await b.close()
    await settled(EXCLUSIVE, a)
    assert values_of(await take(a, len(of_b))) == values_of(of_b)  # closing acknowledged nothing
    await a.acknowledge_cumulative(kept)
    await a.close()
    (c,) = await join(client, "c")
    assert await c.receive(timeout=0.2) is None


# -- acknowledging -----------------------------------------------------------------------------------------------------


async def test_semantics_11_an_acknowledgement_covers_what_was_delivered_in_each_bucket(client: engine.AsyncClient):
    await make_topic(client)
    a, b = await join(client, *"ab")
    await settled(SHARED, a, b)
    await send(client, 0, 2)
    of_a, of_b = await take_waiting(a, b)
    await a.acknowledge_cumulative(of_a[len(of_a) // 2])
    await b.acknowledge_cumulative(of_b[-1])
    await a.close()
    await settled(EXCLUSIVE, b)
    assert values_of(await take(b, len(of_a) - len(of_a) // 2 - 1)) == values_of(of_a[len(of_a) // 2 + 1 :])
    assert await b.receive(timeout=0.2) is None


async def test_after_a_seek_to_above_the_cursor_what_comes_again_is_not_acknowledged_unseen(
    opened: engine.AsyncEngine,
):
    """The cursor, which is that of the slowest bucket, does not say that another bucket was moved back."""
    (client,) = clients_of(opened, 1)
    await make_topic(client, buckets=4)
    a, b = await join(client, *"ab")
    await settled(SHARED, a, b)
    await send(client, 0, 2)
    between = datetime.now(UTC) + timedelta(milliseconds=1)
    await until(lambda: datetime.now(UTC) > between)
    sent = await send(client, 2, 2)
    (got, _) = await take_waiting(a, b)
    await a.acknowledge_cumulative(got[-2])  # the other one has all of its buckets still to acknowledge
    assert a.positions
    before = a.attachments[0].progress.position
    await client.admin.seek_subscription("t", "s", between)
    await until(lambda: all(c.attachments[0].connected and c.attachments[0].progress.position > before for c in (a, b)))
    assert not a.positions, "nothing was delivered yet"
    again = [m for messages in await take_waiting(a, b) for m in messages]
    assert sorted(values_of(again)) == sorted(sent)


async def test_position_vectors_of_sharers_stay_small(client: engine.AsyncClient):
    """They name what is not acknowledged, not every bucket that ever came by."""
    await make_topic(client, buckets=64)
    a, b = await join(client, *"ab")
    await settled(SHARED, a, b)
    for counter in range(6):
        await send(client, counter, 1)
        for consumer, messages in zip((a, b), await take_waiting(a, b), strict=True):
            assert len(messages[-1].id.positions) <= len(messages)
            await consumer.acknowledge_cumulative(messages[-1])
            assert not consumer._queue.positions
        if counter % 2:
            await b.close()
            (b,) = await join(client, "b")
            await settled(SHARED, a, b)


async def test_semantics_12_ids_kept_over_a_lost_connection_are_good(opened: engine.AsyncEngine):
    await make_topic(opened)
    one, other = clients_of(opened, 2)
    (a,), (b,) = await join(one, "a"), await join(other, "b")
    await settled(SHARED, a, b)
    await send(opened, 0, 2)
    of_a, of_b = await take_waiting(a, b)
    await b.acknowledge_cumulative(of_b[-1])
    tear(one)
    await settled(SHARED, a)
    again = await take_waiting(a, b)
    assert sorted(values_of([*again[0], *again[1]])) == sorted(values_of(of_a)), "only the unacknowledged"
    assert_in_order(values_of(again[0]))
    for consumer, messages in zip((a, b), again, strict=True):
        if messages:
            await consumer.acknowledge_cumulative(messages[-1])
    await a.acknowledge_cumulative(of_a[-1])  # by now no news, whoever has the buckets
    await a.acknowledge_cumulative(engine.MessageId.from_bytes(of_a[0].id.to_bytes()))
    for client in (one, other):
        await client.close()


async def test_who_acknowledges_in_a_bucket_that_went_elsewhere_is_told_once(opened: engine.AsyncEngine):
    await make_topic(opened)
    one, other = clients_of(opened, 2)
    (a,), (b,) = await join(one, "a"), await join(other, "b")
    await settled(SHARED, a, b)
    await send(opened, 0, 1)
    of_a, of_b = await take_waiting(a, b)
    await b.acknowledge_cumulative(of_b[-1])
    tear(one)
    await settled(SHARED, a)
    [moved] = await take_waiting(b)
    assert moved, "buckets went to who stayed"
    with pytest.raises(engine.FencedError, match=r"segments \[0\]"):
        await a.acknowledge_cumulative(of_a[-1])
    sent = await send(opened, 1, 1)
    of_a_now, of_b_now = await take_waiting(a, b)
    assert sorted(values_of([*of_a_now, *of_b_now])) == sorted(sent)
    await a.acknowledge_cumulative(of_a_now[-1])  # says nothing more of what was lost
    await b.acknowledge_cumulative(of_b_now[-1])
    await a.acknowledge_cumulative(of_a[-1])  # b has done it since
    for client in (one, other):
        await client.close()


async def test_a_sharer_crashes_in_the_middle_of_a_handoff(opened: engine.AsyncEngine):
    """Nothing is lost, order is kept, and only the unacknowledged is delivered again."""
    await make_topic(opened)
    one, *others = clients_of(opened, 3)
    (a,), (b,) = await join(one, "a"), await join(others[0], "b")
    await settled(SHARED, a, b)
    sent = await send(opened, 0, 4)
    of_a, of_b = await take_waiting(a, b)
    half = len(of_a) // 2
    await a.acknowledge_cumulative(of_a[half - 1])
    (c,) = await join(others[1], "c")  # some of a's buckets are to be c's, and wait for a
    await settled(SHARED, c)
    assert await take_waiting(c) == [[]]
    crash(one)
    values: list[bytes] = []
    workers = [Worker(consumer, values) for consumer in (b, c)]
    await until(lambda: len(values) >= len(of_a) - half)
    sent += await send(opened, 4, 1)
    await until(lambda: len(values) >= len(of_a) - half + KEYS)
    before = values_of([*of_a[:half], *of_b])
    assert_in_order([*before, *values])
    assert sorted([*before, *values]) == sorted(sent)
    for worker in workers:
        await worker.leave()
    for client in (one, *others):
        await client.close()
