"""Random lives of a broker under faults. A failing seed replays: `pytest tests/simulation -k 'seed and 171'`."""

from __future__ import annotations

import pytest

from engine.broker.settings.config import BrokerConfig
from engine.testing.cluster import DEFAULT_CONFIG, simulate
from tests.kit.seeds import first_of
from tests.simulation.scenario import Plan, Scenario

SEEDS = first_of(range(24), 12)
FUZZ_SEEDS = range(1_000, 4_000)


def config_for(seed: int) -> BrokerConfig:
    """One to three segments, one to four buckets; in every other run idle segments are closed all the time."""
    return BrokerConfig(
        keep_alive=5.0,
        segments=1 + seed % 3,
        entry_buckets=1 + seed % 4,
        consumer_grace_period=2.0,
        segment_idle_time=0.05 if seed // 2 % 2 else None,
        retention_interval=1.0,
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_seed(seed, log_file_size):
    log_file_size(8192 if seed % 2 else 1 << 20)
    simulate(seed, Scenario(), config=config_for(seed))


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", FUZZ_SEEDS)
def test_fuzz_seed(seed, log_file_size):
    log_file_size(8192 if seed % 2 else 1 << 20)
    simulate(seed, Scenario(Plan(messages=200, faults=10)), config=config_for(seed))


def test_the_same_seed_gives_the_same_run():
    one, other = (simulate(7, Scenario()) for _ in range(2))
    assert one.history.events == other.history.events


def test_another_seed_gives_another_run():
    one, other = (simulate(seed, Scenario(Plan(faults=1, messages=5))) for seed in (1, 2))
    assert one.history.events != other.history.events


def test_without_faults_nothing_is_unknown_and_everything_is_read():
    cluster = simulate(3, Scenario(Plan(kinds=("nothing",), final_power_cut=False)), config=DEFAULT_CONFIG)
    outcomes = [event["phase"] for event in cluster.history.events if event["what"] == "send"]
    assert set(outcomes) == {"invoke", "ok"}
    finals = [event for event in cluster.history.events if event["what"] == "final"]
    assert len(finals) == 3 * 240
    assert cluster.loop.problems == []
