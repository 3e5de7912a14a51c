"""Planted bugs of groups: each is flagged within a few seeds, by the rule that is named for it."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine._native.consume.unacked import Unacknowledged
from engine._native.format.crc32c import crc32c
from engine._native.serve.blocks import Block
from engine._native.serve.dispatch import SharedOutlets
from engine.broker.delivery import bucket_acks, shared
from engine.broker.delivery.bucket_assignment import UNASSIGNED
from engine.broker.delivery.consumer import LoneReader
from engine.broker.delivery.delayed import Delays
from engine.broker.delivery.queue import QueueDispatcher
from engine.broker.delivery.redelivery import RedeliveryCounts
from engine.broker.delivery.shared import SharedDispatcher
from engine.broker.delivery.subscription import HostedSubscription
from engine.client.consume import queue_consumer
from engine.client.consume.letter import LetterProducer
from engine.client.consume.queue_consumer import AsyncQueueConsumer
from engine.client.topic.topic_list import TopicListSession
from engine.testing.cluster import SimCluster, simulate
from engine.testing.members import NamespaceMember
from engine.testing.workload import Sender, read_all
from engine.wire.commands import Ack
from tests.simulation.broker_scenario import judge
from tests.simulation.queue_scenario import QueuePlan
from tests.simulation.queue_scenario import run as run_queue
from tests.simulation.sharing_scenario import SharingPlan, config_of
from tests.simulation.sharing_scenario import run as run_group

SEEDS = range(100, 116)
# One segment that keeps its shape: what befalls it is due to its members alone.
MOVING = SharingPlan(strikes=0, calm_s=30.0, changes=0, members=(3, 6), life_s=5.0, delays_s=(0.01,))


def flagged(rule: str, live: Callable[[int], object]) -> bool:
    """Whether some life shows a violation of the rule."""
    for seed in SEEDS:
        try:
            live(seed)
        except AssertionError as e:
            if f"{rule} at event" in str(e):
                return True
    return False


def group(seed: int, plan: SharingPlan = MOVING) -> None:
    config = config_of(1)
    if not plan.changes:
        config = dataclasses.replace(config, segments=1, entry_buckets=8, scalable_topic_auto_scale_enabled=False)
    run_group(seed, plan, config)


def test_the_good_product_is_not_flagged() -> None:
    for seed in SEEDS[:2]:
        group(seed)
        run_queue(seed)


def moved(dispatcher: SharedDispatcher, before: list[int]) -> list[tuple[int, int]]:
    """(bucket, its owner until now) of those that have another one now."""
    pairs = enumerate(zip(before, dispatcher._owners, strict=True))
    return [(bucket, old) for bucket, (old, new) in pairs if old not in (UNASSIGNED, new)]


def plant_at_moves(monkeypatch: pytest.MonkeyPatch, act: Callable[[Any, int, int], object]) -> None:
    """When a bucket moves, act(ledger, bucket, who had it)."""
    assign = SharedDispatcher._assign

    def assign_and_act(dispatcher: SharedDispatcher) -> None:
        before = dispatcher._owners
        assign(dispatcher)
        for bucket, old in moved(dispatcher, before):
            act(dispatcher.ledger, bucket, old)

    monkeypatch.setattr(SharedDispatcher, "_assign", assign_and_act)


def test_hand_a_moving_bucket_over_without_withholding(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_at_moves(monkeypatch, lambda ledger, bucket, old: ledger.acknowledge(old, [(bucket, ledger.next_offset)]))
    assert flagged("C4", group)


def test_redeliver_what_moves_while_its_owner_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_at_moves(monkeypatch, lambda ledger, bucket, old: ledger.release(old))
    assert flagged("C4", group)


def test_forget_what_sharers_acknowledged_when_one_reads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoneReader, "_acknowledged", lambda reader, block: [])
    assert flagged("C1", lambda seed: group(seed, dataclasses.replace(MOVING, members=(2, 2))))


def test_save_nothing_of_what_is_acknowledged_by_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(subscription: HostedSubscription, *said: Any, lazy: bool) -> asyncio.Future[None]:
        return subscription._then_check_drained(subscription.cursor.ack_individual(()))

    for way in ("ack_runs", "ack_set"):
        monkeypatch.setattr(HostedSubscription, way, forget)
    assert flagged("C1", lambda seed: group(seed, dataclasses.replace(MOVING, members=(2, 2))))


def test_acknowledge_by_position_what_is_said_of_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    def everywhere(header: Ack, hosted: Any) -> list[tuple[int, int]]:
        positions = bucket_acks.positions_of(header, hosted)
        furthest = max(position for _, position in positions)
        return [(bucket, furthest) for bucket in range(len(hosted.spec.bucket_ends))]

    monkeypatch.setattr(shared, "positions_of", everywhere)
    assert flagged("O2", group)


# Where an entry's header says its size, its checksum (and of what), its hashes of either kind, and its first offset.
AT_SIZE, AT_CRC, AT_CHECKED, CHECKED_END, AT_BUCKETS, AT_SEGMENTS, AT_FIRST_OFFSET = 4, 8, 12, 80, 28, 32, 88
NUMBER, STAMP, OFFSET = struct.Struct("<I"), struct.Struct("<HH"), struct.Struct("<Q")


def entries_at(block: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """(where it begins, its first offset) of each entry."""
    at = 0
    while at < len(block):
        yield at, OFFSET.unpack_from(block, at + AT_FIRST_OFFSET)[0]
        at += NUMBER.unpack_from(block, at + AT_SIZE)[0]


def stamp(entries: bytearray, at: int, buckets: tuple[int, int]) -> None:
    """Say that the entry there is in these buckets."""
    STAMP.pack_into(entries, at + AT_BUCKETS, *buckets)
    NUMBER.pack_into(entries, at + AT_CRC, crc32c(entries[at + AT_CHECKED : at + CHECKED_END]))


def route_by_segment_hash(dispatcher: SharedDispatcher, block: Block) -> list[Any]:
    """Route by the half of the hash that chose the segment, in place of the one that chooses the bucket."""
    wrong, stamps = bytearray(_joined(block.parts)), {}
    for at, first in entries_at(wrong):
        stamps[first] = STAMP.unpack_from(wrong, at + AT_BUCKETS)
        segment, _ = STAMP.unpack_from(wrong, at + AT_SEGMENTS)
        stamp(wrong, at, (segment, segment))
    changed = Block([memoryview(wrong)], block.salt, block.first_offset, block.next_offset, block.messages)
    parcels = SharedOutlets.route(dispatcher, changed)
    return [(who, _as_it_was(payload, stamps), *more) for who, payload, *more in parcels]


def _joined(data: Any) -> Any:
    return b"".join(data) if isinstance(data, list | tuple) else data


def _as_it_was(payload: Any, stamps: dict[int, tuple[int, int]]) -> bytes:
    right = bytearray(_joined(payload))
    for at, first in entries_at(right):
        stamp(right, at, stamps[first])
    return bytes(right)


def test_route_by_the_hash_that_chose_the_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedDispatcher, "route", route_by_segment_hash)
    assert flagged("C4", group)


# Queues.


def test_forget_how_often_a_message_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RedeliveryCounts, "increment", lambda counts, offsets: None)
    assert flagged("C2", lambda seed: run_queue(seed, QueuePlan(max_redeliveries=None)))


def test_put_a_dead_letter_away_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = LetterProducer.publish

    async def twice(producer: LetterProducer, letters: Any, transaction: Any) -> None:
        await publish(producer, letters, transaction)
        await publish(producer, letters, transaction)

    monkeypatch.setattr(LetterProducer, "publish", twice)
    assert flagged("C2", run_queue)


def test_put_dead_letters_away_without_acknowledging_them_in_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(consumer: Any, letters: Any, transaction: Any) -> None: ...

    monkeypatch.setattr(AsyncQueueConsumer, "_acknowledge_letters", nothing)
    assert flagged("C2", run_queue)


def test_hand_back_what_was_acknowledged_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Keeping(Unacknowledged):
        def take(self, segment_id: int, offsets: Any) -> Any:
            return self._held.get(segment_id, offsets) & offsets

    def redeliver(dispatcher: QueueDispatcher, consumer: Any, offsets: Any, backoff: Any = None) -> None:
        consumer.unacknowledged -= offsets
        dispatcher._hand_back(offsets, backoff)
        dispatcher.pump()

    monkeypatch.setattr(queue_consumer, "Unacknowledged", Keeping)
    monkeypatch.setattr(QueueDispatcher, "redeliver", redeliver)
    assert flagged("C2", lambda seed: run_queue(seed, QueuePlan(max_redeliveries=None, messages=30, kill_rate=0.0)))


def test_deliver_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Delays, "withhold", lambda delays, entry, wanted: wanted - wanted)
    assert flagged("DELAY", run_queue)


def test_never_deliver_what_was_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Delays, "_release_due", lambda delays: None)
    assert flagged("DELAY", lambda seed: run_queue(seed, QueuePlan(life_s=float("inf"))))


# A consumer of a whole namespace.

NAMESPACE = "shop/eu"


async def born_meanwhile(cluster: SimCluster) -> SimCluster:
    """A topic is created while the consumer's connection to the list of topics is broken."""
    broker = await cluster.start()
    connect = lambda name="c-all": cluster.client(name, broker)  # noqa: E731
    member = NamespaceMember(cluster.history, connect, "all", NAMESPACE, "sub", cluster.rng("all"))
    member.life_s_max, member.ack_rate = float("inf"), 0.5
    reading = None
    for number in range(3):
        topic = f"topic://{NAMESPACE}/t{number}"
        if number:
            cluster.network.partition("c-all", broker.name)
            cluster.network.reset("c-all", broker.name)
        await broker.process.do(lambda topic=topic: broker.broker.admin.create_topic(topic, segments=1))
        sender = Sender(cluster.history, connect(f"c-p{number}"), f"p{number}", topic, cluster.rng(topic))
        await sender.run(20)
        if number:
            cluster.network.heal()
            member.born(topic)
        else:
            member.topics.append(topic)
            reading = asyncio.create_task(member.run())
        await asyncio.sleep(20)
    assert reading is not None
    member.stop()
    await reading
    for topic in member.topics:
        cluster.history.record("all", "drained", subscription=member.subscription_of(topic))
    for topic in member.topics:
        await read_all(cluster.history, connect("c-final"), topic, 1)
    judge(cluster)
    return cluster


def test_a_consumer_of_a_namespace_hears_of_what_was_born_meanwhile() -> None:
    for seed in SEEDS[:3]:
        simulate(seed, born_meanwhile)


def test_drop_a_topic_that_was_born_during_a_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = TopicListSession._apply

    def apply_silently(session: TopicListSession, parts: list[dict[str, Any]]) -> None:
        session._opened, opened = session._opened and not session._reopening, session._opened
        apply(session, parts)
        session._opened = opened

    monkeypatch.setattr(TopicListSession, "_apply", apply_silently)
    assert flagged("C2", lambda seed: simulate(seed, born_meanwhile))
