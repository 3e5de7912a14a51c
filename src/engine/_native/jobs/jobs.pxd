# cython: language_level=3
"""Threads that do blocking work and never need the interpreter lock."""


# What a thread does. Belongs to the thread that runs it, from submit() until it is taken back.
cdef struct Task:
    void (*run)(Task*) noexcept nogil
    Task* next                                   # in the queue it is in


cdef class Job:
    cdef Task* task                              # the beginning of what the kind of job keeps

    cdef void release(self)


# What the threads share.
cdef struct Shared


cdef class JobThreads:
    cdef Shared* shared                          # NULL after close()
    cdef dict jobs                               # address of the Task -> its Job, which keeps it alive
    cdef int threads_max

    cdef int _start_one(self) except -1
