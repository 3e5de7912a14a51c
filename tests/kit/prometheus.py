"""What a broker serves at /metrics, read by Prometheus' own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, ...], float]


def samples_of(text: str, name: str) -> Samples:
    """{(topic, segment, subscription or owner): value} of one name."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                labels = {**sample.labels}
                labels.pop("namespace", None)
                key = tuple(labels.values())
                assert key not in found, f"{name}{sample.labels} is served twice"
                found[key] = sample.value
    return found
