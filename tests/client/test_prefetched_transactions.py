"""Transactions that are begun ahead, for whoever runs many: when there are some, how many, and where they go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.client.client import AsyncClient
from engine.client.transact import prefetched
from engine.client.transact.prefetched import IN_A_ROW, LOW, PREFETCHED_MAX, TIMEOUTS_MAX, kept_s
from engine.errors import EngineError
from engine.limits import TRANSACTION_TIMEOUT_S_MAX
from engine.model.transactions import BEGUN_MAX
from engine.wire.commands import Command
from tests.kit.fake_broker import FakeBroker

TIMEOUT_S = 600.0
KEPT_S = 9.0


@pytest.fixture(autouse=True)
def kept_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine too, one comes soon after the other."""
    monkeypatch.setattr(prefetched, "KEPT_S_MAX", KEPT_S)


async def in_a_row(client: AsyncClient, count: int = IN_A_ROW + 1, timeout_s: float = TIMEOUT_S) -> list[str]:
    """Run so many, one after the other; their ids."""
    found = []
    for _ in range(count):
        async with client.transaction(timeout_s) as transaction:
            found.append(transaction.id)
    return found


def aborted(broker: FakeBroker) -> list[str]:
    return [header["id"] for header in broker.of(Command.END_TXN) if header["action"] == "abort"]


def asked(broker: FakeBroker) -> list[int]:
    """How many were to be begun ahead, each time."""
    return [header["count"] for header in broker.of(Command.NEW_TXN) if header.get("count") is not None]


def waited_for(broker: FakeBroker) -> int:
    """How many were begun when they were needed."""
    return len(broker.of(Command.NEW_TXN)) - len(asked(broker))


def all_have_ended(broker: FakeBroker, used: list[str]) -> bool:
    """Those that were used are committed, all others aborted."""
    ends = {ident: "COMMITTED" if ident in used else "ABORTED" for ident in broker.transactions}
    return len(set(used)) == len(used) and ends == broker.transactions


async def test_there_is_none_before_several_were_run_in_a_row(broker: FakeBroker, client: AsyncClient):
    await in_a_row(client, IN_A_ROW)
    assert (waited_for(broker), asked(broker)) == (IN_A_ROW, [])


async def test_who_goes_on_waits_for_none(broker: FakeBroker):
    async with broker.client() as client:
        found = await in_a_row(client, 100)
        assert waited_for(broker) == IN_A_ROW + 1
        assert sum(asked(broker)) >= 100 - waited_for(broker)
        assert sum(asked(broker)) - (100 - waited_for(broker)) <= BEGUN_MAX + LOW + 1
    assert all_have_ended(broker, found)


async def test_the_longer_it_goes_on_the_more_are_begun_at_once(broker: FakeBroker):
    async with broker.client() as client:
        await in_a_row(client, 4 * BEGUN_MAX)
    assert asked(broker) == sorted(asked(broker))
    assert asked(broker)[0] == (IN_A_ROW + 1) // 2
    assert asked(broker)[-1] == BEGUN_MAX


async def test_who_takes_his_time_gets_few(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch):
    """Within a quarter of the time that they are kept he uses two."""
    async with broker.client() as client:
        loop = asyncio.get_running_loop()
        time, passed = loop.time, [0.0]
        monkeypatch.setattr(loop, "time", lambda: time() + passed[0])
        for _ in range(4 * BEGUN_MAX):
            passed[0] += KEPT_S / 4 / 2.5
            await in_a_row(client, 1)
    assert set(asked(broker)) == {2}


async def test_who_runs_many_at_a_time_has_as_many_ready(broker: FakeBroker, client: AsyncClient):
    await in_a_row(client, 4 * BEGUN_MAX)
    before = waited_for(broker)
    found = [one for row in await asyncio.gather(*(in_a_row(client, 40) for _ in range(20))) for one in row]
    assert waited_for(broker) - before < 40  # until the first of them came
    assert len(set(found)) == 800
    assert sum(asked(broker)) <= 4 * BEGUN_MAX + 800 + PREFETCHED_MAX


async def test_it_lives_longer_by_what_it_may_be_kept(broker: FakeBroker):
    async with broker.client() as client:
        await in_a_row(client)
        await broker.until(lambda: bool(asked(broker)))
    timeouts = {header["timeout"] for header in broker.of(Command.NEW_TXN) if header.get("count")}
    assert timeouts == {TIMEOUT_S + KEPT_S}


async def test_each_is_used_once(broker: FakeBroker):
    async with broker.client() as client:
        found = await in_a_row(client, 40)
        found += [one for row in await asyncio.gather(*(in_a_row(client, 10) for _ in range(5))) for one in row]
        assert len(found) == 90
    assert all_have_ended(broker, found)
    assert set(aborted(broker)) == set(broker.transactions) - set(found)


async def test_whoever_closes_the_client_aborts_them(broker: FakeBroker):
    async with broker.client() as client:
        found = await in_a_row(client, 5 * IN_A_ROW)
        await broker.settle()
        assert aborted(broker) == []
    assert aborted(broker)
    assert all_have_ended(broker, found)


async def test_those_that_come_while_the_client_closes_are_aborted(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch):
    """They are begun when it closes, and nobody has heard of it."""
    begin_some, closing = prefetched.begin_some, asyncio.Event()

    async def late(*arguments):
        found = await begin_some(*arguments)
        await closing.wait()
        return found

    monkeypatch.setattr(prefetched, "begin_some", late)
    async with broker.client() as client:
        found = await in_a_row(client)
        await broker.until(lambda: bool(asked(broker)))
        asyncio.get_running_loop().call_later(0.01, closing.set)
    assert len(aborted(broker)) == sum(asked(broker)) > 0
    assert all_have_ended(broker, found)


async def test_one_that_was_long_in_coming_has_no_less_time(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch):
    """Its time has run since it was asked for."""
    begin_some, loop = prefetched.begin_some, asyncio.get_running_loop()
    time, passed = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: time() + passed[0])

    async def slow(*arguments):
        found = await begin_some(*arguments)
        passed[0] += 0.9 * KEPT_S
        return found

    monkeypatch.setattr(prefetched, "begin_some", slow)
    async with broker.client() as client:
        found = await in_a_row(client)
        await broker.until(lambda: bool(client._transactions._prefetched._stock(TIMEOUT_S).waiting))
        client._transactions._prefetched.ended()
        before = waited_for(broker)
        passed[0] += 0.2 * KEPT_S
        found += await in_a_row(client, 1)
        assert waited_for(broker) == before + 1
    assert all_have_ended(broker, found)


async def test_who_leaves_them_unused_has_to_go_on_longer_each_time(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, client: AsyncClient
):
    """Until he uses one."""
    stock, loop = client._transactions._prefetched._stock(TIMEOUT_S), asyncio.get_running_loop()
    time, passed, rows = loop.time, [0.0], []
    monkeypatch.setattr(loop, "time", lambda: time() + passed[0])
    for _ in range(4):
        before, count = len(asked(broker)), 0
        while len(asked(broker)) == before:
            await in_a_row(client, 1)
            await broker.settle()
            count += 1
        rows.append(count)
        passed[0] += 2 * KEPT_S
        client._transactions._prefetched._expire(stock)
    assert rows == [IN_A_ROW * 2**i + 1 for i in range(4)]
    await in_a_row(client, 16 * IN_A_ROW + 1)
    await broker.settle()
    await in_a_row(client, 1)
    passed[0] += 2 * KEPT_S
    client._transactions._prefetched._expire(stock)
    before = len(asked(broker))
    await in_a_row(client, 2 * IN_A_ROW + 1)
    await broker.settle()
    assert len(asked(broker)) > before


async def test_others_have_other_timeouts(broker: FakeBroker):
    """Two kinds in turns: each has its own, and none is lost."""
    async with broker.client() as client:
        found = []
        for _ in range(3 * IN_A_ROW):
            found += await in_a_row(client, 1) + await in_a_row(client, 1, 2 * TIMEOUT_S)
        assert aborted(broker) == []
        assert waited_for(broker) == 2 * (IN_A_ROW + 1)
    assert all_have_ended(broker, found)


async def test_there_are_spares_of_so_many_timeouts(broker: FakeBroker):
    async with broker.client() as client:
        found = await in_a_row(client)
        await broker.until(lambda: len(broker.transactions) > len(found))
        for i in range(TIMEOUTS_MAX):
            assert aborted(broker) == []
            found += await in_a_row(client, 1, TIMEOUT_S + 1 + i)
        await broker.until(lambda: bool(aborted(broker)))
    assert all_have_ended(broker, found)


async def test_one_with_a_name_is_never_a_spare(broker: FakeBroker, client: AsyncClient):
    await in_a_row(client)
    before = asked(broker)
    for _ in range(2):
        async with client.transaction(TIMEOUT_S, name="n"):
            assert broker.of(Command.NEW_TXN)[-1]["name"] == "n"
    assert asked(broker) == before


async def test_what_nobody_needs_is_aborted_and_no_more_are_begun(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prefetched, "_USED_SHARE", 1e-9)
    monkeypatch.setattr(prefetched, "KEPT_S_MAX", 0.02)
    async with broker.client() as client:
        stock = client._transactions._prefetched._stock(TIMEOUT_S)
        monkeypatch.setattr(prefetched, "KEPT_S_MAX", KEPT_S)
        found = await in_a_row(client)
        await broker.until(lambda: len(aborted(broker)) == sum(asked(broker)) > 0)
        assert (len(stock.waiting), stock.coming, stock.expiry) == (0, 0, None)
        found += await in_a_row(client, IN_A_ROW)
        assert len(asked(broker)) == 1
    assert all_have_ended(broker, found)


async def test_one_whose_time_is_over_is_given_to_nobody(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch):
    """Though its timer did not run: the loop was busy."""
    async with broker.client() as client:
        found = await in_a_row(client, 2 * IN_A_ROW)
        await broker.settle()
        loop, before = asyncio.get_running_loop(), waited_for(broker)
        time = loop.time
        monkeypatch.setattr(loop, "time", lambda: time() + KEPT_S)
        found += await in_a_row(client, 1)
        assert waited_for(broker) == before + 1
    assert all_have_ended(broker, found)


async def test_those_that_come_too_late_are_given_to_nobody(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch):
    """It took long to begin them, and all of their time is over."""
    async with broker.client() as client:
        found = await in_a_row(client, IN_A_ROW)
        client._transactions._prefetched._stock(TIMEOUT_S).kept_s = 1e-9
        monkeypatch.setattr(prefetched, "_USED_SHARE", 1e-9)
        found += await in_a_row(client, IN_A_ROW)
        await broker.until(lambda: bool(aborted(broker)))
        assert waited_for(broker) == len(found)
        assert len(asked(broker)) == 1  # others would be late, too
    assert all_have_ended(broker, found)


async def test_where_none_can_be_begun_ahead_one_is_begun_by_whoever_needs_it(broker: FakeBroker):
    broker.transactions.refusal = EngineError("not now")
    async with broker.client() as client:
        found = await in_a_row(client, 3 * IN_A_ROW)
        assert waited_for(broker) == len(found)
        assert len(asked(broker)) <= 3  # it is asked for after eight others again
    assert all_have_ended(broker, found)


def test_who_was_quick_and_is_slow_now_has_few_ready():
    stock: Any = prefetched._Stock(TIMEOUT_S)
    for number in range(40):
        stock.note(number * stock.kept_s / 4 / 2.5, soon=True)
        assert stock.take(0.0) is None  # so that more should have been there
    stock.waiting.extend([(1e9, None)] * 3)
    assert stock.wanted() == 0
    stock.waiting.pop()
    assert stock.wanted() == 2


def test_how_long_one_is_kept():
    assert kept_s(64.0) == 1.0
    assert kept_s(0.64) == 0.01
    assert kept_s(TRANSACTION_TIMEOUT_S_MAX) == 0.0
