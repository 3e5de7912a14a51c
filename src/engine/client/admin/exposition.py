"""The metrics of a broker, read back from the text that it serves."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(?P<name>\w+)="(?P<value>(?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Labels = Mapping[str, str]


class Metrics:
    """All samples by name. What is not there is empty, or 0: a broker may be older."""

    def __init__(self, text: str) -> None:
        self._samples: defaultdict[str, list[tuple[Labels, float]]] = defaultdict(list)
        for line in text.splitlines():
            match = None if line.startswith("#") else _SAMPLE.fullmatch(line)
            if match is not None:
                self._samples[match["name"]].append((_labels(match["labels"] or ""), float(match["value"])))

    def of(self, name: str) -> list[tuple[Labels, float]]:
        """The samples of one name, without the prefix `engine_`."""
        return self._samples.get(f"engine_{name}", [])

    def one(self, name: str, **labels: str) -> float:
        """The sum of those that have these labels."""
        return sum(v for found, v in self.of(name) if all(found.get(n) == value for n, value in labels.items()))

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Sums by the values of these labels."""
        sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for found, value in self.of(name):
            sums[tuple(found.get(label, "") for label in labels)] += value
        return dict(sums)

    def buckets(self, name: str) -> dict[float, float]:
        """A histogram's counts by their bounds, rising; summed over all its samples."""
        return dict(sorted((float(at[0]), count) for at, count in self.by(f"{name}_bucket", "le").items()))

    def resident(self, process: str | None = None) -> float:
        """Bytes of memory that the server's processes have in use, or the one that `process` names."""
        found = self._samples.get("process_resident_memory_bytes", [])
        return sum(value for labels, value in found if process is None or labels.get("process") == process)

    def __iter__(self) -> Iterator[str]:
        return iter(self._samples)


def quantile(part: float, now: Mapping[float, float], before: Mapping[float, float]) -> float | None:
    """The bound below which this part of what came in between lies; None for nothing, infinity for above the last."""
    came = {bound: count - before.get(bound, 0.0) for bound, count in now.items()}
    total = max(came.values(), default=0.0)
    return next((bound for bound, count in came.items() if total and count >= part * total), None)


def _labels(text: str) -> Labels:
    return {m["name"]: re.sub(r'\\[\\"n]', lambda e: _ESCAPES[e[0]], m["value"]) for m in _LABEL.finditer(text)}
