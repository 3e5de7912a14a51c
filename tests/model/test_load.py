"""Load reports: their JSON, and when one is worth writing."""

from __future__ import annotations

import json

import pytest

from engine.errors import CorruptionError
from engine.model.load import SegmentLoadStats

WRITTEN = SegmentLoadStats(100.0, 1000.0, 50.0, 0.0)


def test_the_record_is_the_specifications():
    stats = SegmentLoadStats(12000.0, 64000000.0, 48000.0, 256000000.0)
    said = {"msgRateIn": 12000.0, "bytesRateIn": 64000000.0, "msgRateOut": 48000.0, "bytesRateOut": 256000000.0}
    assert json.loads(stats.to_json()) == said
    assert SegmentLoadStats.from_json(stats.to_json()) == stats


@pytest.mark.parametrize(
    "value", [b"[]", b"{", b"{}", b'{"msgRateIn":1}', b'{"msgRateIn":-1}', b'{"msgRateIn":NaN}', b'{"msgRateIn":true}']
)
def test_a_damaged_record_is_named(value):
    with pytest.raises(CorruptionError, match="load record"):
        SegmentLoadStats.from_json(value)


@pytest.mark.parametrize(
    ("now", "differs"),
    [
        ((100.0, 1000.0, 50.0, 0.0), False),
        ((125.0, 1250.0, 62.5, 0.0), False),  # exactly as much is not more
        ((75.0, 750.0, 37.5, 0.0), False),
        ((125.1, 1000.0, 50.0, 0.0), True),
        ((74.9, 1000.0, 50.0, 0.0), True),
        ((100.0, 1251.0, 50.0, 0.0), True),
        ((100.0, 1000.0, 37.4, 0.0), True),
        ((100.0, 1000.0, 50.0, 0.1), True),  # from zero
        ((100.0, 1000.0, 0.0, 0.0), True),  # to zero
    ],
)
def test_semantics_32_more_than_a_quarter_either_way_or_crossing_zero(now, differs):
    assert SegmentLoadStats(*now).differs(WRITTEN, 0.25) is differs


def test_crossing_zero_counts_however_high_the_threshold_is():
    assert SegmentLoadStats().differs(WRITTEN, 5.0)
    assert WRITTEN.differs(SegmentLoadStats(), 5.0)
    assert not SegmentLoadStats().differs(SegmentLoadStats(), 0.0)
    assert SegmentLoadStats().silent
    assert not WRITTEN.silent
