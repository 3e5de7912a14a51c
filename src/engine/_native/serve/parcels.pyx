# cython: language_level=3
"""What each of several consumers is sent of blocks of entries."""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from engine._native.format.body cimport Lease
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy

cdef enum:
    SIZE_MIN = 64
    PIECE_COPIED_MAX = 16384      # pieces smaller than this, on average, are copied together: a view costs more


@cython.final
cdef class Parcels:
    """Of the blocks of one call; the memory stays for the next. Consumers are small numbers."""

    def __dealloc__(self):
        PyMem_Free(self.pieces)
        PyMem_Free(self.parcels)

    cdef int begin(self, uint32_t consumers) except -1:
        """Forget everything; there are so many consumers."""
        PyMem_Free(self.parcels)
        self.count, self.pieces_count = 0, 0
        self.parcels = <Parcel*> PyMem_Calloc(consumers + 1, sizeof(Parcel))
        if self.parcels is NULL:
            raise MemoryError()
        self.count = consumers
        return 0

    cdef int pack(self, uint32_t owner, uint32_t block, Py_ssize_t start, Py_ssize_t stop, int64_t messages) except -1:
        """These bytes of a block, in which so many messages are for it, go to the owner."""
        cdef Parcel* parcel = &self.parcels[owner]
        cdef Piece* last = &self.pieces[parcel.last_piece] if parcel.pieces else NULL
        parcel.size += stop - start
        parcel.messages += messages
        if last is not NULL and last.block == block and last.stop == start:
            last.stop = stop
        else:
            self.append(owner, block, start, stop)
        return 0

    cdef int append(self, uint32_t owner, uint32_t block, Py_ssize_t start, Py_ssize_t stop) except -1:
        cdef Piece* piece
        if self.pieces_count == self.pieces_size:
            piece = <Piece*> PyMem_Realloc(self.pieces, max(SIZE_MIN, 2 * self.pieces_size) * sizeof(Piece))
            if piece is NULL:
                raise MemoryError()
            self.pieces, self.pieces_size = piece, max(SIZE_MIN, 2 * self.pieces_size)
        piece = &self.pieces[self.pieces_count]
        piece.owner, piece.block, piece.start, piece.stop = owner, block, start, stop
        self.parcels[owner].last_piece = self.pieces_count
        self.parcels[owner].pieces += 1
        self.pieces_count += 1
        return 0

    cdef list deliver(self, list blocks, list leases, dict skips):
        """(consumer, payload, messages, skip) for each that gets anything; `leases` are of the blocks.

        Many small pieces are copied into one buffer, the others are views of their blocks.
        """
        cdef uint32_t i
        cdef Parcel* parcel
        cdef Piece* piece
        cdef Lease lease
        cdef list payloads = [None] * self.count, parcels = [], views = [memoryview(block) for block in blocks]
        for i in range(self.count):
            parcel = &self.parcels[i]
            if parcel.pieces > 1 and parcel.size <= <Py_ssize_t> parcel.pieces * PIECE_COPIED_MAX:
                payloads[i] = PyBytes_FromStringAndSize(NULL, parcel.size)
                parcel.at = PyBytes_AS_STRING(payloads[i])
            elif parcel.pieces:
                payloads[i] = []
        for i in range(self.pieces_count):
            piece = &self.pieces[i]
            parcel = &self.parcels[piece.owner]
            if parcel.at is not NULL:
                lease = leases[piece.block]
                memcpy(parcel.at, lease.start + piece.start, piece.stop - piece.start)
                parcel.at += piece.stop - piece.start
            else:
                (<list> payloads[piece.owner]).append(views[piece.block][piece.start:piece.stop])
        for i in range(self.count):
            parcel = &self.parcels[i]
            if parcel.pieces:
                payload = payloads[i][0] if parcel.pieces == 1 else payloads[i]
                parcels.append((i, payload, parcel.messages, skips.get(i)))
        return parcels
