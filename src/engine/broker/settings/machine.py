"""The memory available to this process, of which default limits are shares."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from engine.limits import GIB

_UNKNOWN = 2 * GIB  # where the system reports none
_CONTROL_GROUPS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")


@functools.cache
def machine_memory(root: Path = Path("/")) -> int:
    """Bytes: the machine's memory, or the limit of the control group (container) if lower."""
    total = re.search(r"MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"))
    found = [int(total[1]) * 1024] if total else []
    found += [int(text) for path in _CONTROL_GROUPS if (text := _text(root / path).strip()).isdigit()]
    return min((size for size in found if size), default=_UNKNOWN)


def share_of_memory(part: float, at_most: int, at_least: int) -> int:
    """A part of it, within bounds."""
    return max(min(int(machine_memory() * part), at_most), at_least)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
