# cython: language_level=3
"""Writes and syncs of open files, for JobThreads."""
from libc.stdint cimport int64_t, uint8_t
from posix.uio cimport iovec

from engine._native.jobs.jobs cimport Job, Task


# One write and sync.
cdef struct FileTask:
    Task task
    int fd
    int64_t position
    iovec* parts                                 # of the buffers that the FileJob holds
    Py_ssize_t count
    size_t zeros                                 # to write behind them, so that later syncs do not change the size
    bint syncs
    int write_error                              # errno, 0 for none; not of the zeros
    int sync_error
    bint padded                                  # the zeros were written


cdef class FileJob(Job):
    cdef FileTask file
    cdef Py_buffer* views                        # held until the job was run
    cdef Py_ssize_t views_count
