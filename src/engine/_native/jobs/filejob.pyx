# cython: language_level=3, auto_pickle=False
"""Writes and syncs of open files, for JobThreads.

`storage` decides which files there are, what is written where, and what an error means. It passes a descriptor in, and
keeps it open until the job is taken back.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t, uint8_t
from posix.types cimport off_t
from posix.uio cimport iovec
from posix.unistd cimport pwrite

from engine._native.jobs.jobs cimport Job, Task

cdef extern from "<sys/uio.h>" nogil:
    ssize_t pwritev(int fd, const iovec* parts, int count, off_t position)

cdef extern from "sync.h" nogil:
    int engine_fdatasync(int fd)
    void engine_drop_cached(int fd, off_t start, off_t size, bint writes)

cdef enum:
    PARTS_MAX = 1024                             # IOV_MAX
    ZEROS_SIZE = 262144

ZEROS_MAX = ZEROS_SIZE

cdef uint8_t[ZEROS_SIZE] _ZEROS                  # never written


def drop_cached(int fd, int64_t start, int64_t end, bint writes):
    """Drop clean pages from `start` up to `end`, 0: the end of the file, from the system's cache, where it can.

    `writes`: dirty ones are written out first. Waits for that, without the interpreter lock. It is advice: no errors.
    """
    if start < 0 or (end and end <= start):
        raise ValueError(f"end must be 0 or above start, which must not be negative, got {start} and {end}")
    with nogil:
        engine_drop_cached(fd, start, end - start if end else 0, writes)


cdef int _write_all(FileTask* task) noexcept nogil:
    """Write every part; errno, 0 for none. Changes `parts` where a write was short."""
    cdef iovec* part = task.parts
    cdef iovec* end = task.parts + task.count
    cdef ssize_t done
    while part < end:
        done = pwritev(task.fd, part, <int> min(end - part, PARTS_MAX), task.position)
        if done < 0 and errno == EINTR:
            continue
        if done <= 0:
            return errno if done < 0 else EIO
        task.position += done
        while part < end and <size_t> done >= part.iov_len:
            done -= part.iov_len
            part += 1
        if part < end:
            part.iov_base = <uint8_t*> part.iov_base + done
            part.iov_len -= done
    return 0


cdef void _run(Task* base) noexcept nogil:
    cdef FileTask* task = <FileTask*> base
    task.write_error = _write_all(task)
    if task.write_error:
        return
    if task.zeros:
        task.padded = pwrite(task.fd, _ZEROS, task.zeros, task.position) == <ssize_t> task.zeros
    if task.syncs and engine_fdatasync(task.fd) < 0:    # never retried, EINTR included: pages may be lost
        task.sync_error = errno or EIO


cdef class FileJob(Job):
    """Write `buffers`, none of them empty, from `position` on, then zeros, then sync; stop at the first error.

    A failed write of the zeros is no error. After a failed write of the buffers any part of them may be in the file.
    """

    def __cinit__(self, int fd, buffers, int64_t position, size_t zeros, bint syncs):
        cdef Py_ssize_t i, count = len(buffers)
        self.task = &self.file.task
        self.task.run = _run
        self.file.fd = fd
        self.file.position = position
        self.file.zeros = min(zeros, <size_t> ZEROS_SIZE)
        self.file.syncs = syncs
        self.views = <Py_buffer*> PyMem_Calloc(max(count, 1), sizeof(Py_buffer))
        self.file.parts = <iovec*> PyMem_Calloc(max(count, 1), sizeof(iovec))
        if self.views == NULL or self.file.parts == NULL:
            raise MemoryError
        for i in range(count):
            PyObject_GetBuffer(buffers[i], &self.views[i], PyBUF_SIMPLE)
            self.views_count += 1
            self.file.parts[i].iov_base = self.views[i].buf
            self.file.parts[i].iov_len = self.views[i].len
        self.file.count = count

    def __dealloc__(self):
        self.release()
        PyMem_Free(self.views)
        PyMem_Free(self.file.parts)

    cdef void release(self):
        cdef Py_ssize_t i
        for i in range(self.views_count):
            PyBuffer_Release(&self.views[i])
        self.views_count = 0

    cdef bint failed(self):
        return self.file.write_error or self.file.sync_error

    @property
    def padded(self):
        """Whether the zeros were written."""
        return bool(self.file.padded)

    @property
    def write_error(self):
        """The errno of the write, 0 for none."""
        return self.file.write_error

    @property
    def sync_error(self):
        """The errno of the sync, 0 for none."""
        return self.file.sync_error
