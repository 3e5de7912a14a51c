"""Readers of objects, explored: with all rules they get what the owner has, without any one of them they do not."""

from __future__ import annotations

import pytest

from tests.models.explorer import explore
from tests.models.reads import ReadModel, ReadRule

FAULTS = {ReadRule.R13_NAME: "INVENTED", ReadRule.R17_RECORD: "DAMAGED", ReadRule.R17_AGAIN: "LOST"}


@pytest.mark.parametrize("rule", ReadRule, ids=lambda rule: rule.name)
def test_without_a_rule_the_model_finds_the_fault(rule: ReadRule):
    found = explore(ReadModel(off=frozenset({rule})))
    assert found.fault.startswith(FAULTS[rule]), f"without {rule.value!r}:\n{found.story()}"
    assert found.trace


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_with_all_rules_nothing_is_at_fault_without_any_grace(size: int):
    found = explore(ReadModel(size=size))
    assert found.fault == "", found.story()
    assert found.complete
    assert found.states > size
