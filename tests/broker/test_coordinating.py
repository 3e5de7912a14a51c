"""NEW_TXN, END_TXN and TXN_STATE at a broker: what they answer, what is refused, and what nobody ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.broker.server import Broker
from engine.errors import (
    InvalidArgumentError,
    ProtocolError,
    TransactionConflictError,
    TransactionNotFoundError,
)
from engine.limits import TRANSACTION_TIMEOUT_S_MAX
from engine.model.transactions import BEGUN_MAX, PARTITIONS, attempt_number
from engine.wire.commands import Command
from tests.kit.peer import Peer

UNKNOWN = "00000000000000ff"


async def begin(peer: Peer, timeout: float = 60.0, name: str | None = None) -> dict[str, Any]:
    return (await peer.ask(Command.NEW_TXN, timeout=timeout, name=name))["result"]


async def end(peer: Peer, ident: str, action: str, accepted: Any = None) -> str:
    return (await peer.ask(Command.END_TXN, id=ident, action=action, accepted=accepted))["result"]["state"]


async def state(peer: Peer, ident: str) -> str:
    return (await peer.ask(Command.TXN_STATE, id=ident))["result"]["state"]


@pytest.mark.parametrize(
    ("action", "other", "ended"), [("commit", "abort", "COMMITTED"), ("abort", "commit", "ABORTED")]
)
async def test_ending_twice_the_same_way_succeeds_and_the_other_way_conflicts(connect, action, other, ended):
    peer, somebody_else = await connect(), await connect()
    begun = await begin(peer)
    assert begun["state"] == await state(somebody_else, begun["id"]) == "OPEN"
    assert await end(peer, begun["id"], action) == ended
    assert await end(somebody_else, begun["id"], action) == ended
    with pytest.raises(TransactionConflictError, match=ended):
        await end(peer, begun["id"], other)
    assert await state(peer, begun["id"]) == ended


async def test_ids_that_nobody_knows(peer: Peer):
    for ask in (state(peer, UNKNOWN), end(peer, UNKNOWN, "commit"), end(peer, UNKNOWN, "abort")):
        with pytest.raises(TransactionNotFoundError, match=UNKNOWN):
            await ask
    for ident in ("", "ff", UNKNOWN.upper(), "x" * 16, "-000000000000001"):
        with pytest.raises(InvalidArgumentError, match="16 hexadecimal digits"):
            await state(peer, ident)


@pytest.mark.parametrize("timeout", [0, 0.0, -1.0, float("nan"), float("inf"), TRANSACTION_TIMEOUT_S_MAX * 1.01])
async def test_timeouts_out_of_range_are_refused(timeout, peer: Peer):
    with pytest.raises(InvalidArgumentError, match="timeout"):
        await begin(peer, timeout)
    assert (await begin(peer, TRANSACTION_TIMEOUT_S_MAX))["state"] == "OPEN"


async def test_what_else_is_malformed(peer: Peer):
    ident = (await begin(peer))["id"]
    for action, accepted in (
        ("finish", None),
        ("abort", ["a"]),
        ("commit", [""]),
        ("commit", [1]),
        ("commit", ["a/b\n"]),
    ):
        with pytest.raises(InvalidArgumentError):
            await end(peer, ident, action, accepted)
    with pytest.raises(InvalidArgumentError, match="name"):
        await begin(peer, name="")
    assert await state(peer, ident) == "OPEN"


@pytest.mark.parametrize("count", [1, 2, BEGUN_MAX])
async def test_several_are_begun_at_once(broker: Broker, count: int, peer: Peer):
    found = (await peer.ask(Command.NEW_TXN, timeout=30.0, name=None, count=count))["result"]
    idents = [found["id"], *found["more"]]
    assert len(set(idents)) == count == broker.transactions.coordinator.counters.begun
    assert len({ident[:-1] for ident in idents}) == 1  # side by side in the store
    for view in await broker.transactions.coordinator.list_open():
        assert (view.header.timeout_ms, str(view.header.state)) == (found["deadline_ms"], found["state"])
    assert [await end(peer, ident, "commit") for ident in idents] == ["COMMITTED"] * count


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"count": 0}, "count must be 1 to 16, got"),
        ({"count": BEGUN_MAX + 1}, "count must be 1 to 16, got"),
        ({"count": 2, "name": "n"}, "one name"),
        ({"count": 2, "timeout": 0.0}, "timeout"),
    ],
)
async def test_so_many_are_not_begun_at_once(broker: Broker, wrong, why: str, peer: Peer):
    with pytest.raises(InvalidArgumentError, match=why):
        await peer.ask(Command.NEW_TXN, **{"timeout": 30.0, "name": None, **wrong})
    assert await broker.transactions.coordinator.list_open() == []


async def test_a_timeout_of_the_wrong_type_ends_the_connection(peer: Peer):
    with pytest.raises((ProtocolError, ConnectionError)):
        await peer.ask(Command.NEW_TXN, timeout="1", name=None)


async def test_a_name_finds_its_transaction_and_what_it_accepted(connect):
    peer, replayed = await connect(), await connect()
    first = await begin(peer, name="batch-7")
    assert (await begin(replayed, name="batch-7"))["id"] == first["id"]
    await end(peer, first["id"], "commit", ["a", "b"])
    found = await begin(replayed, name="batch-7")
    assert (found["id"], found["state"]) == (first["id"], "COMMITTED")
    assert found["accepted"] == sorted(map(attempt_number, ("a", "b")))
    with pytest.raises(TransactionConflictError, match="other attempts"):
        await end(replayed, first["id"], "commit", ["a"])


async def test_one_that_nobody_ends_is_aborted_and_then_forgotten(start_broker):
    async with start_broker(transaction_sweep_interval=0.01, transaction_retention_time=0.0) as broker:
        peer = await Peer.connect(broker)
        ident = (await begin(peer, timeout=0.001))["id"]
        with pytest.raises(TransactionNotFoundError):
            await asyncio.wait_for(_watch(peer, ident), 20)
        counters = broker.transactions.coordinator.counters
        assert (counters.timed_out, counters.collected) == (1, 1)


async def _watch(peer: Peer, ident: str) -> None:
    """Ask for it until it is forgotten; never seen committed."""
    while True:
        assert await state(peer, ident) != "COMMITTED"


async def test_what_is_open_outlives_a_restart(start_broker):
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        ids = [(await begin(peer))["id"] for _ in range(2)]
        await end(peer, ids[0], "commit")
    async with start_broker() as broker:
        peer = await Peer.connect(broker)
        assert [await state(peer, ident) for ident in ids] == ["COMMITTED", "OPEN"]
        assert await end(peer, ids[1], "abort") == "ABORTED"


async def test_one_broker_alone_sweeps_everything(broker: Broker):
    assert broker.transactions.partitions == list(range(PARTITIONS))
