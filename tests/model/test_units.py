"""Durations, sizes and shares as text."""

from __future__ import annotations

import pytest

from engine.model.units import byte_count, seconds, share, size_text


@pytest.mark.parametrize(
    ("text", "value"),
    [("60s", 60), ("5m", 300), ("1.5h", 5400), ("500ms", 0.5), ("7d", 604800), ("90", 90), (" 2 min ", 120), ("0", 0)],
)
def test_durations(text, value):
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("50MB", 52428800), ("50 MiB", 52428800), ("1k", 1024), ("1.5GB", 1610612736), ("12", 12), ("12b", 12)],
)
def test_sizes(text, value):
    assert byte_count(text) == value


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 40, "3.0 TiB"),
        (1 << 50, "1,024.0 TiB"),
    ],
)
def test_sizes_for_people(count: int, text: str):
    assert size_text(count) == text


def test_shares():
    assert (share("25%"), share("0.25"), share("150 %")) == (0.25, 0.25, 1.5)


@pytest.mark.parametrize("text", ["", "m", "-1s", "5 parsecs", "1m30s", "1e3", "nan", "١s", "5MB", "25%"])
def test_what_is_no_duration(text):
    assert seconds(text) is None


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "5s", "25%"])
def test_what_is_no_size(text):
    assert byte_count(text) is None
