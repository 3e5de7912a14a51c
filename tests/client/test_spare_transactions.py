"""Transactions that are begun ahead, for whoever runs one after the other: when there are some, and where they go."""

from __future__ import annotations

import asyncio

import pytest
from fake_broker import FakeBroker
from fake_coordinator import FakeCoordinator

from engine.client import spares
from engine.client.client import AsyncClient
from engine.client.coordination import Standing
from engine.client.spares import IN_A_ROW, kept_s
from engine.limits import TRANSACTION_TIMEOUT_S_MAX
from engine.wire.commands import Command

TIMEOUT_S = 600.0
KEPT_S = 9.0


@pytest.fixture(autouse=True)
def kept_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine too, one comes soon after the other."""
    monkeypatch.setattr(spares, "KEPT_S_MAX", KEPT_S)


async def in_a_row(client: AsyncClient, count: int = IN_A_ROW + 1) -> list[str]:
    """Run so many, one after the other; their ids."""
    found = []
    for _ in range(count):
        async with client.transaction(TIMEOUT_S) as transaction:
            found.append(transaction.id)
    return found


def aborted(broker: FakeBroker) -> list[str]:
    return [header["id"] for header in broker.of(Command.END_TXN) if header["action"] == "abort"]


def asked(broker: FakeBroker) -> list[float]:
    """The timeouts of those that were to be begun with the end of others."""
    return [header["begin"] for header in broker.of(Command.END_TXN) if header.get("begin") is not None]


async def test_there_is_none_before_several_were_run_in_a_row(broker: FakeBroker):
    async with broker.client() as client:
        await in_a_row(client, IN_A_ROW)
        assert (len(broker.of(Command.NEW_TXN)), asked(broker)) == (IN_A_ROW, [])


async def test_the_next_one_is_begun_with_the_end_of_this_one(broker: FakeBroker):
    async with broker.client() as client:
        found = await in_a_row(client, 3 * IN_A_ROW)
        assert found == list(broker.transactions)[:-1]
        assert len(broker.of(Command.NEW_TXN)) == IN_A_ROW + 1


async def test_it_lives_longer_by_what_it_may_be_kept(broker: FakeBroker):
    async with broker.client() as client:
        await in_a_row(client)
    assert asked(broker) == [TIMEOUT_S + KEPT_S]


async def test_each_is_used_once(broker: FakeBroker):
    async with broker.client() as client:
        found = await in_a_row(client, 40)
        found += [one for row in await asyncio.gather(*(in_a_row(client, 10) for _ in range(5))) for one in row]
        assert len(set(found)) == len(found) == 90
    assert set(broker.transactions) - set(found) == set(aborted(broker))


async def test_whoever_closes_the_client_aborts_them(broker: FakeBroker):
    async with broker.client() as client:
        found = await in_a_row(client)
        assert aborted(broker) == []
    assert set(broker.transactions.values()) == {"COMMITTED", "ABORTED"}
    assert set(aborted(broker)) == set(broker.transactions) - set(found)
    assert len(broker.transactions) == IN_A_ROW + 2


async def test_one_that_comes_when_the_client_closes_is_aborted(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch):
    add, closing = spares.Spares.add, []

    def late(self: spares.Spares, standing: Standing, timeout_s: float, until: float) -> None:
        closing.extend(self.close())
        add(self, standing, timeout_s, until)

    monkeypatch.setattr(spares.Spares, "add", late)
    async with broker.client() as client:
        found = await in_a_row(client)
        await broker.until(lambda: bool(aborted(broker)))
        assert (set(aborted(broker)), closing) == (set(broker.transactions) - set(found), [])


async def test_one_of_another_timeout_is_begun_anew(broker: FakeBroker):
    async with broker.client() as client:
        found = await in_a_row(client)
        async with client.transaction(2 * TIMEOUT_S) as transaction:
            assert broker.of(Command.NEW_TXN)[-1]["timeout"] == 2 * TIMEOUT_S
    assert set(aborted(broker)) == set(broker.transactions) - {*found, transaction.id}


async def test_one_with_a_name_is_never_a_spare(broker: FakeBroker):
    async with broker.client() as client:
        await in_a_row(client)
        for _ in range(2):
            async with client.transaction(TIMEOUT_S, name="n"):
                assert broker.of(Command.NEW_TXN)[-1]["name"] == "n"
        assert len(asked(broker)) == 1


async def test_what_nobody_needs_is_aborted_and_no_more_are_begun(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch):
    async with broker.client() as client:
        await in_a_row(client, IN_A_ROW)
        async with client.transaction(TIMEOUT_S):
            monkeypatch.setattr(spares, "KEPT_S_MAX", 0.001)
        await broker.until(lambda: bool(aborted(broker)))
        monkeypatch.setattr(spares, "KEPT_S_MAX", KEPT_S)
        await in_a_row(client, IN_A_ROW - 1)
        assert len(asked(broker)) == 1


@pytest.mark.parametrize("sending", [True, False])
async def test_one_that_comes_too_late_is_given_to_nobody(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, sending: bool
):
    """The commit took long, and some of its time is over."""
    add = spares.Spares.add

    def late(self: spares.Spares, standing: Standing, timeout_s: float, until: float) -> None:
        add(self, standing, timeout_s, asyncio.get_running_loop().time())

    monkeypatch.setattr(spares.Spares, "add", late)
    found = []
    async with broker.client() as client, await client.producer("t") as producer:
        await producer.send(b"attached")
        for _ in range(2 * IN_A_ROW):
            async with client.transaction(TIMEOUT_S) as transaction:
                found.append(transaction.id)
                if sending:
                    producer.send_nowait(b"x", transaction=transaction)
        await broker.until(lambda: bool(aborted(broker)))
    assert len(broker.of(Command.NEW_TXN)) == len(found)
    assert len(asked(broker)) == 1  # others would be late, too
    assert set(aborted(broker)) == set(broker.transactions) - set(found)


async def test_what_was_not_begun_is_begun_by_whoever_needs_it(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(FakeCoordinator, "begun", lambda self, timeout_s: None)
    async with broker.client() as client:
        found = await in_a_row(client, 2 * IN_A_ROW)
    assert len(set(found)) == len(broker.of(Command.NEW_TXN)) == 2 * IN_A_ROW
    assert len(asked(broker)) == IN_A_ROW


def test_how_long_one_is_kept():
    assert kept_s(64.0) == 1.0
    assert kept_s(0.64) == 0.01
    assert kept_s(TRANSACTION_TIMEOUT_S_MAX) == 0.0
