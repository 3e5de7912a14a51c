"""`bulk_memory`: how the memory of this process is managed while much is read and sent in large buffers.

An import makes buffers of a megabyte for every megabyte that it reads: blocks of text, entries, frames. The allocator
of the GNU library gives such buffers back to the system when they are freed, and the next ones are made of new pages,
each cleared by the system when it is first written to: a tenth of the processor time of an import.

Python's collector of cycles runs after so many new objects, and looks at all that there are, of which an import has
made the fewest: a fortieth.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

# As in malloc.h.
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_THRESHOLD = -3

KEPT_BYTES = 64 << 20  # more than that is given back; about what an import has in flight
LARGE_BYTES = 16 << 20  # a larger buffer is a mapping of its own
STEP_BYTES = 1 << 20  # a heap grows by


@contextmanager
def bulk_memory() -> Iterator[None]:
    """Freed memory is kept from now on, also behind the block; objects that exist are not collected inside it."""
    keep_freed_memory()
    frozen = gc.get_freeze_count() > 0  # by the caller: its objects stay so
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()


def keep_freed_memory() -> bool:
    """Of this process, from now on; False where the allocator has no such setting."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    wanted = ((_MMAP_THRESHOLD, LARGE_BYTES), (_TRIM_THRESHOLD, KEPT_BYTES), (_TOP_PAD, STEP_BYTES))
    return all(set_option(option, size) == 1 for option, size in wanted)
