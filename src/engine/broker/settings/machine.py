"""The memory and the processor cores available to this process; default limits are shares of the memory."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from engine.limits import GIB

_UNKNOWN = 2 * GIB  # where the system reports none
_CONTROL_GROUPS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
_QUOTAS = (  # a control group's processor time: the files of its quota and of the period, as one file or as two
    ("sys/fs/cgroup/cpu.max",),
    ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)


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


def usable_cores(affinity: int, root: Path = Path("/")) -> int:
    """Cores: those that this process may run on, or what the quota of the control group (container) is worth if less.

    A quota of one and a half cores counts as one: a second process would wait for half of its time.
    """
    quotas = [" ".join(_text(root / path).strip() for path in paths).split() for paths in _QUOTAS]
    shares = [int(q[0]) // int(q[1]) for q in quotas if len(q) == 2 and all(n.isdigit() and int(n) for n in q)]
    return max(min([affinity, *shares]), 1)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
