"""Pages of metrics: families are written as their parsers read them, in the format that was asked for."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metric_families
from prometheus_client.parser import text_string_to_metric_families

from engine.aio.histogram import Histogram
from engine.broker.metrics.exposition import (
    Family,
    PageWriter,
    counter,
    exposition,
    flat,
    gauge,
    histogram,
    joined,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]) | st.sampled_from('\\"\n'), max_size=20)


@given(TEXTS, st.floats(allow_nan=False))
def test_any_label_and_any_value_come_back(text, value):
    (family,) = text_string_to_metric_families(exposition([gauge("g", "a gauge", [({"name": text}, value)])]))
    assert [(s.name, s.labels, s.value) for s in family.samples] == [("engine_g", {"name": text}, value)]


def test_no_digit_of_a_counter_is_lost_that_prometheus_could_keep():
    (family,) = text_string_to_metric_families(exposition([counter("c_total", "a counter", 2**53 - 1)]))
    assert [sample.value for sample in family.samples] == [2**53 - 1]


def test_a_histogram_is_cumulative_and_closed_by_infinity():
    values = Histogram([0.5, 1.0])
    for value in (0.1, 0.7, 0.8, 9.0):
        values.observe(value)
    text = exposition([histogram("h_seconds", "times", [({"pool": "p"}, values.statistics())])])
    (family,) = text_string_to_metric_families(text)
    assert family.type == "histogram"
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert buckets == {"0.5": 1, "1.0": 3, "+Inf": 4}
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
        flat([gauge("a", "First", index), histogram("lag", "Late", lag.statistics())], {"process": str(index)})
        for index in range(2)
    ]
    pages.append(flat([gauge("b", "Second", [({"process": "0"}, 7)])]))
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(pages))  # as from another process
    text = PageWriter().page(joined(sent)).decode()
    found = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert [(sample.labels, sample.value) for sample in found["engine_a"]] == [
        ({"process": "0"}, 0),
        ({"process": "1"}, 1),
    ]
    counts = [(s.labels["process"], s.value) for s in found["engine_lag"] if s.name == "engine_lag_count"]
    assert counts == [("0", 1), ("1", 1)]
    assert found["engine_b"][0].value == 7
    assert text.count("# TYPE") == text.count("# HELP") == 3


ACCEPTED = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3"  # as Prometheus asks


def some_families() -> list[Any]:
    lag = Histogram([0.1, 1.0])
    lag.observe(0.5)
    return [
        counter("c_total", "Counted", [({"topic": str(i)}, i) for i in range(7)]),
        gauge("g", "Of nothing", []),
        histogram("lag", "Late", lag.statistics()),
    ]


def test_openmetrics_is_written_where_it_is_asked_for():
    writer = PageWriter(ACCEPTED)
    assert writer.content_type.startswith("application/openmetrics-text; version=1.0.0")
    page = writer.page(flat(some_families())).decode()
    assert page.endswith("# EOF\n")
    assert page.count("# EOF") == 1
    kinds = {family.name: family.type for family in open_metric_families(page)}
    assert kinds == {"engine_c": "counter", "engine_g": "gauge", "engine_lag": "histogram"}


@pytest.mark.parametrize("accept", ["", ACCEPTED])
@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_a_page_in_parts_is_the_page(accept: str, at_once: int):
    writer, families = PageWriter(accept), flat(some_families())
    parts = [part for family in families for part in writer.parts(family, at_once)]
    assert b"".join(parts) + writer.end == writer.page(families)


@pytest.mark.parametrize(
    "accept", ["*/*", "text/plain;version=x.y", "application/openmetrics-text;version=;x", "a;" * 1000, "\u00fc;=,;"]
)
def test_whatever_is_accepted_there_is_a_page(accept: str):
    writer = PageWriter(accept)
    page = writer.page(flat(some_families())).decode()
    parse = open_metric_families if writer.end else text_string_to_metric_families
    assert len(list(parse(page))) == 3
    assert "\n" not in writer.content_type
