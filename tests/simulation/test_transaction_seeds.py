"""Random lives with transactions, of one broker and of three. Replay: `pytest -k "transaction and 171"`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.broker_faults import OBJECT_FAULTS
from tests.simulation.transaction_scenario import TransactionPlan, run

SEEDS = (*range(50_000, 50_004), 51_569)  # the last: a sync fails under a frame of a transaction, a plain one follows
FUZZ_SEEDS = range(51_000, 54_000)
OBJECT_SEEDS = range(55_000, 55_003)
FUZZ_OBJECT_SEEDS = range(56_000, 57_000)
OBJECTS = TransactionPlan(kinds=tuple(kind for kind in OBJECT_FAULTS if kind != "clock jump"))
CALM = TransactionPlan(brokers=1, kinds=("nothing",), changes=10)


def plan_of(seed: int) -> TransactionPlan:
    """One broker or three; what is transformed is a stream or a queue."""
    brokers, kinds = (1, 3, 3)[seed % 3], TransactionPlan().kinds
    alone = tuple(kind for kind in kinds if kind != "brokers apart")
    return TransactionPlan(brokers=brokers, kinds=alone if brokers == 1 else kinds, queue=seed // 3 % 2 == 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_transaction_seed(seed, log_file_size):
    log_file_size(8192 if seed % 2 else 1 << 20)
    run(seed, plan_of(seed))


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", FUZZ_SEEDS)
def test_fuzz_transaction_seed(seed, log_file_size):
    log_file_size(8192 if seed % 2 else 1 << 20)
    run(seed, plan_of(seed))


@pytest.mark.parametrize("seed", OBJECT_SEEDS)
def test_transaction_seed_over_an_object_store(seed, log_file_size):
    """Machines are lost with their disks, and the store is troubled."""
    log_file_size(8192 if seed % 2 else 1 << 20)
    run(seed, replace(OBJECTS, queue=seed % 4 > 1), objects=True)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", FUZZ_OBJECT_SEEDS)
def test_fuzz_transaction_seed_over_an_object_store(seed, log_file_size):
    log_file_size(8192 if seed % 2 else 1 << 20)
    run(seed, replace(OBJECTS, queue=seed % 4 > 1), objects=True)


def test_the_same_seed_gives_the_same_run_of_transactions():
    one, other = (run(50_001, plan_of(50_001)) for _ in range(2))
    assert one.history.events == other.history.events


def test_without_faults_every_commit_is_answered():
    cluster = run(50_100, CALM)
    ends = [e for e in cluster.history.events if e["what"] == "txn_end" and e["phase"] != "invoke"]
    refused = [e for e in ends if e["phase"] == "info" and "ABORTED" not in e["error"]]
    assert not refused
    assert sum(e["phase"] == "ok" and e["state"] == "COMMITTED" for e in ends) > 25
    assert {s["state"] for e in cluster.history.events if e["what"] == "layout" for s in e["segments"]} >= {"SEALED"}
