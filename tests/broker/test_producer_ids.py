"""Names of producers whose ids in entries are the same: one role's messages do not make another's count as sent."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker.rights import producer_names
from engine.broker.rights.token_file import line_of
from engine.broker.server import Broker
from engine.errors import AuthorizationError
from engine.metadata import keys
from engine.model.names import TopicName
from engine.storage.dedup.dedup import producer_id
from tests.kit.peer import Peer, listening

ANN, BOB, SHARED = "token-of-ann", "token-of-bob", "token-of-all"
TOPIC = TopicName.parse("orders")
# XXH64: each step is a bijection of 64 bits, so that it is undone.
SEED, MASK = 42, (1 << 64) - 1
P1, P2, P3 = 11400714785074694791, 14029467366897019727, 1609587929392839161
P4, P5 = 9650029242287828579, 2870177450012600261


def other_name(name: str, first: str = "q") -> str:
    """Another name, of 16 characters that a name may have, with the same id."""
    rng = random.Random(1)
    want = _unmixed(producer_id(name))
    for _ in itertools.count():
        begin = f"{first}{rng.getrandbits(28):07x}".encode()
        state = _stirred((SEED + P5 + 16) & MASK, int.from_bytes(begin, "little"))
        end = _unrounded(want ^ state).to_bytes(8, "little")
        if all(0x20 < byte < 0x7F and byte not in b"/%" for byte in end):
            return (begin + end).decode()
    raise AssertionError("unreachable")


def _left(number: int, bits: int) -> int:
    return (number << bits | number >> (64 - bits)) & MASK


def _round(lane: int) -> int:
    return _left(lane * P2 & MASK, 31) * P1 & MASK


def _unrounded(found: int) -> int:
    return _left(found * pow(P1, -1, 1 << 64) & MASK, 33) * pow(P2, -1, 1 << 64) & MASK


def _stirred(state: int, lane: int) -> int:
    return (_left(state ^ _round(lane), 27) * P1 + P4) & MASK


def _unmixed(found: int) -> int:
    """What the last lane has to be combined with the state to, for this hash."""
    for factor, bits in ((1, 32), (P3, 29), (P2, 33)):
        found = found * pow(factor, -1, 1 << 64) & MASK
        whole = found
        for _ in range(2):
            whole = found ^ whole >> bits
        found = whole
    return _left((found - P4) * pow(P1, -1, 1 << 64) & MASK, 37)


@pytest.mark.parametrize("name", ["p", "orders-writer", "producer-0123456789abcdef", "ü" * 20])
def test_another_name_with_the_same_id_is_found(name: str) -> None:
    """So the id alone keeps nothing apart."""
    assert producer_id(other_name(name)) == producer_id(name)
    assert other_name(name) != name


@pytest.fixture
def start(start_broker: Callable[..., Any], tmp_path: Path) -> Callable[[], Any]:
    path = tmp_path / "roles"
    path.write_text("".join(line_of(r, t) + "\n" for r, t in (("ann", ANN), ("bob", BOB))))
    return lambda: start_broker(roles_file=str(path), auth_token=SHARED, audit_log=str(tmp_path / "audit"))


@pytest.fixture
async def broker(start: Callable[[], Any]) -> AsyncIterator[Broker]:
    async with start() as started:
        await granted(started)
        yield started


async def granted(broker: Broker) -> None:
    await broker.admin.create_topic("orders")
    for role in ("ann", "bob"):
        await broker.admin.grant("public/default", role, ["produce", "consume"])


async def of(broker: Broker, token: str) -> engine.AsyncClient:
    return engine.AsyncClient(await listening(broker), token=token)


async def refused(bob: engine.AsyncClient, name: str) -> None:
    async def send() -> None:
        producer = await bob.producer("orders", name=name)
        for _ in range(5):
            await producer.send(b"bob's")

    with pytest.raises(AuthorizationError, match="has the id of another one"):
        await send()


@pytest.mark.parametrize("name", ["p", None], ids=["named", "generated"])
async def test_messages_of_another_role_are_not_dropped(broker: Broker, tmp_path: Path, name: str | None) -> None:
    async with await of(broker, ANN) as ann, await of(broker, BOB) as bob:
        mine = await ann.producer("orders", name=name)
        await mine.send(b"0")
        (hosted,) = broker.segments
        (known,) = hosted.access.producers
        await refused(bob, other_name(known))
        for number in range(1, 4):
            await mine.send(b"%d" % number)
        consumer = await bob.queue_consumer("orders", "s", initial_position="earliest")
        assert [(await consumer.receive()).value for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    denials = [line for line in map(json.loads, (tmp_path / "audit").read_text().splitlines()) if not line["allowed"]]
    assert {(line["role"], line["request"], line["right"], line["resource"]) for line in denials} == {
        ("bob", "PRODUCER", None, "public/default/orders")
    }


async def test_the_first_name_keeps_the_id_also_over_a_restart(start: Callable[[], Any]) -> None:
    other = other_name("p")
    async with start() as broker:
        await granted(broker)
        async with await of(broker, ANN) as ann:
            await (await ann.producer("orders", name="p")).send(b"x")
    async with start() as broker, await of(broker, ANN) as ann, await of(broker, BOB) as bob:
        await refused(bob, other)
        assert await broker.metadata.get(keys.producer(TOPIC, other)) is None, "it leaves no record"
        await (await ann.producer("orders", name="p")).send(b"y")
        await broker.admin.delete_topic("orders")
        await (await bob.producer("orders", name=other)).send(b"z")  # ids end with their topic


async def test_at_another_segment_too(broker: Broker) -> None:
    """They may be merged."""
    await broker.admin.create_topic("pair", segments=2)
    ann, bob = [await Peer.connect(broker, await listening(broker), hello=False) for _ in range(2)]
    await ann.hello(token=ANN)
    await bob.hello(token=BOB)
    await ann.producer(await ann.segment("pair", 0), "p")
    with pytest.raises(AuthorizationError, match="has the id of another one"):
        await bob.producer(await bob.segment("pair", 1), other_name("p"))


async def test_one_that_is_the_shared_tokens_keeps_its_id_while_the_segment_is_open(broker: Broker) -> None:
    async with await of(broker, SHARED) as root, await of(broker, BOB) as bob:
        await (await root.producer("orders", name="p")).send(b"x")
        await refused(bob, other_name("p"))


async def test_names_of_one_role_have_ids_of_their_own_too(broker: Broker) -> None:
    async with await of(broker, ANN) as ann:
        await (await ann.producer("orders", name="p")).send(b"x")
        await refused(ann, other_name("p"))


async def test_what_is_attached_in_the_same_moment_is_one_of_them(broker: Broker, monkeypatch: Any) -> None:
    """Neither has a record, or is known, when both are looked up: one is let in."""
    looked, both = 0, asyncio.Event()
    real = producer_names.named

    async def named(*asked: Any) -> str | None:
        nonlocal looked
        found = await real(*asked)
        looked += 1
        if looked == 2:
            both.set()
        await both.wait()
        return found

    monkeypatch.setattr(producer_names, "named", named)
    ann, bob = [await Peer.connect(broker, await listening(broker), hello=False) for _ in range(2)]
    await ann.hello(token=ANN)
    await bob.hello(token=BOB)
    segment = await ann.segment("orders")
    found = await asyncio.gather(
        ann.producer(segment, "p"), bob.producer(segment, other_name("p")), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in found) == ["AuthorizationError", "int"]
