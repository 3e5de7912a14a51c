"""Families of samples, and the pages that prometheus_client writes of them. Independent of brokers.

The library is imported when the first page is written: a broker that nothing scrapes does not pay for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from engine.aio.histogram import HistogramStatistics

if TYPE_CHECKING:
    from prometheus_client import Metric

PREFIX = "engine_"  # of every name that is the product's own
_EOF = b"# EOF\n"  # closes a page of OpenMetrics

Labels = dict[str, str]
NO_LABELS: Labels = {}
Sample = tuple[Labels, float]
Row = tuple[str, Labels, float]
Distribution = tuple[Labels, HistogramStatistics]
Kind = Literal["counter", "gauge"]


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one name. A family without samples is served by name, kind and help text."""

    name: str
    kind: Kind
    text: str
    samples: Iterable[Sample]

    def rows(self, common: Labels = NO_LABELS) -> Iterator[Row]:
        """(name, labels, value). `common`: labels of all samples."""
        for labels, value in self.samples:
            yield self.name, {**common, **labels}, value


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """All distributions of one name: served as its buckets, their sum and their count."""

    name: str
    text: str
    samples: Iterable[Distribution]
    kind: Literal["histogram"] = "histogram"

    def rows(self, common: Labels = NO_LABELS) -> Iterator[Row]:
        """(name, labels, value). `common`: labels of all samples."""
        from prometheus_client.utils import floatToGoString

        for own, found in self.samples:
            labels = {**common, **own}
            for bound, count in zip(found.bounds, found.counts, strict=True):
                upper: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
                yield f"{self.name}_bucket", {**labels, "le": upper}, count
            yield f"{self.name}_bucket", {**labels, "le": "+Inf"}, found.count
            yield f"{self.name}_sum", labels, found.total
            yield f"{self.name}_count", labels, found.count


AnyFamily = Family | HistogramFamily


class FlatFamily(NamedTuple):
    """A family with its rows, which can be sent to another process."""

    name: str
    kind: str
    text: str
    rows: Sequence[Row]


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


def flat(families: Iterable[AnyFamily], common: Labels = NO_LABELS) -> list[FlatFamily]:
    """`common`: labels of all samples."""
    return [FlatFamily(one.name, one.kind, one.text, list(one.rows(common))) for one in families]


def joined(pages: Iterable[Iterable[FlatFamily]]) -> list[FlatFamily]:
    """The families of several processes as one: the rows of each name together, in the order of the pages."""
    found: dict[str, FlatFamily] = {}
    for name, kind, text, rows in (family for page in pages for family in page):
        before = found.get(name)
        found[name] = FlatFamily(name, kind, text, [*(() if before is None else before.rows), *rows])
    return list(found.values())


class PageWriter:
    """Writes a page in the format that a client has asked for by the header Accept: OpenMetrics, or Prometheus text."""

    def __init__(self, accept: str = "") -> None:
        from prometheus_client.exposition import choose_encoder

        try:
            chosen = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is no number
            chosen = choose_encoder("")
        self._encode: Callable[..., bytes] = chosen[0]
        self.content_type = chosen[1]

    def page(self, families: Iterable[FlatFamily]) -> bytes:
        """The whole page. Every name occurs once, with all its samples."""
        return b"".join(part for family in families for part in self.parts(family, len(family.rows) or 1)) + self.end

    def parts(self, family: FlatFamily, at_once: int) -> Iterator[bytes]:
        """The lines of a family, so many rows at a time."""
        head = self._written(family, ())
        yield head
        for start in range(0, len(family.rows), at_once):
            yield self._written(family, family.rows[start : start + at_once])[len(head) :]

    @property
    def end(self) -> bytes:
        """What closes a page."""
        return _EOF if self.content_type.startswith("application/openmetrics-text") else b""

    def _written(self, family: FlatFamily, rows: Sequence[Row]) -> bytes:
        return self._encode(_One(_metric(family, rows))).removesuffix(_EOF)


def exposition(families: Iterable[AnyFamily], common: Labels = NO_LABELS) -> str:
    """The text of all families, for Prometheus. `common`: labels of all samples."""
    return PageWriter().page(flat(families, common)).decode()


class _One:
    """A collector of one family, as the library's encoders take it."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _metric(family: FlatFamily, rows: Sequence[Row]) -> Metric:
    from prometheus_client import Metric
    from prometheus_client.samples import Sample as Written

    found = Metric(family.name.removesuffix("_total"), family.text, family.kind)
    found.samples = [Written(name, labels, value) for name, labels, value in rows]
    return found


def _samples(samples: Iterable[Sample] | float) -> Iterable[Sample]:
    return [({}, samples)] if isinstance(samples, int | float) else samples
