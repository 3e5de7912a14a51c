"""Runs of entries in one transaction: native, beside plain Python."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.serve.undecided import runs_of
from engine.errors import CorruptionError, InvalidArgumentError
from engine.model.transactions import attempt_number, id_text
from tests.broker.transacting import entry

PLACES = st.tuples(st.integers(0, 2), st.sampled_from([None, "a", "b"]), st.integers(1, 3))


@given(st.lists(PLACES, max_size=8))
def test_runs_are_those_of_plain_python(places: list[tuple[int, str | None, int]]) -> None:
    entries, sequence = [], 0
    for number, attempt, count in places:
        image = entry(sequence, [b"v"] * count, id_text(number), attempt)
        entries.append((number, attempt_number(attempt), sequence, sequence + count - 1, len(image), image))
        sequence += count
    wanted, at = [], 0
    for (number, attempt_id), group in groupby(entries, lambda one: one[:2]):
        run = list(group)
        stop = at + sum(one[4] for one in run)
        wanted.append((number, attempt_id, at, stop, len(run), run[0][2], run[-1][3]))
        at = stop
    found = runs_of(b"".join(one[5] for one in entries))
    assert [(r.number, r.attempt, r.start, r.stop, r.entries, r.span.low, r.span.high) for r in found] == wanted


@given(st.binary(max_size=600))
def test_any_bytes_are_runs_or_refused(data: bytes) -> None:
    for frame in (data, entry(0, [b"v"], id_text(1)) + data):
        try:
            runs = runs_of(frame)
        except (CorruptionError, InvalidArgumentError):
            continue
        assert sum(run.stop - run.start for run in runs) == len(frame)


def test_an_entry_outside_of_transactions_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="must be in one"):
        runs_of(entry(0, [b"v"]))
