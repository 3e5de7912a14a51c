"""Durations, sizes and shares as operators write them: "90s", "5m", "50MB", "25%"; and sizes for them to read."""

from __future__ import annotations

import math
import re

from engine.limits import GIB, KIB, MIB

_NUMBER = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?)\s*(?P<unit>[a-zµ%]*)", re.IGNORECASE)

SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
# The specification's MB is 1024 KB, as everywhere in its configuration.
BYTES = {
    "": 1, "b": 1, "k": KIB, "kb": KIB, "kib": KIB, "m": MIB, "mb": MIB, "mib": MIB, "g": GIB, "gb": GIB, "gib": GIB,
    "t": 1024 * GIB, "tb": 1024 * GIB, "tib": 1024 * GIB,
}  # fmt: skip
SHARES = {"": 1.0, "%": 0.01}


def seconds(text: str) -> float | None:
    """A duration in seconds; None for an invalid one."""
    return _scaled(text, SECONDS)


def byte_count(text: str) -> int | None:
    """A size in bytes; None for an invalid one. KB, MB, GB are powers of 1024, with or without an i."""
    found = _scaled(text, BYTES)
    return None if found is None else int(found)


def size_text(count: float) -> str:
    """Bytes as people write them: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def share(text: str) -> float | None:
    """A share: 25% or 0.25; None for an invalid one."""
    return _scaled(text, SHARES)


def _scaled(text: str, units: dict[str, float] | dict[str, int]) -> float | None:
    match = _NUMBER.fullmatch(text.strip())
    factor = None if match is None else units.get(match["unit"].lower())
    if match is None or factor is None:
        return None
    found = float(match["number"]) * factor
    return found if math.isfinite(found) else None
