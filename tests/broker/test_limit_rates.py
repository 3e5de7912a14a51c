"""Rates: buckets and throttles on virtual time, where a second is a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from engine.broker.limits.bucket import BURST_S, PORTION_S, Bucket
from engine.broker.limits.throttle import Throttle
from engine.testing.loop import VirtualLoop

SECONDS = 100


def virtual(main: Callable[[], Awaitable[None]]) -> None:
    VirtualLoop().run(main(), 10_000)


def bucket(messages: int | None = None, size: int | None = None) -> Bucket:
    made = Bucket(asyncio.get_running_loop().time)
    made.configure(messages, size)
    return made


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
