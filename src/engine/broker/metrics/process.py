"""Process metrics, under the names that Prometheus clients use."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from engine.broker.metrics.exposition import Family, Sample

_PROC = Path("/proc/self")


def process_families() -> Iterator[Family]:
    """Processor time and memory; values that the platform does not report have no samples."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield Family("process_cpu_seconds_total", "counter", "Processor time", [({}, used.ru_utime + used.ru_stime)])
    memory: list[Sample] = [({}, size) for size in _pages()]
    yield Family("process_resident_memory_bytes", "gauge", "Memory that is in use", memory[1:2])
    yield Family("process_virtual_memory_bytes", "gauge", "Memory that is mapped", memory[:1])
    yield Family("process_open_fds", "gauge", "Open file descriptors", [({}, count) for count in _descriptors()])


def _pages() -> list[int]:
    """Bytes mapped, bytes in use."""
    try:
        return [int(pages) * resource.getpagesize() for pages in (_PROC / "statm").read_text().split()[:2]]
    except (OSError, ValueError):
        return []


def _descriptors() -> list[int]:
    try:
        return [sum(1 for _ in (_PROC / "fd").iterdir())]
    except OSError:
        return []
