"""P13: from opening a data directory after a crash to the first acknowledged publish.

P13 asks for less than 2 s at 10 GB, and for time that follows the unsealed tail, not the data. The full size needs the
disk and some minutes: ENGINE_BENCH_OPEN_GIB=10.
"""

from __future__ import annotations

import os
from typing import ClassVar

from crashes import open_seconds
from support import TINY

GIB = int(os.environ.get("ENGINE_BENCH_OPEN_GIB", "2"))
TAIL_MIB = 1 if TINY else 64


class DataGrows:
    """More data before a tail of 64 MiB: the time should stay."""

    timeout = 3600
    params: ClassVar = [1] if TINY else [0, 512, GIB * 1024]
    param_names: ClassVar = ["MiB before the tail"]
    unit = "ms"

    def track_first_publish_ms(self, mib: int) -> float:
        return open_seconds(mib, TAIL_MIB) * 1e3


class TailGrows:
    """One file, not sealed, and more in it: the time may follow."""

    timeout = 600
    params: ClassVar = [1] if TINY else [16, 64, 240]
    param_names: ClassVar = ["MiB of the tail"]
    unit = "ms"

    def track_first_publish_ms(self, tail_mib: int) -> float:
        return open_seconds(0, tail_mib) * 1e3
