# cython: language_level=3
"""Writes and syncs of open files, on threads of their own that never need the interpreter lock."""
from libc.stdint cimport int64_t, uint8_t
from posix.uio cimport iovec


# One write and sync. Belongs to the thread that runs it, from submit() until it is taken back.
cdef struct Task:
    int fd
    int64_t position
    iovec* parts                                 # of the buffers that the FileJob holds
    Py_ssize_t count
    size_t zeros                                 # to be written behind them, so that later syncs change no size
    bint syncs
    int write_error                              # errno, 0 for none; of the zeros only `padded` is told
    int sync_error
    bint padded
    Task* next                                   # in the queue it is in


cdef class FileJob:
    cdef Task task
    cdef Py_buffer* views                        # lent out until finish()
    cdef Py_ssize_t views_count

    cdef void release(self)


# What the threads share.
cdef struct Shared


cdef class FileThreads:
    cdef Shared* shared                          # NULL after close()
    cdef dict jobs                               # address of the Task -> its FileJob, which keeps it alive
    cdef int threads_max

    cdef int _start_one(self) except -1
