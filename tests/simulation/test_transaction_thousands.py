"""Transactions by the thousand while their topics are split, merged and rebucketed under them; the checker judges."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.transaction_scenario import TransactionPlan, run

THOUSAND = TransactionPlan(
    brokers=1, kinds=("nothing",), writers=4, transactions=250, changes=15, length_s=20.0, transformer=False
)
THOUSANDS = TransactionPlan(writers=6, transactions=1000, changes=60, length_s=120.0, transformer=True)


def ends(cluster) -> Counter[str]:
    """How many transactions came to each end, as the store has it."""
    states = {e["transaction"]: e["state"] for e in cluster.history.events if e["client"] == "spy"}
    return Counter(states.values())


def changes(cluster) -> Counter[str]:
    """How many of each kind were made."""
    texts = [e["text"].split()[0] for e in cluster.history.events if e["client"] == "shaper" and "text" in e]
    return Counter(texts)


def test_a_thousand_across_split_merge_and_rebucket():
    cluster = run(60_000, THOUSAND)
    assert ends(cluster).total() >= 1000
    assert min(ends(cluster)["COMMITTED"], ends(cluster)["ABORTED"]) > 200
    assert min(changes(cluster)[what] for what in ("split", "merge", "rebucket")) > 0
    assert changes(cluster).total() >= 25


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(61_000, 61_010))
def test_fuzz_thousands_among_three_brokers_under_faults(seed):
    assert ends(run(seed, THOUSANDS)).total() >= 5000
