"""The collector of cyclic garbage, as a process wants it that serves: it stops everything else while it looks."""

from __future__ import annotations

import gc

YOUNG_MAX = 20_000  # more objects than before, and the youngest are looked at
ROUNDS_MAX = 20  # of those, and the next older are


def collect_rarely() -> None:
    """What there is now is never looked at again, and what comes seldom.

    To be called once the program is loaded. Looking at that alone takes 50 ms, and what a crowd of clients brings along
    would have all of it looked at several times while they come.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, ROUNDS_MAX, ROUNDS_MAX)
