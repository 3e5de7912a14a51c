"""The text format, as a parser that is not ours reads it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from engine.aio.histogram import Histogram
from engine.broker.metrics.exposition import Family, JoinedPages, counter, exposition, gauge, histogram

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]) | st.sampled_from('\\"\n'), max_size=20)


@given(TEXTS, st.floats(allow_nan=False))
def test_any_label_and_any_value_come_back(text, value):
    (family,) = text_string_to_metric_families(exposition([gauge("g", "a gauge", [({"name": text}, value)])]))
    assert [(s.name, s.labels, s.value) for s in family.samples] == [("engine_g", {"name": text}, value)]


def test_no_digit_of_a_counter_is_lost():
    text = exposition([counter("c_total", "a counter", 12345678901234567)])
    assert "engine_c_total 12345678901234567" in text.splitlines()


def test_a_histogram_is_cumulative_and_closed_by_infinity():
    values = Histogram([0.5, 1.0])
    for value in (0.1, 0.7, 0.8, 9.0):
        values.observe(value)
    text = exposition([histogram("h_seconds", "times", [({"pool": "p"}, values.statistics())])])
    (family,) = text_string_to_metric_families(text)
    assert family.type == "histogram"
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert buckets == {"0.5": 1, "1": 3, "+Inf": 4}
    rest = {s.name: s.value for s in family.samples if not s.name.endswith("_bucket")}
    assert rest["engine_h_seconds_count"] == 4
    assert rest["engine_h_seconds_sum"] == pytest.approx(10.6)


def test_a_family_without_samples_is_announced_all_the_same():
    assert exposition([gauge("g", "of\nnothing", [])]) == "# HELP engine_g of\\nnothing\n# TYPE engine_g gauge\n"


@pytest.mark.parametrize(("value", "written"), [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN")])
def test_what_is_no_number_is_written_as_the_format_has_it(value, written):
    assert exposition([Family("x", "gauge", "x", [({}, value)])]).splitlines()[-1] == f"x {written}"


def test_pages_of_several_processes_are_one_page():
    lag = Histogram([0.1, 1.0])
    lag.observe(0.5)
    pages = [
        exposition([gauge("a", "First", index), histogram("lag", "Late", lag.statistics())], {"process": str(index)})
        for index in range(2)
    ]
    pages.append(exposition([gauge("b", "Second", [({"process": "0"}, 7)])]))
    joined = JoinedPages()
    for line in "".join(pages).splitlines():
        joined.add(line)
    found = {family.name: family.samples for family in text_string_to_metric_families(joined.text())}
    assert [(sample.labels, sample.value) for sample in found["engine_a"]] == [
        ({"process": "0"}, 0),
        ({"process": "1"}, 1),
    ]
    counts = [(s.labels["process"], s.value) for s in found["engine_lag"] if s.name == "engine_lag_count"]
    assert counts == [("0", 1), ("1", 1)]
    assert found["engine_b"][0].value == 7
    assert joined.text().count("# TYPE") == joined.text().count("# HELP") == 3
