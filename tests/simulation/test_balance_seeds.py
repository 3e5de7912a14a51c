"""Random lives of brokers that join, leave, drain and hand segments over while faults strike; judged by the checker."""

from __future__ import annotations

import dataclasses

import pytest

from engine.testing.cluster import SimCluster, simulate
from tests.kit.seeds import first_of
from tests.simulation.broker_faults import DEATHS, MOVES
from tests.simulation.broker_scenario import BrokerPlan, BrokerScenario
from tests.simulation.test_broker_seeds import brokers_config

SEEDS = first_of(range(20_000, 20_004), 2)
FUZZ_SEEDS = range(21_000, 22_000)
FAULTS = ("metadata out of reach", "slow metadata", "unsure metadata", "brokers apart", "client apart", "stalled disk")
PLAN = BrokerPlan(kinds=(*MOVES, *MOVES, *DEATHS, *FAULTS), messages=80, length_s=30, changes=6, together=0.5)
ORDERLY = BrokerPlan(kinds=MOVES, messages=80, length_s=20, changes=6, together=0.3, quiet_s=0.5, seconds=(0.1, 3.0))


def run(seed: int, plan: BrokerPlan = PLAN) -> SimCluster:
    """The balancer looks every second, and moves what has just come."""
    config = dataclasses.replace(brokers_config(seed), balance_interval=1.0, balance_cooldown=2.0)
    return simulate(seed, BrokerScenario(plan), config=config, shared=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_balance_seed(seed, log_file_size):
    log_file_size(8192 if seed % 2 else 1 << 20)
    run(seed)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", FUZZ_SEEDS)
def test_fuzz_balance_seed(seed, log_file_size):
    log_file_size(8192 if seed % 2 else 1 << 20)
    run(seed, dataclasses.replace(PLAN, messages=160, length_s=90, changes=20))


def handed_over(cluster: SimCluster) -> int:
    return sum(b.last.cluster.handovers.given for b in cluster.brokers.values() if b.last is not None)


def test_without_faults_every_message_goes_through():
    """Moves alone fail no send."""
    cluster = run(20_100, ORDERLY)
    assert {e["phase"] for e in cluster.history.events if e["what"] == "send"} == {"invoke", "ok"}
    assert handed_over(cluster) >= 10, "it has something to say"
