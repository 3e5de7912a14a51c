"""Claims to exclusive access, and names of producers: one that is made up, or another's, keeps nobody out."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.broker.rights import producer_names
from engine.broker.rights.claims import Claims
from engine.broker.rights.token_file import line_of
from engine.broker.segment.access import Applicant
from engine.broker.server import Broker
from engine.errors import AuthorizationError, CorruptionError, FencedError, ProducerBusyError, SegmentSealedError
from engine.metadata import keys
from engine.model.generated_names import generated, proves
from engine.model.names import TopicName
from engine.wire.commands import Command
from tests.kit.peer import Peer, listening, until

ANN, BOB = "token-of-ann", "token-of-bob"
TOPIC = TopicName.parse("orders")


@pytest.fixture
def start(start_broker: Callable[..., Any], tmp_path: Path) -> Callable[[], Any]:
    path = tmp_path / "roles"
    path.write_text("".join(line_of(r, t) + "\n" for r, t in (("ann", ANN), ("bob", BOB))))
    return lambda: start_broker(roles_file=str(path))


@pytest.fixture
async def broker(start: Callable[[], Any]) -> AsyncIterator[Broker]:
    async with start() as started:
        await started.admin.create_topic("orders", segments=2)
        for role in ("ann", "bob"):
            await started.admin.grant("public/default", role, ["produce", "consume"])
        yield started


async def of(broker: Broker, token: str) -> Peer:
    peer = await Peer.connect(broker, await listening(broker), hello=False)
    await peer.hello(token=token)
    return peer


async def attach(peer: Peer, segment: str, name: str, mode: str = "exclusive", **more: Any) -> dict[str, Any]:
    asked = {"topic": segment, "producer_name": name, "access_mode": mode, **more}
    return await peer.ask(Command.PRODUCER, producer_id=peer.next_id(), **asked)


async def segments(peer: Peer) -> list[str]:
    return [await peer.segment("orders", index) for index in range(2)]


async def recorded(broker: Broker) -> list[str]:
    """Names of producers that have a record."""
    start = keys.producer(TOPIC, "")
    return [key.removeprefix(start) for key in await broker.metadata.list_keys(start, keys.prefix_end(start), 100)]


@pytest.mark.parametrize("claim", [[2**62, 2**62, 2**62], [0, 0, 1], [2**62, 0, 0, 1, 2]])
@pytest.mark.parametrize("mode", ["shared", "exclusive", "exclusive_with_fencing", "wait_for_exclusive"])
async def test_a_claim_that_is_made_up_keeps_nobody_out(broker: Broker, claim: list[int], mode: str) -> None:
    mine, theirs = await of(broker, ANN), await of(broker, BOB)
    for segment in await segments(mine):
        with pytest.raises(FencedError, match="its claim was not issued to it"):
            await attach(theirs, segment, "q", mode, claim=claim, renewal=True)
    assert await recorded(broker) == []
    async with engine.AsyncClient(await listening(broker), token=ANN) as ann:
        producer = await ann.producer("orders", name="p", access_mode="exclusive")
        for i in range(20):
            await producer.send(b"x", key=f"k{i}")


async def test_a_claim_is_one_producers_of_one_role(broker: Broker) -> None:
    mine, theirs = await of(broker, ANN), await of(broker, BOB)
    first, second = await segments(mine)
    claim = (await attach(mine, first, "p"))["claim"]
    for peer, name in ((mine, "other"), (theirs, "p"), (theirs, "q")):
        with pytest.raises((FencedError, AuthorizationError)):
            await attach(peer, second, name, claim=claim)
    changed = [claim[0] + 1, *claim[1:]]
    with pytest.raises(FencedError, match="was not issued"):
        await attach(mine, second, "p", claim=changed)
    assert (await attach(mine, second, "p", claim=claim))["claim"] == claim


async def test_a_claim_is_of_its_topic(broker: Broker) -> None:
    await broker.admin.create_topic("others", segments=2)
    mine = await of(broker, ANN)
    claim = (await attach(mine, await mine.segment("orders"), "p"))["claim"]
    with pytest.raises(FencedError, match="was not issued"):
        await attach(mine, await mine.segment("others", 1), "p", claim=claim)


@pytest.mark.parametrize("mode", ["exclusive", "exclusive_with_fencing", "wait_for_exclusive"])
async def test_exclusive_access_is_decided_at_the_first_segment_alone(broker: Broker, mode: str) -> None:
    """Another segment's claim would be larger than the first one's."""
    mine = await of(broker, ANN)
    _, second = await segments(mine)
    with pytest.raises(AuthorizationError, match="is decided at its first segment"):
        await attach(mine, second, "p", mode)


async def test_what_was_decided_at_the_first_segment_holds_at_the_others(broker: Broker) -> None:
    """One that was overtaken there does not keep the other out of the rest, whatever their roles."""
    mine, theirs = await of(broker, ANN), await of(broker, BOB)
    first, second = await segments(mine)
    old = await attach(mine, first, "p")
    await attach(mine, second, "p", claim=old["claim"])
    mine.send(Command.CLOSE_PRODUCER, {"producer_id": old["producer_id"], "request_id": mine.next_id()})
    await mine.take(Command.SUCCESS)
    new = await attach(theirs, first, "q")
    await attach(theirs, second, "q", claim=new["claim"])
    _, ended, _ = await mine.take(Command.CLOSE_PRODUCER)
    assert ended["code"] == FencedError.code
    with pytest.raises(FencedError, match="has lost its exclusive access"):
        await attach(mine, second, "p", claim=old["claim"])


async def test_claims_are_known_after_a_restart_and_by_every_broker(start: Callable[[], Any]) -> None:
    async with start() as broker:
        await broker.admin.create_topic("orders", segments=2)
        await broker.admin.grant("public/default", "ann", ["produce"])
        mine = await of(broker, ANN)
        first, second = await segments(mine)
        claim = (await attach(mine, first, "p"))["claim"]
        await mine.close()
    async with start() as broker:
        mine = await of(broker, ANN)
        assert (await attach(mine, second, "p", claim=claim))["claim"] == claim


async def test_a_damaged_key_is_named(broker: Broker) -> None:
    for value in (b"{}", b'{"key": "00"}', b'{"key": 7}', b"\xff"):
        await broker.metadata.put(keys.CLAIMS, value)
        with pytest.raises(CorruptionError, match="/claims must hold a key of 32 bytes"):
            await Claims(random.Random(1)).load(broker.metadata)


# -- names -------------------------------------------------------------------------------------------------------------


async def test_a_generated_name_is_its_clients_also_when_the_broker_has_forgotten_it(start: Callable[[], Any]) -> None:
    """Under it, another role's messages would have later ones of the client count as sent."""
    async with start() as broker:
        await broker.admin.create_topic("orders")
        for role in ("ann", "bob"):
            await broker.admin.grant("public/default", role, ["produce"])
        async with engine.AsyncClient(await listening(broker), token=ANN) as ann:
            producer = await ann.producer("orders")
            name = producer.name
            await producer.send(b"x")
    async with start() as broker:
        theirs = await of(broker, BOB)
        segment = await theirs.segment("orders")
        for proof in (None, b"", b"\0" * 16, b"\0" * 10_000):
            with pytest.raises(AuthorizationError, match="belongs to the client that has generated it"):
                await attach(theirs, segment, name, "shared", name_proof=proof)
        assert await recorded(broker) == []
        await broker.admin.grant("public/default", "bob", ["admin"])
        await attach(theirs, segment, name, "shared")


async def test_a_generated_name_is_proved_by_its_secret(broker: Broker) -> None:
    secret = bytes(range(16))
    name = generated(secret)
    mine = await of(broker, ANN)
    await attach(mine, await mine.segment("orders"), name, "shared", name_proof=secret)
    assert proves(secret, name)
    assert not proves(secret[:-1], name)
    assert not proves(secret, name.upper())
    assert await recorded(broker) == []


async def test_the_secret_of_a_name_is_shown_nowhere(broker: Broker) -> None:
    async with engine.AsyncClient(await listening(broker), token=ANN) as ann:
        producer = await ann.producer("orders")
        await producer.send(b"x")
        secret = producer._outbox.name_proof
        assert secret is not None
        stats = await broker.admin.get_stats("orders")
        shown = f"{stats} {producer!r} {producer.name}"
        assert producer.name in shown
        assert secret.hex() not in shown
        assert repr(secret) not in shown


# -- nothing is created before the check -------------------------------------------------------------------------------


@pytest.fixture
async def places(broker: Broker) -> tuple[Peer, str, str, Any]:
    """A peer of ann, the two segments, and what the broker has open of the second one."""
    mine = await of(broker, ANN)
    first, second = await segments(mine)
    ident = (await attach(mine, second, "opens-it", "shared"))["producer_id"]
    mine.send(Command.CLOSE_PRODUCER, {"producer_id": ident, "request_id": mine.next_id()})
    await mine.take(Command.SUCCESS)
    (hosted,) = [one for one in broker.segments if str(one.name) == second]
    return mine, first, second, hosted


async def test_a_lost_claim_leaves_no_record_of_a_name(broker: Broker, places: tuple[Peer, str, str, Any]) -> None:
    mine, first, second, hosted = places
    claim = (await attach(mine, first, "q"))["claim"]
    await broker.metadata.delete(keys.producer(TOPIC, "q"))
    hosted.access._newest = (2**62, 0, 0)
    for mode in ("exclusive", "wait_for_exclusive", "exclusive_with_fencing"):
        with pytest.raises(FencedError, match="has lost its exclusive access"):
            await attach(mine, second, "q", mode, claim=claim)
    assert "q" not in await recorded(broker)


async def test_a_reservation_leaves_no_record_of_a_name(broker: Broker, places: tuple[Peer, str, str, Any]) -> None:
    mine, _, second, hosted = places
    hosted.access.reserve([1])
    with pytest.raises(ProducerBusyError, match="is reserved for the exclusive producer of its parents"):
        await attach(mine, second, "q", "shared")
    assert "q" not in await recorded(broker)


async def test_waiting_producers_leave_no_record_of_anothers_name(broker: Broker) -> None:
    mine, theirs = await of(broker, ANN), await of(broker, BOB)
    first, _ = await segments(mine)
    await attach(mine, first, "p")
    asked = {"topic": first, "producer_name": "w", "access_mode": "wait_for_exclusive", "producer_id": 77}
    theirs.send(Command.PRODUCER, {"request_id": theirs.next_id(), **asked})
    (hosted,) = [one for one in broker.segments if str(one.name) == first]
    await until(lambda: hosted.access._waiting)
    for producer in list(hosted.access.producers.values()):
        hosted.access.detach(producer)  # and the one that waits has not come to its turn
        with pytest.raises(ProducerBusyError, match="other producers wait for exclusive access"):
            hosted.access.check(replace(applicant_of(producer), name="q"))
    assert "q" not in await recorded(broker)


def applicant_of(producer: Any) -> Applicant:
    return Applicant(producer.connection, 1_000, producer.name, producer.access)


async def test_a_segment_that_is_sealed_meanwhile_leaves_no_record_of_a_name(
    broker: Broker, places: tuple[Peer, str, str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, _, second, hosted = places
    owner_of = producer_names.owner_of

    async def sealing(*asked: Any) -> str | None:
        await hosted.seal()
        return await owner_of(*asked)

    monkeypatch.setattr(producer_names, "owner_of", sealing)
    with pytest.raises(SegmentSealedError):
        await attach(mine, second, "q", "shared")
    assert "q" not in await recorded(broker)
