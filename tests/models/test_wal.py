"""The protocol of the write-ahead log of objects, explored: with all rules nothing is at fault, without any one of them
something is.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.models.explorer import ViolationError, explore
from tests.models.wal.instances import CLEAN, FAULTS, LONG
from tests.models.wal.model import WalModel, rounds_lost
from tests.models.wal.state import Budget, Instance, Rule, State


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.name)
def test_without_a_rule_the_model_finds_the_fault(rule: Rule):
    instance, fault = FAULTS[rule]
    found = explore(WalModel(replace(instance, off=frozenset({rule}))))
    assert found.fault.startswith(fault), f"without {rule.value!r}:\n{found.story()}"
    assert found.trace


@pytest.mark.parametrize("name", CLEAN)
def test_with_all_rules_nothing_is_at_fault(name: str):
    assert_clean(CLEAN[name])


@pytest.mark.fuzz
@pytest.mark.parametrize("name", LONG)
def test_with_all_rules_nothing_is_at_fault_in_larger_instances(name: str):
    assert_clean(LONG[name])


@pytest.mark.fuzz
@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.name)
def test_with_the_rule_the_same_instance_is_clean(rule: Rule):
    assert_clean(FAULTS[rule][0])


class Gone(WalModel):
    """Finds a way to a state in which nothing is left of the first session, which had written and ended."""

    def check(self, state: State) -> None:
        super().check(state)
        if state.wal_records[0].gone:
            raise ViolationError("GONE")


@pytest.mark.parametrize(
    ("budget", "goes"),
    [
        (Budget(handovers=1, takeovers=0, sweeps=1), False),
        (Budget(handovers=1, takeovers=0, uploads=1, moves=1, sweeps=1), False),
        (Budget(handovers=1, takeovers=1, sweeps=1), False),
        (Budget(handovers=1, takeovers=1, uploads=1, sweeps=1), True),
        (Budget(handovers=1, takeovers=1, uploads=1, moves=1, sweeps=1), True),
        (Budget(takeovers=1, uploads=1, sweeps=1), True),
    ],
    ids=["closed", "moved-and-closed", "opened", "opened-and-uploaded", "opened-and-moved", "died-opened-and-uploaded"],
)
def test_the_log_of_an_ended_session_goes_when_the_segments_of_its_references_are_opened(budget: Budget, goes: bool):
    """A closed segment keeps one reference for good, also where files hold all: only another owner replaces it."""
    found = explore(Gone(Instance(writes=(1, 0, 0), claimers="B", budget=budget)))
    assert found.fault == ("GONE" if goes else ""), found.story()
    assert found.complete


def assert_clean(instance: Instance) -> None:
    found = explore(WalModel(instance))
    assert found.fault == "", found.story()
    assert found.complete, f"{found.states} states were explored, and there are more"


def test_r4_more_names_than_the_window_keep_a_session_from_outrunning_its_fence():
    """With one name at a time, each write of the session costs the fence a round trip."""
    assert [rounds_lost(writes, window=3, span=1) for writes in (4, 8, 12)] == [4, 8, 12]
    assert [rounds_lost(writes, window=3, span=4) for writes in (4, 8, 12)] == [0, 0, 0]
