"""Limits on virtual time, where a second is a second: buckets, throttles, producers, and what counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from engine._native.format.entry import Entry
from engine._native.produce.batcher import Batcher
from engine.broker.limits.bucket import BURST_S, PORTION_S, Bucket
from engine.broker.limits.debts import AHEAD_BYTES
from engine.broker.limits.limits import BrokerLimits
from engine.broker.limits.throttle import Throttle
from engine.broker.segment.limited import _OVERHEAD, _OVERHEAD_EACH, UNPAID_BYTES, LimitedProducer, _size_beyond
from engine.broker.session.backpressure import Backpressure
from engine.errors import LimitExceededError
from engine.limits import ENTRY_SIZE_MAX
from engine.metadata import keys
from engine.model.compression import decompressor
from engine.model.limits import Limits
from engine.model.names import TopicName
from engine.testing.loop import VirtualLoop
from tests.kit.peer import make_entries

SECONDS = 100


def virtual(main: Callable[[], Awaitable[None]]) -> None:
    VirtualLoop().run(main(), 10_000)


def bucket(messages: int | None = None, size: int | None = None) -> Bucket:
    made = Bucket(asyncio.get_running_loop().time)
    made.configure(messages, size)
    return made


def test_a_bucket_counts_what_it_grants_and_how_long_somebody_waits() -> None:
    async def main() -> None:
        one = bucket(messages=10)
        throttle = Throttle((one,), lambda messages, size: None)
        assert (one.waiting, one.held_s) == (0, 0.0)
        throttle.ask(50, 5_000)
        assert one.waiting == 1
        await asyncio.sleep(2)
        assert one.held_s == pytest.approx(2)
        await asyncio.sleep(8)
        assert (one.waiting, one.granted_messages, one.granted_bytes) == (0, 50, 5_000)
        assert one.held_s == pytest.approx((50 - 1) / 10), "until its last message is granted"
        throttle.ask(50, 0)
        held = one.held_s
        await asyncio.sleep(1)
        throttle.close()
        await asyncio.sleep(5)
        assert one.held_s == pytest.approx(held + 1)

    virtual(main)


class Greedy:
    """Asks at once for what it was granted."""

    def __init__(self, *buckets: Bucket, messages: int = 1, size: int = 1) -> None:
        self.messages = self.bytes = 0
        self.throttle = Throttle(buckets, self.granted)
        self.throttle.ask(messages, size)

    def granted(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        self.throttle.ask(messages, size)


@pytest.mark.parametrize("users", [1, 7])
def test_what_is_granted_is_the_rate_and_a_burst_at_most(users: int) -> None:
    async def main() -> None:
        shared = bucket(messages=1_000)
        greedy = [Greedy(shared, messages=50) for _ in range(users)]
        await asyncio.sleep(SECONDS)
        granted = sum(one.messages for one in greedy)
        assert 1_000 * SECONDS <= granted <= 1_000 * (SECONDS + BURST_S + PORTION_S)

    virtual(main)


def test_those_that_want_the_same_share_a_rate_evenly() -> None:
    async def main() -> None:
        shared = bucket(size=1_000_000)
        greedy = [Greedy(shared, size=1_000_000) for _ in range(5)]
        await asyncio.sleep(SECONDS)
        most, least = max(one.bytes for one in greedy), min(one.bytes for one in greedy)
        assert most - least <= 1_000_000 * (BURST_S + PORTION_S)  # the first had the burst to itself

    virtual(main)


def test_messages_and_bytes_hold_together_and_so_do_several_buckets() -> None:
    async def main() -> None:
        both, lower = bucket(messages=100, size=1_000_000), bucket(messages=60)
        fast, slow = Greedy(both, messages=10, size=10), Greedy(both, lower, messages=10, size=10)
        await asyncio.sleep(SECONDS)
        assert slow.messages <= 60 * (SECONDS + 1)
        assert 99 * SECONDS <= fast.messages + slow.messages <= 100 * (SECONDS + 1)

    virtual(main)


def test_what_was_sent_beyond_the_credit_is_paid_later() -> None:
    async def main() -> None:
        grants: list[tuple[int, int]] = []
        throttle = Throttle((bucket(size=1_000),), lambda messages, size: grants.append((messages, size)))
        throttle.ask(1, 100_000)
        assert sum(size for _, size in grants) <= 1_000
        await asyncio.sleep(90)
        assert sum(size for _, size in grants) < 100_000
        assert throttle.waits
        await asyncio.sleep(20)
        assert sum(size for _, size in grants) == 100_000
        assert not throttle.waits

    virtual(main)


def test_another_rate_holds_at_once_for_those_that_wait() -> None:
    async def main() -> None:
        one = bucket(messages=1)
        greedy = Greedy(one, messages=1_000)
        await asyncio.sleep(10)
        assert greedy.messages <= 12
        one.configure(1_000, None)
        await asyncio.sleep(10)
        assert greedy.messages >= 9_000
        one.configure(1, None)
        before = greedy.messages
        await asyncio.sleep(10)
        assert greedy.messages - before <= 12 + 1_000 * PORTION_S

    virtual(main)


def test_without_a_bucket_all_that_is_missing_is_granted() -> None:
    async def main() -> None:
        grants: list[tuple[int, int]] = []
        one = bucket(messages=1)
        throttle = Throttle((one,), lambda messages, size: grants.append((messages, size)))
        throttle.ask(1_000, 5_000)
        assert throttle.waits
        throttle.change(())
        assert (sum(m for m, _ in grants), sum(b for _, b in grants)) == (1_000, 5_000)
        assert one.users == 0

    virtual(main)


def test_one_that_is_closed_gets_nothing_and_holds_no_other_up() -> None:
    async def main() -> None:
        shared = bucket(messages=10)
        gone, stays = Greedy(shared, messages=100), Greedy(shared, messages=100)
        gone.throttle.close()
        gone.throttle.close()
        had = gone.messages
        await asyncio.sleep(SECONDS)
        assert gone.messages == had
        assert stays.messages >= 10 * (SECONDS - 1) - had

    virtual(main)


# -- producers ---------------------------------------------------------------------------------------------------------


class Stream:
    """Notes whether it is read from."""

    unsent_bytes = 0

    def __init__(self) -> None:
        self.reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


BIG = 100_000  # bytes, more than is granted at once


class Producing:
    """Producers of one topic, on one connection."""

    def __init__(self, *, takes_credit: bool) -> None:
        self.stream = Stream()
        self.credit: list[Any] = []
        self.receipts: list[tuple[int, int]] = []
        pressure = Backpressure(self.stream, None, lambda: None)  # type: ignore[arg-type]
        self.peer = SimpleNamespace(role="", takes_credit=takes_credit, pressure=pressure, send=self.credit.append)
        self.limits = BrokerLimits(lambda _: None, {"public", "role:ann"})
        self.made: list[LimitedProducer] = []

    async def limit(self, **limits: int) -> None:
        self.limits.note(keys.limits("public/default/orders"), Limits(**limits).to_json() if limits else None)
        await asyncio.sleep(0)
        for limited in self.made:
            limited.change(self.limits)

    def producer(self) -> LimitedProducer:
        hosted = SimpleNamespace(name=SimpleNamespace(topic=TopicName.parse("orders")))
        ident = len(self.made)
        made: Any = SimpleNamespace(
            connection=self.peer, hosted=hosted, name=f"p{ident}", ident=ident, closed=False,
            send_receipt=lambda sequences, offsets: self.receipts.extend(zip(sequences, offsets, strict=True)),
        )  # fmt: skip
        self.made.append(LimitedProducer(made, self.limits))
        return self.made[-1]


@pytest.mark.parametrize("takes_credit", [False, True])
def test_a_connection_is_not_read_from_until_enough_is_paid(takes_credit: bool) -> None:
    async def main() -> None:
        on = Producing(takes_credit=takes_credit)
        await on.limit(publish_bytes_per_s=ENTRY_SIZE_MAX // 10)  # an entry in ten seconds
        on.producer().sent(memoryview(bytes(4 * ENTRY_SIZE_MAX)))
        for _ in range(18 if takes_credit else 37):  # two entries may be on their way where there is credit
            assert not on.stream.reads
            await asyncio.sleep(1)
        await asyncio.sleep(5)
        assert on.stream.reads

    virtual(main)


@pytest.mark.parametrize(
    "limit", [{"publish_bytes_per_s": BIG}, {"publish_messages_per_s": 1}, {"publish_bytes_per_s": 10_000 * BIG}]
)
@pytest.mark.parametrize(
    "before", [[], [{}], [{}, {"publish_bytes_per_s": 10_000 * BIG}, {}], [{"publish_bytes_per_s": 1}, {}]]
)
def test_a_peer_without_credit_has_each_receipt_when_it_is_paid_for(
    limit: dict[str, int], before: list[dict[str, int]]
) -> None:
    """`before`: the limits under which it has published already, one after the other."""

    async def main() -> None:
        on = Producing(takes_credit=False)
        if not before:
            await on.limit(**limit)
        limited = on.producer()
        for at, earlier in enumerate(before):
            await on.limit(**earlier)
            for entry in make_entries([b"x"] * 50, first=50 * at):
                limited.sent(memoryview(entry.ljust(BIG, b"\0")))
            limited.stored(50, 50 * BIG)
            limited.withholds([50 * at], [50 * at])
        if before:
            await on.limit(**limit)
            await asyncio.sleep(1_000)  # until nothing is owed
        on.receipts.clear()
        slow = limit.get("publish_bytes_per_s") in (None, BIG)
        for first in (0, 10):  # of which each ten become durable together
            for entry in make_entries([b"x"] * 10, first=first):
                limited.sent(memoryview(entry.ljust(BIG, b"\0")))
            limited.stored(10, 10 * BIG)
            places = list(range(first, first + 10))
            assert limited.withholds(places, places) is slow
        for seconds in range(1, 20 if slow else 1):
            await asyncio.sleep(1)
            assert seconds - 1 <= len(on.receipts) <= seconds + 2
        await asyncio.sleep(3)
        assert on.receipts == ([(at, at) for at in range(20)] if slow else [])

    virtual(main)


def test_receipts_do_not_wait_where_a_limit_has_gone_or_credit_is_taken() -> None:
    async def main() -> None:
        for takes_credit in (False, True):
            on = Producing(takes_credit=takes_credit)
            await on.limit(publish_bytes_per_s=1)
            limited = on.producer()
            limited.sent(memoryview(bytes(1_000)))
            limited.stored(1, 1_000)
            assert limited.withholds([0], [0]) is not takes_credit
            assert not on.receipts
            await on.limit()
            assert on.receipts == ([] if takes_credit else [(0, 0)])
            limited.stored(1, 1_000)
            assert not limited.withholds([1], [1])

    virtual(main)


@pytest.mark.parametrize("closes", [False, True])
def test_a_connection_is_not_read_from_while_one_of_its_producers_owes(closes: bool) -> None:
    async def main() -> None:
        on = Producing(takes_credit=False)
        await on.limit(publish_bytes_per_s=1_000)
        little, much = on.producer(), on.producer()
        little.sent(memoryview(bytes(1_000)))
        much.sent(memoryview(bytes(UNPAID_BYTES + 100_000)))
        await asyncio.sleep(30)
        assert not little._holding
        assert not on.stream.reads
        if closes:
            much.close()
        else:
            await asyncio.sleep(80)
        assert on.stream.reads

    virtual(main)


def test_a_limit_that_is_set_again_gives_credit_again() -> None:
    async def main() -> None:
        on = Producing(takes_credit=True)
        await on.limit(publish_bytes_per_s=1_000)
        limited = on.producer()
        await on.limit()
        await on.limit(publish_bytes_per_s=1_000)
        limited.sent(memoryview(bytes(10)))
        await asyncio.sleep(5)
        ends = max(at for at, credit in enumerate(on.credit) if credit.bytes is None)
        assert sum(credit.bytes for credit in on.credit[ends + 1 :]) > 0

    virtual(main)


@pytest.mark.parametrize("takes_credit", [False, True])
def test_what_producers_that_are_gone_have_sent_is_paid_in_turns_with_the_others(takes_credit: bool) -> None:
    async def main() -> None:
        on = Producing(takes_credit=takes_credit)
        await on.limit(publish_bytes_per_s=1_000)
        stays, sent = on.producer(), 0
        for _ in range(10):
            gone = on.producer()
            gone.sent(memoryview(bytes(5_000)))
            sent += 5_000
            gone.close()
            gone.close()
        assert len(on.limits.debts) == 1
        (bucket,) = {id(b): b for b in stays._throttle._buckets}.values()  # type: ignore[union-attr]
        while sent <= 80_000:  # it stays, and sends as fast as it may
            stays.sent(memoryview(bytes(500)))
            sent += 500
            if stays._throttle.missing_bytes > 2_000:  # type: ignore[union-attr]
                await asyncio.sleep(1)
        assert 35 <= asyncio.get_running_loop().time() <= 65, "half of the rate is its own"
        await asyncio.sleep(sent / 1_000 - BURST_S - 1 - asyncio.get_running_loop().time())
        assert bucket.waiting, "all that was sent is paid for"
        await asyncio.sleep(5)
        assert not bucket.waiting
        assert not len(on.limits.debts)
        assert bucket.users == 1

    virtual(main)


def test_debts_end_with_the_limit() -> None:
    async def main() -> None:
        on = Producing(takes_credit=False)
        await on.limit(publish_bytes_per_s=1_000)
        gone = on.producer()
        gone.sent(memoryview(bytes(AHEAD_BYTES + 10_000)))
        gone.close()
        topic = TopicName.parse("orders")
        assert on.limits.debts.too_many(topic, "")
        assert not on.limits.debts.too_many(topic, "ann"), "another role"
        await asyncio.sleep(11)
        assert not on.limits.debts.too_many(topic, "")
        assert len(on.limits.debts) == 1
        await on.limit()
        assert not len(on.limits.debts)

    virtual(main)


# -- the size of a message ---------------------------------------------------------------------------------------------


def test_an_entry_that_is_beyond_any_doubt_too_large_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    (within,) = make_entries([b"x" * 900] * 3, per_entry=3)
    (beyond,) = make_entries([b"x" * 3_000] * 3, per_entry=3)
    assert _size_beyond(memoryview(within), 3, 899) == 900
    monkeypatch.setattr("engine.broker.segment.limited.decompressor", lambda: pytest.fail("it is opened"))
    assert (_size_beyond(memoryview(beyond), 3, 899) or 0) >= 3_000
    assert _size_beyond(memoryview(within), 3, Entry(within).raw_size) is None


@pytest.mark.parametrize("properties", [{}, {"n": "v"}, {f"{i}": "" for i in range(500)}, {"n" * 300: "é" * 30_000}])
def test_a_message_of_the_largest_size_is_not_refused_unopened(properties: dict[str, str]) -> None:
    batcher = Batcher(b"p", first_sequence=0, pending_bytes_max=1 << 30)
    batcher.set_layout([0], [0], [[65535]])
    for _ in range(200):
        batcher.add(b"v" * 1_000, "key" * 20, properties=properties)
    batcher.seal_all()
    for sealed in batcher.take():
        entry = Entry(bytes(sealed.data))
        largest = entry.largest_message(decompressor())
        assert largest >= 1_060
        assert entry.raw_size <= entry.count * (largest + _OVERHEAD_EACH) + _OVERHEAD
        assert _size_beyond(memoryview(entry.data()), entry.count, largest) is None


def test_an_offset_that_the_peer_has_made_up_does_not_change_the_count() -> None:
    async def main() -> None:
        on = Producing(takes_credit=True)
        await on.limit(publish_messages_per_s=1_000)
        (entry,) = make_entries([b"x"] * 3, per_entry=3)
        made_up = bytearray(entry)
        made_up[88:96] = b"\xff" * 8
        assert on.producer()._look_at(memoryview(made_up)) == (3, None)

    virtual(main)


# -- open transactions -------------------------------------------------------------------------------------------------


def test_transactions_count_while_they_are_begun_and_a_name_counts_once() -> None:
    async def main() -> None:
        limits = BrokerLimits(lambda _: None, {"role:ann"})
        limits.note(keys.limits("role:ann"), Limits(open_transactions_max=2).to_json())
        await asyncio.sleep(0)

        def refused(more: int = 1, name: str | None = None) -> bool:
            try:
                with limits.beginning("ann", more, name):
                    return False
            except LimitExceededError:
                return True

        assert refused(3)
        with limits.beginning("ann", 1, "n"), limits.beginning("ann", 1, "n"):
            assert not refused()
            assert refused(2)
            limits.transaction_begun("ann", 1, 10, "n")
            assert not refused()
        with limits.beginning("ann", 1, None):
            limits.transaction_begun("ann", 2, 20)
        assert refused()
        assert not refused(name="n")
        assert refused(name="m")
        limits.transaction_begun("ann", 3, 10, "n")  # in place of the one before
        limits.transaction_ended("ann", 2)
        assert not refused()
        assert refused(2)
        await asyncio.sleep(11)
        assert not refused(2)
        assert not limits._open_transactions

    virtual(main)
