"""The garbage collector's settings for a server process: each collection stops the event loop."""

from __future__ import annotations

import gc

YOUNG_MAX = 20_000  # new objects before a collection of the young generation
ROUNDS_MAX = 20  # such collections before one of the next generation


def collect_rarely() -> None:
    """Freeze present objects, which are never scanned again, and collect later ones rarely.

    To be called once the program is loaded. A scan of the loaded program alone takes 50 ms, and the allocations of many
    connecting clients would trigger several.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, ROUNDS_MAX, ROUNDS_MAX)
