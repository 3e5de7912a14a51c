# cython: language_level=3
"""Threads that do blocking work without the interpreter lock."""
from cpython.ref cimport PyObject


# The work of one job. From submit() until take() it belongs to the threads.
cdef struct Task:
    void (*run)(Task*) noexcept nogil
    Task* next                                   # in the waiting queue, or the list of those done
    PyObject* job                                # that has this task; from submit() until take(), a reference


cdef class Job:
    cdef Task* task                              # the first field of the struct that the kind of job keeps
    cdef object done                             # done(None, its error or None), on the loop; None: not asked for

    # Return the buffers.
    cdef void release(self)
    # Whether check() may raise.
    cdef bint failed(self)
    # Call done().
    cdef int tell(self) except -1


# What the threads share.
cdef struct Shared


cdef class JobThreads:
    cdef Shared* shared                          # NULL after close()
    cdef int threads_max

    cdef int _start_one(self) except -1
