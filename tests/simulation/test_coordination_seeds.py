"""Random lives of coordinators: failover, lost answers, doubtful writes. Replay: `pytest -k 'coordination and 171'`.

And bugs of the rule, planted, are flagged.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.control.transactions.collecting import TransactionCollector
from engine.testing.checker import describe
from engine.testing.cluster import simulate
from tests.kit.seeds import first_of
from tests.simulation import coordination_scenario
from tests.simulation.blind_ends import end_without_comparing
from tests.simulation.coordination_scenario import CoordinationScenario, ModelSegment

SEEDS = first_of(range(40_000, 40_006), 4)
BUG_SEEDS = range(40_000, 40_004)
FUZZ_SEEDS = range(41_000, 43_000)


def run(seed: int) -> None:
    """One life."""
    violations = simulate(seed, CoordinationScenario())
    assert not violations, f"seed {seed}:\n{describe(violations)}"


@pytest.mark.parametrize("seed", SEEDS)
def test_coordination_seed(seed):
    run(seed)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", FUZZ_SEEDS)
def test_fuzz_coordination_seed(seed):
    run(seed)


def broken_rules() -> Iterator[str]:
    """The rules that are broken, seed after seed; an assertion of the scenario counts as one."""
    for seed in BUG_SEEDS:
        try:
            yield from {violation.rule for violation in simulate(seed, CoordinationScenario())}
        except AssertionError as e:
            yield str(e)


def flagged(*rules: str) -> bool:
    """Whether one of them is broken under any of the seeds; no further one is tried then."""
    return any(rule in rules for rule in broken_rules())


def test_end_a_transaction_without_comparing(monkeypatch):
    end_without_comparing(monkeypatch)
    assert flagged("T2", "T6", "D1")


def test_count_what_was_written_behind_the_decision(monkeypatch):
    monkeypatch.setattr(
        coordination_scenario, "operation_counts", lambda h, decided, attempt, written: h.counts(attempt)
    )
    assert flagged("D2")


def test_count_every_attempt(monkeypatch):
    def every(header, decided, attempt, written):
        return header.state == "COMMITTED" and written < decided

    monkeypatch.setattr(coordination_scenario, "operation_counts", every)
    assert flagged("T2")


def test_read_what_is_undecided(monkeypatch):
    async def everything(segment):
        return [
            (offset, value) for offset, (value, _, _) in enumerate(segment.log) if segment.decided.get(offset, True)
        ]

    monkeypatch.setattr(ModelSegment, "visible", everything)
    assert flagged("T3")


def test_forget_a_header_that_somebody_needs(monkeypatch):
    async def none(collector, known, limit):
        return []

    monkeypatch.setattr(TransactionCollector, "_operation_records", none)
    assert any("a header is gone" in rule or "never forgotten" in rule for rule in broken_rules())


def test_delete_the_records_before_the_outcome_is_saved(monkeypatch):
    async def settle(segment):
        for record, _, outcome in await segment.outcomes():
            if outcome is not None:
                await segment._store.delete(record.key)

    monkeypatch.setattr(ModelSegment, "settle", settle)
    assert flagged("D1", "D4", "T1")
