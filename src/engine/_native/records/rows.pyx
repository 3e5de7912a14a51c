# cython: language_level=3, auto_pickle=False
"""Rows of the metadata store's table: what repeats with each write of a commit.

    Writes   evaluates a write on top of the table: a change for each key, and what the write returns
    step_of  the changes as rows of the file, each with its checksum
    Rows     the table: the changes become visible, in order, in their indexes

What is rare is done by the heirs, in `metadata/batch.py` and `metadata/table.py`: demands, sessions, ranges.
"""
cimport cython

from binascii import crc32

from engine.limits import METADATA_KEY_SIZE_MAX

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)

cdef Py_ssize_t SURELY_FITS = METADATA_KEY_SIZE_MAX // 4  # characters of ASCII that need not be measured


cpdef bint fits(key, Py_ssize_t more=0) except -1:
    """Whether a key can be stored for sure, also with `more` characters of ASCII behind it: text that is short."""
    return type(key) is str and 0 < len(<str> key) <= SURELY_FITS - more and PyUnicode_IS_ASCII(key)


def copied_indexes(indexes, check_key, check_keys):
    """A copy of a record's keys in indexes. `check_key(key, what)` checks one that may not fit, `check_keys(keys)` what
    is no text, and returns it as it is to be stored.
    """
    cdef dict copied = {}
    for name, of in indexes.items():
        if not fits(name):
            check_key(name, "index name")
        if type(of) is not str:
            of = check_keys(of)
        elif not fits(of):
            check_key(of, "index key")
        copied[name] = of
    return copied


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Row:
    """A record and its key or keys in each index. `checksum`: of its durable image, once that exists, else -1."""

    def __init__(self, record, indexes, checksum=-1):
        self.record, self.indexes, self.checksum = record, indexes, checksum


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Change:
    """The change of one key from `old` to `new`; None where it does not exist. Each change has its own version."""

    def __init__(self, version, key, Row old, Row new):
        self.version, self.key, self.old, self.new = version, key, old, new


cdef class Rows:
    """The visible state. Loop thread only, except while it is being loaded."""

    def __init__(self, rows, version, SortedItems keys not None, indexes, changes):
        """`rows`: in key order. `keys`: theirs. `indexes`: makes the SortedItems of each index. `changes`: a deque of
        (version, key), to which each change is added.
        """
        cdef Row row
        self.rows, self.sessions, self.version, self.changes = {}, {}, version, changes
        self.keys_in_order, self.indexes_in_order = keys, indexes
        for row in rows:
            self.rows[row.record.key] = row
        for row in self.rows.values():
            self.index(row)

    def apply_all(self, list changes):
        """Make evaluated changes visible, in their order."""
        cdef Change change
        cdef dict rows = self.rows
        for change in changes:
            if change.old is not None:
                self.unindex(change.old)
            elif change.new is not None:
                self.keys_in_order.add(change.key)
            if change.new is not None:
                rows[change.key] = change.new
                self.index(change.new)
            elif change.old is not None:
                self.keys_in_order.remove(change.key)
                del rows[change.key]
            self.version = change.version
            self.changes.append((change.version, change.key))

    cdef int index(self, Row row) except -1:
        record = row.record
        cdef object key = record.key, session = record.stat.session
        cdef SortedItems keys
        if row.indexes:
            for index, of in row.indexes.items():
                keys = self.indexes_in_order[index]
                if isinstance(of, str):
                    keys.add((of, key))
                else:
                    for one in of:
                        keys.add((one, key))
        if session is not None:
            self.sessions.setdefault(session, set()).add(key)
        return 0

    cdef int unindex(self, Row row) except -1:
        record = row.record
        cdef object key = record.key, session = record.stat.session
        cdef SortedItems keys
        if row.indexes:
            for index, of in row.indexes.items():
                keys = self.indexes_in_order[index]
                if isinstance(of, str):
                    keys.remove((of, key))
                else:
                    for one in of:
                        keys.remove((one, key))
        if session is not None and session in self.sessions:
            self.sessions[session].discard(key)
        return 0


cdef class Writes:
    """The changes of one commit. Loop thread only."""

    def __init__(self, Rows table not None, now_ms, record_type, stat_type, absent):
        """`absent`: what a write expects where there must be no record."""
        self.table, self.now_ms, self.record_type, self.stat_type = table, now_ms, record_type, stat_type
        self.absent = absent
        self.changes, self.staged, self.version = [], {}, table.version

    cdef Row present(self, object key):
        """The row of a key behind the changes so far."""
        if key in self.staged:
            return self.staged[key]
        return self.table.rows.get(key)

    def row(self, key):
        """The row of a key behind the changes so far; None: there is none."""
        return self.present(key)

    cpdef change(self, key, Row old, Row new):
        """Note the change of a key."""
        self.version += 1
        self.staged[key] = new
        self.changes.append(Change(self.version, key, old, new))

    def put(self, put):
        """Write one record. Raises what check_state() and check_rest() raise."""
        return self.put_over(put, self.overwritten(put))

    def put_with_sequence(self, put, appended):
        """Write the appended record first, and then the other; neither when that one is refused, as put() does."""
        old = self.overwritten(put)
        record = self.put_sequence(appended.prefix, appended.value, appended.indexes)
        return self.put_over(put, old if put.key != record.key else self.present(put.key)), record

    cdef Row overwritten(self, put):
        """The present row of a key that may be written."""
        cdef Row old = self.present(put.key)
        expected = put.expected
        if old is None:
            if expected is not self.absent:
                self.check_state(put.key, old, expected)
        elif type(expected) is not int or old.record.stat.version != expected:
            self.check_state(put.key, old, expected)
        if put.session is not None or put.also:
            self.check_rest(put)
        return old

    def check_state(self, key, row, expected):
        """Raise unless the key's present state is the expected one; for heirs."""
        raise NotImplementedError

    def check_rest(self, put):
        """Raise unless its session, and the states that it demands of other keys, allow the write; for heirs."""
        raise NotImplementedError

    cpdef put_over(self, put, Row old):
        """Write one record over `old`, its present row, which may be overwritten."""
        cdef object now_ms = self.now_ms, session = put.session, indexes = put.indexes
        cdef object created_ms = now_ms if old is None else old.record.stat.created_ms
        stat = self.stat_type(self.version + 1, created_ms, now_ms, None if session is None else session.id)
        cdef object key = put.key
        self.change(key, old, Row(self.record_type(key, put.value, stat), indexes))
        return stat

    cpdef put_sequence(self, prefix, value, indexes):
        """Write a new record below `prefix`. Its sequence is its version, so no sequence is used twice."""
        cdef object key = f"{prefix}/{self.version + 1:020d}"
        while self.present(key) is not None:
            self.version += 1
            key = f"{prefix}/{self.version + 1:020d}"
        record = self.record_type(key, value, self.stat_type(self.version + 1, self.now_ms, self.now_ms))
        self.change(key, None, Row(record, indexes))
        return record


def checksum_of(key, value, version, created_ms, modified_ms, session, indexes):
    """CRC-32 of all fields of a row. On disk: do not change."""
    facts = f"{key}\n{version}\n{created_ms}\n{modified_ms}\n{session}\n{indexes}\n"
    return crc32(value, crc32((<str> facts).encode()))


def fields_of(Row row not None, encode):
    """A row as one of the file: (key, value, version, created ms, modified ms, session, indexes, checksum); the row
    keeps the last. `encode`: JSON of a dict.
    """
    record = row.record
    key, value, stat = record.key, record.value, record.stat
    indexes = (<bytes> encode(dict(row.indexes))).decode() if row.indexes else None
    version, created_ms, modified_ms, session = stat.version, stat.created_ms, stat.modified_ms, stat.session
    row.checksum = checksum_of(key, value, version, created_ms, modified_ms, session, indexes)
    return key, value, version, created_ms, modified_ms, session, indexes, row.checksum


def step_of(list changes not None, count, digest, encode):
    """The rows that changes put, as fields_of() makes them, the keys that they remove, and the count and the sum of
    checksums behind them, which were `count` and `digest` before. Of each key only what it was, and what it becomes.
    """
    cdef dict before = {}, after = {}
    cdef list put = [], removed = []
    cdef Change change
    cdef Row old, row
    for change in changes:
        if change.key not in before:
            before[change.key] = change.old
        after[change.key] = change.new
    for key, old in before.items():
        if old is not None:
            count -= 1
            digest -= old.checksum  # set when it was put, or loaded
        row = after[key]
        if row is not None:
            count += 1
            put.append(fields_of(row, encode))
            digest += row.checksum
        elif old is not None:
            removed.append(key)
    return put, removed, count, digest
