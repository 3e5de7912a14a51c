"""A crash at every durable call that a transaction makes, before it and when it is done: T1 to T7 hold afterwards.

The points are the rows of the table in docs/design/transactions.md.
Replay: `pytest -k 'crash_point and "header COMMITTED"'`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.crash_points import AFTER, BEFORE
from tests.simulation.crash_story import Strike, live

LABELS = (
    "write header OPEN",
    "write name",
    "write visibility",
    "write log",
    "sync log",
    "write operation write",
    "write operation ack",
    "write operation and header",
    "write header COMMITTED",
    "write header ABORTED",
    "write cursor",
    "delete operation",
    "delete header",
    "delete name",
)
ON_DISK = ("write log", "sync log")
DOCS = Path(__file__).parents[2] / "docs" / "design" / "transactions.md"


@pytest.fixture(scope="module")
def counts():
    """How often each durable call is made in a life without a crash."""
    return live()


def strikes(label, when, numbers):
    """One at each of these calls; where data is not synced yet, a power cut as well."""
    hows = ("kill", "power cut") if label in ON_DISK else ("kill",)
    return [Strike(label, number, when, how) for number in numbers for how in hows]


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("label", LABELS)
def test_crash_point(label, when, counts):
    for strike in strikes(label, when, {counts[label] // 2}):
        live(strike)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("label", LABELS)
def test_fuzz_crash_point(label, when, seed):
    """Where it is reached at all: that hangs on what arrives together, in a life of this seed."""
    for strike in strikes(label, when, range(live(seed=seed).get(label, 0))):
        live(strike, seed)


def test_no_point_is_forgotten(counts):
    assert set(counts) == set(LABELS)


def test_every_point_is_in_the_table_of_the_docs():
    section = DOCS.read_text().partition("## Crash points")[2].partition("\n## ")[0]
    named = set(re.findall(r"`test_crash_point\[([^\]]+)\]`", section))
    assert named == {f"{label}-{when}" for label in LABELS for when in (BEFORE, AFTER)}
