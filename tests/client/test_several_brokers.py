"""Several addresses: which is tried when, what is shared, and what the callers of a pool get."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.client.base.options import ClientOptions
from engine.client.net.home import Home
from engine.client.net.pool import Pool
from engine.clock import SystemClock
from engine.errors import AlreadyClosedError, AuthenticationError, ConnectError
from engine.wire.commands import Command
from tests.kit.fake_broker import FakeBroker

A, B, C = "engine://a", "engine://b", "engine://c"


def pool_of(broker: FakeBroker, *addresses: str, seed: int = 1) -> Pool:
    return Pool(addresses, ClientOptions(broker, SystemClock(), random.Random(seed)))


def test_the_order_is_random_and_what_failed_comes_last() -> None:
    first = {tuple(Home((A, B, C), random.Random(seed)).in_order()) for seed in range(60)}
    assert len(first) == 6
    home = Home((A, B, C), random.Random(1))
    for url in (B, A):
        home.failed(url)
    assert {tuple(home.in_order(["engine://learned", A])) for _ in range(10)} == {(C, B, A, "engine://learned")}
    home.works(A)
    assert home.in_order()[-1] == B


async def test_what_works_is_not_looked_for_again(broker: FakeBroker) -> None:
    pool = pool_of(broker, A, B, C)
    first = await pool.get()
    assert all([await pool.get() is first for _ in range(5)])
    assert len(broker.connections) == 1
    broker.down.add(first.url)
    broker.cut()
    await broker.settle()
    second = await pool.get()
    assert second.url != first.url
    broker.down.clear()
    assert await pool.get() is second
    await pool.close()


async def test_callers_share_the_search_and_its_outcome(broker: FakeBroker) -> None:
    pool = pool_of(broker, A, B, C)
    broker.down |= {A, C}
    found = await asyncio.gather(*(pool.get() for _ in range(5)))
    assert {c.url for c in found} == {B}
    assert len(broker.connections) == 1
    broker.down.add(B)
    broker.cut()
    await broker.settle()
    failed = await asyncio.gather(*(pool.get() for _ in range(5)), return_exceptions=True)
    assert len({str(e) for e in failed}) == 1
    assert isinstance(failed[0], ConnectError)
    await pool.close()


async def test_a_token_that_is_refused_everywhere_is_that_error(broker: FakeBroker) -> None:
    pool = pool_of(broker, A, B)
    broker.down.add(A)
    broker.refusal = AuthenticationError("the token is invalid")
    with pytest.raises(AuthenticationError):
        await pool.get()
    await pool.close()


async def test_what_a_learned_broker_refuses_is_no_reason_to_give_up(broker: FakeBroker) -> None:
    pool = pool_of(broker, A)
    await pool.get()
    await pool.get(C)
    broker.down.add(A)
    broker.refusal = AuthenticationError("the token is invalid")
    broker.cut()
    await broker.settle()
    with pytest.raises(ConnectError, match=r"no broker answers: .*the token is invalid"):
        await pool.get()
    await pool.close()


async def test_a_search_ends_with_the_pool(broker: FakeBroker) -> None:
    pool = pool_of(broker, A, B)
    broker.open_door.clear()
    searching = asyncio.ensure_future(pool.get())
    await broker.settle()
    await pool.close()
    with pytest.raises(AlreadyClosedError):
        await searching


async def test_a_connected_broker_is_used_before_another_is_dialled(broker: FakeBroker) -> None:
    pool = pool_of(broker, A, B)
    broker.down.add(B)
    assert (await pool.get()).url == A
    learned = await pool.get(C)
    broker.at(A).stream.abort()
    await broker.settle()
    broker.down.clear()
    assert await pool.get() is learned
    await pool.close()


async def test_behind_proxies_every_one_of_them_leads_to_every_broker(broker: FakeBroker) -> None:
    pool = pool_of(broker, A, B)
    broker.proxied = True
    first = await pool.get()
    assert (await pool.get(C)).url == C
    assert broker.last.url == first.url
    broker.down.add(first.url)
    broker.cut()
    await broker.settle()
    assert (await pool.get(C)).url == C
    assert broker.last.url in {A, B} - {first.url}
    assert [said.get("target") for said in broker.of(Command.CONNECT)] == [None, C, C]
    broker.cut()
    await broker.settle()
    assert (await pool.get()).url in {A, B} - {first.url}, "a broker behind a proxy is no address"
    await pool.close()
