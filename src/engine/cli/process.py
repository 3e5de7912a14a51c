"""The garbage collector's settings for a server process: each collection stops the event loop."""

from __future__ import annotations

import gc

YOUNG_MAX = 20_000  # new objects before a collection of the young generation
ROUNDS_MAX = 20  # such collections before one of the next generation


def collect_rarely() -> None:
    """Freeze present objects, which are never scanned again, and collect later ones rarely.

    To be called once the program is loaded, and before it loads data. A scan of the loaded program alone takes 50 ms,
    and the allocations of many connecting clients would trigger several.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, ROUNDS_MAX, ROUNDS_MAX)


def keep_loaded() -> None:
    """Freeze what was loaded since, as the records of 100,000 topics, of which a scan takes half a second.

    They are not scanned for garbage first: what is allocated while they are loaded, and is garbage, is young.
    """
    gc.collect(1)
    gc.freeze()
