# cython: language_level=3
"""What goes on in the next turn of the loop, once, with all that was told until then.

Appends become durable in groups. A producer answers all of its appends that have landed in one turn with one receipt,
and a commit hears once that its last message is in the log: so what is told something goes on in the next turn, by one
callback for all.
"""
from asyncio import get_running_loop


cdef class Landings:
    """Loop thread only. `go_on(one)` is called for each, in the order in which they were told first."""

    def __init__(self, go_on):
        self.go_on = go_on
        self.due = {}

    cpdef add(self, object one):
        """Have it go on in the next turn."""
        if not self.due:
            get_running_loop().call_soon(self._go_on)
        self.due[one] = None

    def _go_on(self):
        cdef dict due = self.due
        self.due = {}
        ones = iter(due)
        try:
            for one in ones:
                self.go_on(one)
        finally:
            for one in ones:  # one has failed: the others go on all the same
                self.add(one)
