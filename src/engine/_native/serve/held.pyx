# cython: language_level=3
"""Writes of transactions without an operation record: gathered by transaction, and held for a commit behind them."""


cdef class HeldWrites:
    """The writes of one transaction without a record, in the order in which they came. A commit that holds them takes
    those of its connection.
    """

    def __init__(self, number):
        self.number = number
        self.writes = []

    cpdef add(self, writer):
        """A write that is in the log, or about to be."""
        if self.writes and writer.sends is not self.writes[0].sends:
            self.mixed = True
        self.writes.append(writer)

    # The writes of a connection: `writes` itself where it has no others.
    cdef list theirs(self, object sends):
        if self.mixed:
            return [write for write in self.writes if write.sends is sends]
        return self.writes if self.writes and self.writes[0].sends is sends else []

    def count(self, sends):
        """The number of writes of a connection."""
        return len(self.theirs(sends))

    def of(self, sends):
        """The writes of a connection."""
        return list(self.theirs(sends))

    def take(self, sends):
        """Remove and return the writes of a connection."""
        cdef list taken = self.theirs(sends)
        if taken is self.writes:
            self.writes = []
        elif self.mixed:
            self.writes = [write for write in self.writes if write.sends is not sends]
        return taken


cdef class Gathering:
    """The writes of all transactions that no record says yet. Loop thread only."""

    def __init__(self, Py_ssize_t parts_max):
        """`parts_max`: writes in one record."""
        self.gathered = {}
        self.parts_max = parts_max

    cpdef gather(self, number, writer):
        """Record a write together with others of the transaction in this turn of the loop.

        The writer is called in a later turn.
        """
        cdef HeldWrites found = self.gathered.get(number)
        if found is None or (len(found.writes) >= self.parts_max and not found.held):
            found = self.gathered[number] = self.begun(number)
        found.add(writer)

    def begun(self, number):
        """The HeldWrites of a transaction, which are recorded at the end of this turn; for heirs."""
        raise NotImplementedError
