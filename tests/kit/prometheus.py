"""What a broker serves at /metrics, read by Prometheus' own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, ...], float]


def samples_of(text: str, name: str) -> Samples:
    """{(topic, segment, subscription or owner): value} of one name; other labels by their names."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                first = {name: sample.labels[name] for name in ("topic", "segment") if name in sample.labels}
                key = tuple(value for name, value in {**first, **sample.labels}.items() if name != "namespace")
                assert key not in found, f"{name}{sample.labels} is served twice"
                found[key] = sample.value
    return found
