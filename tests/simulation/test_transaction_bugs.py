"""The suite can fail where transactions are concerned: each of these bugs of the product, planted, is flagged."""

from __future__ import annotations

import asyncio
import re

import pytest
from msgspec.structs import replace

from engine.broker.delivery import pending_claims as claims
from engine.broker.delivery.pending_acks import PendingAcks
from engine.broker.hosting.transactions import SegmentTransactions
from engine.broker.transactions.buffer import TransactionBuffer
from engine.broker.transactions.settling import Settling, SettlingRounds
from engine.control.transactions.collecting import TransactionCollector
from engine.model.transactions import TransactionHeader
from engine.storage.cursor.visibility import Visibility
from engine.testing.checker import check, describe
from engine.testing.cluster import simulate
from engine.testing.transacting import Transactor, begin, end, producer_of
from engine.testing.workload import read_all
from tests.simulation.blind_ends import end_without_comparing
from tests.simulation.crash_points import AFTER, BEFORE
from tests.simulation.crash_story import CONFIG, Strike, live


def flagged(*strikes: Strike | None) -> set[str]:
    """The rules that lives with these crashes break."""
    rules: set[str] = set()
    for strike in strikes or (None,):
        try:
            live(strike)
        except AssertionError as e:
            rules |= set(re.findall(r"(\w+) at event", str(e))) or {str(e)}
    return rules


def test_deliver_before_the_end(monkeypatch):
    monkeypatch.setattr(TransactionBuffer, "limit", None)
    monkeypatch.setattr(TransactionBuffer, "cut", lambda buffer, block: block)
    assert "T3" in flagged()


def test_deliver_what_was_aborted(monkeypatch):
    monkeypatch.setattr(TransactionBuffer, "hidden", lambda buffer, start, stop: None)
    assert "T2" in flagged()


def test_count_every_attempt(monkeypatch):
    monkeypatch.setattr(TransactionHeader, "counts", lambda header, attempt: header.state == "COMMITTED")
    assert "T2" in flagged()


def test_take_acknowledgements_before_the_end(monkeypatch):
    record = PendingAcks.record

    async def at_once(pending, number, claims, attempt, offsets, buckets=None):
        await record(pending, number, claims, attempt, offsets, buckets)
        await pending.subscription.take(offsets)

    monkeypatch.setattr(PendingAcks, "record", at_once)
    assert "T1" in flagged()


def test_do_not_look_for_what_a_crash_left(monkeypatch):
    async def nothing(transactions, hosted):
        return None

    monkeypatch.setattr(SegmentTransactions, "recover", nothing)
    assert flagged(*(Strike("write header ABORTED", number, BEFORE) for number in range(3))) & {"T2", "T3"}


def test_delete_the_records_before_the_outcome_is_saved(monkeypatch):
    async def save(settling):
        records, settling.records = settling.records, []
        await settling.rounds.forget(records)
        await settling._visibility.save()
        return []

    monkeypatch.setattr(Settling, "save", save)
    assert "D1" in flagged(*(Strike("write visibility", number, BEFORE) for number in (4, 6, 8)))


def test_do_not_save_the_outcome(monkeypatch):
    def save(visibility):
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    monkeypatch.setattr(Visibility, "save", save)
    assert "D1" in flagged(Strike("write header COMMITTED", 8, AFTER))


def test_forget_a_header_that_somebody_needs(monkeypatch):
    """And nobody tells participants."""

    async def none(collector, known, limit):
        return []

    async def nothing(rounds, records):
        return None

    monkeypatch.setattr(TransactionCollector, "_operation_records", none)
    monkeypatch.setattr(SettlingRounds, "forget", nothing)
    assert any("D1" in rule or "never forgotten" in rule for rule in flagged())


async def late_writers(cluster):
    """Workers that write into transactions that somebody else ends meanwhile, and who ends one both ways at once."""
    broker = await cluster.start()
    client, other = cluster.client("c1", broker), cluster.client("c2", broker)
    history, rng = cluster.history, cluster.rng("late")
    worker = Transactor(history, other, "worker", ("orders",), rng)
    worker._producers["orders"] = await producer_of(history, other, "orders", "worker")
    broker.metadata.delay_s_max = 0.02
    for number in range(30):
        transaction = await begin(history, client, "owner", 20.0)
        joined = await other.join_transaction(transaction.id)
        writes = [asyncio.create_task(worker._write(joined)) for _ in range(3)]
        await asyncio.sleep(rng.uniform(0, 0.06))
        writes += [asyncio.create_task(worker._write(joined)) for _ in range(3)]
        await asyncio.sleep(rng.uniform(0, 0.02))
        ends = [end(history, "owner", transaction, "commit")]
        if number % 3 == 0:
            ends.append(end(history, "other", joined, "abort"))
        await asyncio.gather(*writes, *ends)
    broker.metadata.delay_s_max = 0.0
    for reading in (1, 2):
        await read_all(history, cluster.client("c-final", broker), "orders", reading)
        await broker.power_cut()
        await broker.start()
    return check(history.events)


def late(seeds=range(4)) -> set[str]:
    """The rules that are broken under any of the seeds."""
    return {violation.rule for seed in seeds for violation in simulate(seed, late_writers, config=CONFIG)}


@pytest.mark.parametrize("seed", range(4))
def test_writers_that_are_late_are_refused(seed):
    violations = simulate(seed, late_writers, config=CONFIG)
    assert not violations, describe(violations)


def test_count_without_comparing_versions(monkeypatch):
    monkeypatch.setattr(claims, "operation_counts", lambda header, decided, attempt, written: header.counts(attempt))

    def ever(buffer, number, *places, decide=TransactionBuffer.decide):
        """As if the header had been written behind all records."""
        buffer.ended[number] = replace(buffer.ended[number], version=2**62)
        return decide(buffer, number, *places)

    monkeypatch.setattr(TransactionBuffer, "decide", ever)
    assert late() & {"D2", "T5"}


def test_end_a_transaction_without_comparing(monkeypatch):
    end_without_comparing(monkeypatch)
    assert late() & {"T2", "T6", "D1"}
