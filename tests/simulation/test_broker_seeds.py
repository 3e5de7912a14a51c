"""Random lives of three brokers under faults. A failing seed replays: `pytest tests/simulation -k 'broker and 171'`."""

from __future__ import annotations

import dataclasses

import pytest

from engine.broker.settings.config import BrokerConfig
from engine.testing.cluster import SimCluster, simulate
from tests.kit.seeds import first_of
from tests.simulation.broker_faults import DEATHS
from tests.simulation.broker_scenario import BrokerPlan, BrokerScenario
from tests.simulation.test_seeds import config_for

SEEDS = first_of(range(10_000, 10_010), 6)
FUZZ_SEEDS = range(11_000, 14_000)
CALM = BrokerPlan(kinds=("nothing",), changes=20)


def run(seed: int, plan: BrokerPlan | None = None) -> SimCluster:
    """One life."""
    return simulate(seed, BrokerScenario(plan), config=brokers_config(seed), shared=True)


def brokers_config(seed: int) -> BrokerConfig:
    """As for one broker; sessions with the metadata store last 5 s."""
    return dataclasses.replace(config_for(seed), session_timeout=5.0, retention_interval=3.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_broker_seed(seed, log_file_size):
    log_file_size(8192 if seed % 2 else 1 << 20)
    run(seed)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", FUZZ_SEEDS)
def test_fuzz_broker_seed(seed, log_file_size):
    log_file_size(8192 if seed % 2 else 1 << 20)
    run(seed, BrokerPlan(messages=160, length_s=90, changes=25, together=0.3))


def strike_at(phase: str | None, who: str, seed: int) -> SimCluster:
    """A life in which the leader, or an owner, dies, loses power, is cut off or stopped at a phase of a change each."""
    script = tuple((phase, kind, who) for kind in DEATHS)
    return run(seed, BrokerPlan(script=script, seconds=(4.0, 7.0), changes=0, messages=60, length_s=20))


@pytest.mark.parametrize("who", ["leader", "owner"])
@pytest.mark.parametrize("phase", ["children", "terminate", None])
def test_every_death_at_a_phase(phase, who, log_file_size):
    log_file_size(8192)
    cluster = strike_at(phase, who, 10_500)
    struck = {e["text"].split(":")[0] for e in cluster.history.events if e["client"] == "nemesis" and "text" in e}
    assert struck >= set(DEATHS)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("who", ["leader", "owner"])
@pytest.mark.parametrize("phase", ["children", "terminate", None])
@pytest.mark.parametrize("seed", range(15_000, 15_200))
def test_fuzz_every_death_at_a_phase(phase, who, seed, log_file_size):
    log_file_size(8192 if seed % 2 else 1 << 20)
    strike_at(phase, who, seed)


def test_the_same_seed_gives_the_same_run_of_brokers():
    one, other = (run(10_003) for _ in range(2))
    assert one.history.events == other.history.events


def test_without_faults_every_change_is_made_by_any_broker():
    cluster = run(3, CALM)
    texts = [e["text"] for e in cluster.history.events if e["client"] == "shaper" and "text" in e]
    asked = [text for text in texts if "NotFoundError" not in text]  # before anybody has created the topic
    assert [text for text in asked if text.startswith("no ")] == []
    assert max(e["epoch"] for e in cluster.history.events if e["what"] == "layout") == len(asked) >= 18
    assert {e["phase"] for e in cluster.history.events if e["what"] == "send"} == {"invoke", "ok"}
