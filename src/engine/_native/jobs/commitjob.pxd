# cython: language_level=3
"""One commit of a SQLite database, for JobThreads."""
from libc.stdint cimport int64_t

from engine._native.jobs.jobs cimport Job, Task

ctypedef int (*OfStatement)(void* statement) noexcept nogil
ctypedef int (*BindNumber)(void* statement, int column, int64_t number) noexcept nogil
ctypedef int (*BindBytes)(void* statement, int column, const void* data, int size, void* free) noexcept nogil
ctypedef int (*OfDatabase)(void* database) noexcept nogil
ctypedef const char* (*TextOfDatabase)(void* database) noexcept nogil


# SQLite's functions, an open database, and its prepared statements.
cdef struct Sqlite:
    OfStatement step
    OfStatement reset
    BindNumber bind_int64
    BindBytes bind_text
    BindBytes bind_blob
    OfDatabase get_autocommit
    TextOfDatabase errmsg
    void* database
    void* begin
    void* put
    void* remove
    void* summary
    void* commit
    void* rollback


cdef struct Text:
    const char* data                             # NULL: SQL's NULL
    int size


# The columns of a row of `records`.
cdef struct RowTask:
    Text key
    Text value
    Text indexes
    int64_t version
    int64_t created_ms
    int64_t modified_ms
    int64_t session
    bint in_session
    int64_t checksum


cdef enum:
    SUMMARY_COLUMNS = 4
    MESSAGE_SIZE = 256


cdef struct CommitTask:
    Task task
    Sqlite* sqlite
    RowTask* rows
    Py_ssize_t rows_count
    Text* removed
    Py_ssize_t removed_count
    int64_t[SUMMARY_COLUMNS] summary
    int mark                                     # descriptor to write `mark_image` to after the commit; -1: none
    int64_t mark_position
    const char* mark_image
    Py_ssize_t mark_size
    bint mark_failed
    int code                                     # SQLite's, 0 for none
    bint committing                              # COMMIT itself failed
    char[MESSAGE_SIZE] message


cdef class Statements:
    cdef Sqlite sqlite


cdef class CommitJob(Job):
    cdef CommitTask work
    cdef Statements statements
    cdef object lent                             # what the task points into

    cdef int _lend_mark(self, object mark) except -1
