# cython: language_level=3, auto_pickle=False
"""A sorted set with cheap changes at any size: a list of short sorted chunks, and beside them the latest additions and
removals.

An item is sorted into a chunk at the next read of its range, or when many were added after it: most items are removed
again before that, and are never searched for.
"""
from itertools import islice
from types import GenericAlias

from cpython.object cimport Py_LT, PyObject_RichCompareBool


cdef Py_ssize_t left_of(list items, object item) except -1:
    """The index of the first that is not smaller than `item`: `bisect_left`."""
    cdef Py_ssize_t low = 0, high = len(items), middle
    while low < high:
        middle = (low + high) // 2
        if PyObject_RichCompareBool(items[middle], item, Py_LT):
            low = middle + 1
        else:
            high = middle
    return low


cdef class SortedItems:
    """Distinct items in order. What is in chunks, and what is not yet, makes no difference to a caller."""

    def __cinit__(self, *_):
        self.chunks, self.lasts, self.added, self.removed = [], [], {}, {}

    def __init__(self, items, Py_ssize_t chunk_max, Py_ssize_t unsorted_max, Py_ssize_t at_once):
        """`items`: sorted and distinct. `chunk_max`: items of a chunk. `unsorted_max`: additions, and as many removals,
        that wait for their chunk; when they are more, the oldest `at_once` are sorted.
        """
        self.chunk_max, self.unsorted_max, self.at_once = chunk_max, unsorted_max, at_once
        source = iter(items)
        while chunk := list(islice(source, max(chunk_max // 2, 1))):
            self.chunks.append(chunk)
            self.lasts.append(chunk[len(chunk) - 1])

    __class_getitem__ = classmethod(GenericAlias)  # for annotations

    def __len__(self):
        cdef Py_ssize_t size = len(self.added) - len(self.removed)
        for chunk in self.chunks:
            size += len(<list> chunk)
        return size

    cpdef add(self, item):
        """Add an item that is absent."""
        if self.removed and item in self.removed:
            del self.removed[item]
            return
        self.added[item] = None
        if len(self.added) > self.unsorted_max:
            self.sort_some()

    cpdef remove(self, item):
        """Remove an item that is present."""
        if item in self.added:
            del self.added[item]
            return
        self.removed[item] = None
        if len(self.removed) > self.unsorted_max:
            self.sort_some()

    def between(self, start, end, limit=None):
        """The items with start <= item < end, in order, at most `limit`."""
        cdef list found = [], chunk, removed = [], added = []
        cdef Py_ssize_t i, low, high, most = -1 if limit is None else max(<Py_ssize_t> limit, 0)
        for item in self.removed:
            if start <= item < end:
                removed.append(item)
        for item in self.added:
            if start <= item < end:
                added.append(item)
        if self.removed or self.added:
            self.sort_these(removed, added)
        for i in range(left_of(self.lasts, start), len(self.chunks)):
            chunk = self.chunks[i]
            low, high = left_of(chunk, start), left_of(chunk, end)
            found += chunk[low:high]
            if high < len(chunk) or 0 <= most <= len(found):
                break
        return found if most < 0 else found[:most]

    cdef int sort_some(self) except -1:
        """Sort the oldest pending changes into the chunks."""
        return self.sort_these(list(islice(self.removed, self.at_once)), list(islice(self.added, self.at_once)))

    cdef int sort_these(self, list removed, list added) except -1:
        removed.sort()
        for item in removed:
            del self.removed[item]
            self.take_out(item)
        added.sort()
        for item in added:
            del self.added[item]
            self.put_in(item)
        self.arranged()
        return 0

    def arranged(self):
        """Pending changes were sorted into the chunks; for heirs."""

    cdef int put_in(self, object item) except -1:
        cdef list chunk
        cdef Py_ssize_t at, half
        if not self.chunks:
            self.chunks.append([item])
            self.lasts.append(item)
            return 0
        at = min(left_of(self.lasts, item), len(self.lasts) - 1)
        chunk = self.chunks[at]
        chunk.insert(left_of(chunk, item), item)
        self.lasts[at] = chunk[len(chunk) - 1]
        if len(chunk) > self.chunk_max:
            half = len(chunk) // 2
            self.chunks[at:at + 1] = [chunk[:half], chunk[half:]]
            self.lasts[at:at + 1] = [chunk[half - 1], chunk[len(chunk) - 1]]
        return 0

    cdef int take_out(self, object item) except -1:
        cdef Py_ssize_t at = left_of(self.lasts, item)
        cdef list chunk = self.chunks[at]
        del chunk[left_of(chunk, item)]
        if chunk:
            self.lasts[at] = chunk[len(chunk) - 1]
        else:
            del self.chunks[at]
            del self.lasts[at]
        return 0
