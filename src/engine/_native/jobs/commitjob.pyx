# cython: language_level=3, auto_pickle=False
"""One commit of a SQLite database, for JobThreads.

Python's `sqlite3` releases the interpreter lock and takes it back several times for each statement, which costs more
than the statements of a small commit, and as much again where the loop is busy. `metadata` decides which library and
database this is, and what an error means: it passes addresses in, which stay valid until the job is taken back.

One job is one transaction: begin, remove rows, put rows, update the summary, commit. After the commit, never before,
the mark is written to its own file: it states that this commit is durable.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t
from libc.string cimport strncpy
from posix.unistd cimport pwrite

from engine._native.jobs.jobs cimport Job, Task

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    OK = 0
    FULL = 13
    DONE = 101
    PRIMARY = 0xFF                               # of an extended code

FUNCTIONS = ("step", "reset", "bind_int64", "bind_text", "bind_blob", "get_autocommit", "errmsg")
STATEMENTS = ("begin", "put", "remove", "summary", "commit", "rollback")


cdef int _bind_text(Sqlite* sqlite, void* statement, int column, Text* text) noexcept nogil:
    return sqlite.bind_text(statement, column, text.data, text.size, NULL)  # NULL binds NULL


cdef int _bind_row(Sqlite* sqlite, void* statement, RowTask* row) noexcept nogil:
    cdef int code = _bind_text(sqlite, statement, 1, &row.key)
    code |= sqlite.bind_blob(statement, 2, row.value.data, row.value.size, NULL)
    code |= sqlite.bind_int64(statement, 3, row.version)
    code |= sqlite.bind_int64(statement, 4, row.created_ms)
    code |= sqlite.bind_int64(statement, 5, row.modified_ms)
    if row.in_session:
        code |= sqlite.bind_int64(statement, 6, row.session)
    else:
        code |= sqlite.bind_text(statement, 6, NULL, 0, NULL)
    code |= _bind_text(sqlite, statement, 7, &row.indexes)
    return code | sqlite.bind_int64(statement, 8, row.checksum)


cdef int _step(Sqlite* sqlite, void* statement) noexcept nogil:
    """Run a statement that has no rows; its code, 0 for none."""
    cdef int code = sqlite.step(statement)
    sqlite.reset(statement)
    return OK if code == DONE else code


cdef int _change(CommitTask* task) noexcept nogil:
    """Everything up to the commit; the code of what failed, 0 for none."""
    cdef Sqlite* sqlite = task.sqlite
    cdef Py_ssize_t i
    cdef int code = _step(sqlite, sqlite.begin)
    if code:
        return code
    for i in range(task.removed_count):
        code = _bind_text(sqlite, sqlite.remove, 1, &task.removed[i]) or _step(sqlite, sqlite.remove)
        if code:
            return code
    for i in range(task.rows_count):
        code = _bind_row(sqlite, sqlite.put, &task.rows[i]) or _step(sqlite, sqlite.put)
        if code:
            return code
    for i in range(SUMMARY_COLUMNS):
        code = sqlite.bind_int64(sqlite.summary, <int> i + 1, task.summary[i])
        if code:
            return code
    return _step(sqlite, sqlite.summary)


cdef void _run(Task* base) noexcept nogil:
    cdef CommitTask* task = <CommitTask*> base
    cdef Sqlite* sqlite = task.sqlite
    task.code = _change(task)
    if not task.code:
        task.code = _step(sqlite, sqlite.commit)
        task.committing = task.code != OK
    if not task.code:
        if task.mark >= 0:  # after the commit, never before: it states that the commit is durable
            task.mark_failed = pwrite(task.mark, task.mark_image, task.mark_size, task.mark_position) != task.mark_size
        return
    strncpy(task.message, sqlite.errmsg(sqlite.database), MESSAGE_SIZE - 1)
    # After any other failed commit the content of the file is unknown: it is left as it is.
    if (not task.committing or task.code & PRIMARY == FULL) and not sqlite.get_autocommit(sqlite.database):
        _step(sqlite, sqlite.rollback)


cdef class Statements:
    """The addresses of SQLite's functions (by FUNCTIONS) and of one database's prepared statements (by STATEMENTS)."""

    def __cinit__(self, size_t database, dict functions, dict statements):
        self.sqlite.database = <void*> database
        self.sqlite.step = <OfStatement> <size_t> functions["step"]
        self.sqlite.reset = <OfStatement> <size_t> functions["reset"]
        self.sqlite.bind_int64 = <BindNumber> <size_t> functions["bind_int64"]
        self.sqlite.bind_text = <BindBytes> <size_t> functions["bind_text"]
        self.sqlite.bind_blob = <BindBytes> <size_t> functions["bind_blob"]
        self.sqlite.get_autocommit = <OfDatabase> <size_t> functions["get_autocommit"]
        self.sqlite.errmsg = <TextOfDatabase> <size_t> functions["errmsg"]
        self.sqlite.begin = <void*> <size_t> statements["begin"]
        self.sqlite.put = <void*> <size_t> statements["put"]
        self.sqlite.remove = <void*> <size_t> statements["remove"]
        self.sqlite.summary = <void*> <size_t> statements["summary"]
        self.sqlite.commit = <void*> <size_t> statements["commit"]
        self.sqlite.rollback = <void*> <size_t> statements["rollback"]


cdef int _lend(str text, Text* to) except -1:
    cdef Py_ssize_t size = 0
    to.data = PyUnicode_AsUTF8AndSize(text, &size)
    to.size = <int> size
    return 0


cdef int _lend_row(tuple fields, RowTask* row) except -1:
    cdef bytes value
    key, value, version, created_ms, modified_ms, session, indexes, checksum = fields
    _lend(key, &row.key)
    row.value.data = PyBytes_AS_STRING(value)
    row.value.size = <int> PyBytes_GET_SIZE(value)
    row.version, row.created_ms, row.modified_ms, row.checksum = version, created_ms, modified_ms, checksum
    row.in_session = session is not None
    if session is not None:
        row.session = session
    if indexes is not None:
        _lend(indexes, &row.indexes)
    return 0


cdef class CommitJob(Job):
    """Remove rows, put rows, write the summary, commit: all or nothing.

    `put`: (key, value, version, created ms, modified ms, session or None, indexes or None, checksum) each; `removed`:
    keys; `summary`: version, rows, digest, checksum. `mark`: (descriptor, position, bytes) to write when the commit is
    durable, or None.
    """

    def __cinit__(
        self,
        Statements statements not None,
        list put not None,
        list removed not None,
        tuple summary not None,
        object mark = None,
    ):
        cdef Py_ssize_t i
        if len(summary) != SUMMARY_COLUMNS:
            raise ValueError(f"the summary must have {SUMMARY_COLUMNS} numbers, got {len(summary)}")
        self.task = &self.work.task
        self.task.run = _run
        self.work.sqlite = &statements.sqlite
        self.statements = statements
        self.lent = (tuple(put), tuple(removed), mark)
        self._lend_mark(mark)
        self.work.rows = <RowTask*> PyMem_Calloc(max(len(put), 1), sizeof(RowTask))
        self.work.removed = <Text*> PyMem_Calloc(max(len(removed), 1), sizeof(Text))
        if self.work.rows == NULL or self.work.removed == NULL:
            raise MemoryError
        for i in range(len(put)):
            _lend_row(put[i], &self.work.rows[i])
        for i in range(len(removed)):
            _lend(removed[i], &self.work.removed[i])
        for i in range(SUMMARY_COLUMNS):
            self.work.summary[i] = summary[i]
        self.work.rows_count = len(put)
        self.work.removed_count = len(removed)

    cdef int _lend_mark(self, object mark) except -1:
        cdef bytes image
        self.work.mark = -1
        if mark is not None:
            descriptor, position, image = mark
            self.work.mark, self.work.mark_position = descriptor, position
            self.work.mark_image, self.work.mark_size = PyBytes_AS_STRING(image), PyBytes_GET_SIZE(image)
        return 0

    cdef void release(self):
        self.lent = None

    def __dealloc__(self):
        PyMem_Free(self.work.rows)
        PyMem_Free(self.work.removed)

    @property
    def code(self):
        """SQLite's code of the failure, 0 for none."""
        return self.work.code

    @property
    def committing(self):
        """Whether COMMIT itself failed: then, unless the disk was full, the outcome is unknown."""
        return bool(self.work.committing)

    @property
    def message(self):
        """SQLite's text for the failure."""
        return self.work.message.decode(errors="replace")

    @property
    def mark_failed(self):
        """Whether the commit is durable, but writing the mark after it failed."""
        return bool(self.work.mark_failed)
