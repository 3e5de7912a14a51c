"""Random lives of a queue with nacks, time-outs, dead letters and delays. Replay: `-k 'queue_seed and 30003'`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.kit.seeds import first_of
from tests.simulation.queue_scenario import QueuePlan, run

SEEDS = first_of(range(30_000, 30_006), 3)
STRUCK = first_of(range(30_100, 30_106), 4)
FUZZ_SEEDS = range(31_000, 34_000)


@pytest.mark.parametrize("seed", SEEDS)
def test_queue_seed_in_calm(seed: int) -> None:
    """C2: every message was given, with the counts 0, 1, 2, and is acknowledged or, behind the last, a dead letter.

    A few are seen with 1 first: they were on their way to a member that was killed.
    """
    events = run(seed).history.events
    counts = Counter(e["count"] for e in events if e["what"] == "deliver")
    sent = sum(e["what"] == "send" and e["phase"] == "invoke" for e in events)
    given = {e["value"] for e in events if e["what"] == "deliver"}
    assert len(given) >= 240 <= sent
    assert counts[0] >= 0.95 * len(given)
    assert set(counts) == {0, 1, 2}
    assert any(e["what"] == "letter" for e in events)


@pytest.mark.parametrize("seed", STRUCK)
def test_queue_seed_under_faults(seed: int) -> None:
    run(seed, QueuePlan(strikes=3, brokers=1 if seed % 2 else 3))


def test_queue_seed_over_an_object_store() -> None:
    plan = QueuePlan(strikes=3, brokers=3, kinds=("kill", "power cut", "reset", "freeze"), calm_s=10.0)
    events = run(30_202, plan, objects=True).history.events
    assert any(e["what"] == "letter" for e in events)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", FUZZ_SEEDS)
def test_fuzz_queue_seed(seed: int) -> None:
    run(seed, QueuePlan(strikes=seed % 6, brokers=1 if seed % 2 else 3, messages=200, changes=6, members=2 + seed % 5))
