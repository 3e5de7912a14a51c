# cython: language_level=3
"""The payloads that one call of route() sends, one for each consumer.

    block    | entry A1 | entry A2 | entry B1 | entry A3 |
    pieces   | A: 0..A2            | B        | A        |      neighbours of one consumer are one piece

The pieces are noted in the order of the log. In the end a parcel of one piece is a view of its block; one of many small
pieces is copied into one buffer, since a memoryview and its part of a vectored write cost more than the copy; one of
large pieces is a list of views.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from engine._native.format.body cimport Lease
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy

cdef enum:
    SIZE_MIN = 64
    PIECE_COPIED_MAX = 16384      # bytes; pieces smaller than this on average are copied into one buffer


@cython.final
cdef class Parcels:
    """The parcels of one call; their memory is kept for the next. Consumers are small numbers."""

    def __dealloc__(self):
        PyMem_Free(self.pieces)
        PyMem_Free(self.parcels)

    cdef int begin(self, uint32_t consumers) except -1:
        PyMem_Free(self.parcels)
        self.count, self.pieces_count = 0, 0
        self.parcels = <Parcel*> PyMem_Calloc(consumers + 1, sizeof(Parcel))
        if self.parcels is NULL:
            raise MemoryError()
        self.count = consumers
        return 0

    cdef int pack(self, uint32_t owner, uint32_t block, Py_ssize_t start, Py_ssize_t stop, int64_t messages) except -1:
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
