"""The text format of Prometheus, version 0.0.4: families of samples in, text out. Independent of brokers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from engine.aio.histogram import HistogramStatistics

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "engine_"  # of every name that is the product's own

Labels = Mapping[str, str]
NO_LABELS: Labels = {}
Sample = tuple[Labels, float]
Distribution = tuple[Labels, HistogramStatistics]
Kind = Literal["counter", "gauge"]


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one name. A family without samples is served by name, kind and help text."""

    name: str
    kind: Kind
    text: str
    samples: Iterable[Sample]

    def lines(self, common: Labels = NO_LABELS) -> Iterator[str]:
        """`common`: labels of all samples."""
        yield from _head(self.name, self.kind, self.text)
        for labels, value in self.samples:
            yield f"{self.name}{_labels({**common, **labels})} {_number(value)}"


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """All distributions of one name: served as its buckets, their sum and their count."""

    name: str
    text: str
    samples: Iterable[Distribution]

    def lines(self, common: Labels = NO_LABELS) -> Iterator[str]:
        """`common`: labels of all samples."""
        yield from _head(self.name, "histogram", self.text)
        for own, found in self.samples:
            labels = {**common, **own}
            for bound, count in zip(found.bounds, found.counts, strict=True):
                yield f"{self.name}_bucket{_labels({**labels, 'le': _number(bound)})} {count}"
            yield f"{self.name}_bucket{_labels({**labels, 'le': '+Inf'})} {found.count}"
            yield f"{self.name}_sum{_labels(labels)} {_number(found.total)}"
            yield f"{self.name}_count{_labels(labels)} {found.count}"


AnyFamily = Family | HistogramFamily


def gauge(name: str, text: str, samples: Iterable[Sample] | float) -> Family:
    """A value that goes up and down; a number is the only sample, without labels."""
    return Family(PREFIX + name, "gauge", text, _samples(samples))


def counter(name: str, text: str, samples: Iterable[Sample] | float) -> Family:
    """A value that only grows while the process lives; `name` ends with `_total`."""
    return Family(PREFIX + name, "counter", text, _samples(samples))


def histogram(name: str, text: str, samples: Iterable[Distribution] | HistogramStatistics) -> HistogramFamily:
    return HistogramFamily(
        PREFIX + name, text, [({}, samples)] if isinstance(samples, HistogramStatistics) else samples
    )


def exposition(families: Iterable[AnyFamily], common: Labels = NO_LABELS) -> str:
    """The text of all families. Every name occurs once, with all its samples. `common`: labels of all samples."""
    return "\n".join(line for family in families for line in family.lines(common)) + "\n"


class JoinedPages:
    """Several pages as one: the samples of each name together, in the order of the pages."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}  # by the line of the help text, which comes first
        self._lines: list[str] = []

    def add(self, line: str) -> None:
        """The next line of the pages."""
        if line.startswith("# HELP "):
            self._lines = self._families.setdefault(line, [])
        elif not self._lines or not line.startswith("# "):  # the type, once
            self._lines.append(line)

    def text(self) -> str:
        return "\n".join("\n".join([head, *lines]) for head, lines in self._families.items()) + "\n"


def _samples(samples: Iterable[Sample] | float) -> Iterable[Sample]:
    return [({}, samples)] if isinstance(samples, int | float) else samples


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {_escape_help(text)}"
    yield f"# TYPE {name} {kind}"


def _number(value: float) -> str:
    """All its digits: a rounded counter seems to stand still, which falsifies its rate."""
    if not isfinite(value):
        return {float("inf"): "+Inf", float("-inf"): "-Inf"}.get(value, "NaN")
    return str(int(value)) if value == int(value) else repr(value)


def _labels(labels: Labels) -> str:
    escaped = (f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{','.join(escaped)}}}" if labels else ""


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
