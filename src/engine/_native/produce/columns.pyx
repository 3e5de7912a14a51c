# cython: language_level=3
"""A column of byte strings given by Python, NumPy or Arrow, readable without the GIL."""
from cpython.buffer cimport PyObject_CheckBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.sequence cimport PySequence_Fast_GET_SIZE, PySequence_Fast_ITEMS
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uintptr_t
from libc.string cimport memset, strncmp

from datetime import datetime, timedelta, timezone

from engine.errors import InvalidArgumentError, MessageTooLargeError

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    bytes PyBytes_FromObject(object o)
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    object PySequence_GetSlice(object o, Py_ssize_t start, Py_ssize_t stop)

# The Arrow C data interface, as in its specification.
cdef extern from "arrow_abi.h" nogil:
    struct ArrowSchema:
        const char* format
        ArrowSchema* dictionary
        void (*release)(ArrowSchema*) noexcept
    struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        const void** buffers
        ArrowArray* dictionary
        void (*release)(ArrowArray*) noexcept
    struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream*, ArrowSchema*) noexcept
        int (*get_next)(ArrowArrayStream*, ArrowArray*) noexcept
        const char* (*get_last_error)(ArrowArrayStream*) noexcept

cdef enum:
    WINDOW = 2048                 # objects gathered at a time: their pointers stay in the first-level cache

cdef object EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
cdef object MILLISECOND = timedelta(milliseconds=1)


cdef class _ArrowChunk:
    """One Arrow array of a column, kept alive as long as the column."""
    cdef View view
    cdef Py_ssize_t stop          # column index where it ends
    cdef ArrowArray array         # owned when array.release is set
    cdef object owner             # or the capsule that owns it

    def __dealloc__(self):
        if self.array.release is not NULL:
            self.array.release(&self.array)


cdef class Column:
    """`count` byte strings. `source` is one of

    * a list, tuple or NumPy object array of bytes, buffers and, where `text` is true, str (taken as UTF-8);
    * a NumPy array of S (zero bytes at the end do not count), V, uint8 of two dimensions (one row each), or,
      where `text` is true, U;
    * any object with the Arrow C data or stream interface that holds binary or string of any width, or
      fixed-size binary.

    Anything else, and a null where `nullable` is false, raises InvalidArgumentError.
    """

    def __cinit__(self, source, *, str name="values", bint text=False, bint nullable=False):
        self.name, self.text, self.nullable = name, text, nullable
        if isinstance(source, (list, tuple)):
            self.items = source if type(source) in (list, tuple) else list(source)
        elif hasattr(source, "__arrow_c_array__"):
            self.take_arrow_array(source)
        elif hasattr(source, "__arrow_c_stream__"):
            self.take_arrow_stream(source)
        elif _is_numpy_array(source):
            self.take_numpy(source)
        else:
            raise InvalidArgumentError(
                f"{name} must be a list, tuple, NumPy array or Arrow array, got {type(source).__name__}")
        if self.items is not None:
            self.count, self.stop = PySequence_Fast_GET_SIZE(self.items), 0
            self.view.kind = POINTERS
            self.view.pointers = <const uint8_t**> PyMem_Malloc(WINDOW * sizeof(void*))
            self.view.sizes = <Py_ssize_t*> PyMem_Malloc(WINDOW * sizeof(Py_ssize_t))
            if self.view.pointers is NULL or self.view.sizes is NULL:
                raise MemoryError()

    def __dealloc__(self):
        if self.view.kind == POINTERS:
            PyMem_Free(self.view.pointers)
            PyMem_Free(self.view.sizes)

    def __len__(self):
        return self.count

    def __getitem__(self, Py_ssize_t i):
        """The bytes of message i, or None for a null."""
        cdef const uint8_t* start = NULL
        cdef Py_ssize_t size
        if not 0 <= i < self.count:
            raise IndexError(i)
        self.window(i)
        size = view_get(&self.view, i, &start)
        return None if size < 0 else (<const char*> start)[:size]

    cdef int take_numpy(self, object array) except -1:
        import numpy as np

        kind, text_hint = array.dtype.kind, "; encode them as bytes" if array.dtype.kind in "UT" else ""
        if kind == "O" or (self.text and kind in "UT"):
            self.items = array.tolist() if array.ndim == 1 else None
        if self.items is not None:
            return 0
        if not (array.ndim == 1 and kind in "SV") and not (array.ndim == 2 and array.dtype == np.uint8):
            raise InvalidArgumentError(
                f"{self.name} must be of dtype S, V or object, or uint8 of two dimensions, "
                f"got {array.ndim}-dimensional {array.dtype}{text_hint}")
        self.owner = array = np.ascontiguousarray(array)
        self.count = self.stop = len(array)
        self.view.kind = PADDED if kind == "S" else FIXED
        self.view.width = array.shape[1] if array.ndim == 2 else array.dtype.itemsize
        self.view.data = <const uint8_t*> <uintptr_t> array.ctypes.data
        return 0

    cdef int take_arrow_array(self, object source) except -1:
        cdef _ArrowChunk chunk = _ArrowChunk()
        schema, chunk.owner = source.__arrow_c_array__()
        self.chunks = []
        take_chunk(
            self, chunk, <ArrowSchema*> PyCapsule_GetPointer(schema, "arrow_schema"),
            <ArrowArray*> PyCapsule_GetPointer(chunk.owner, "arrow_array"))
        return 0

    cdef int take_arrow_stream(self, object source) except -1:
        cdef _ArrowChunk chunk
        cdef ArrowSchema schema
        cdef object capsule = source.__arrow_c_stream__()
        cdef ArrowArrayStream* stream = <ArrowArrayStream*> PyCapsule_GetPointer(capsule, "arrow_array_stream")
        self.chunks = []
        if stream.get_schema(stream, &schema) != 0:
            raise InvalidArgumentError(f"{self.name}: the Arrow stream gives no schema")
        try:
            while True:
                chunk = _ArrowChunk()
                if stream.get_next(stream, &chunk.array) != 0:
                    raise InvalidArgumentError(f"{self.name}: the Arrow stream failed")
                if chunk.array.release is NULL:
                    return 0
                take_chunk(self, chunk, &schema, &chunk.array)
        finally:
            schema.release(&schema)

    cdef Py_ssize_t window(self, Py_ssize_t at) except -1:
        cdef _ArrowChunk chunk
        if self.view.base <= at < self.stop:
            return self.stop
        if self.items is not None:
            self.gather(at)
            return self.stop
        for chunk in self.chunks:
            if at < chunk.stop:
                self.view, self.stop = chunk.view, chunk.stop
                return self.stop
        raise IndexError(at)

    cdef int gather(self, Py_ssize_t at) except -1:
        cdef Py_ssize_t i, n = min(at + WINDOW, self.count) - at
        cdef Py_ssize_t* sizes = self.view.sizes
        cdef const uint8_t** pointers = self.view.pointers
        cdef PyObject** items
        self.view.base = self.stop = 0
        self.held = PySequence_GetSlice(self.items, at, at + n)
        self.copies = None
        if PySequence_Fast_GET_SIZE(self.held) != n:
            raise InvalidArgumentError(f"{self.name} became shorter while they were being read")
        items = PySequence_Fast_ITEMS(self.held)
        for i in range(n):
            if PyBytes_Check(<object> items[i]):
                pointers[i] = <const uint8_t*> PyBytes_AS_STRING(<object> items[i])
                sizes[i] = PyBytes_GET_SIZE(<object> items[i])
            else:
                self.gather_other(at + i, i, <object> items[i])
        self.view.base, self.stop = at, at + n
        return 0

    cdef int gather_other(self, Py_ssize_t i, Py_ssize_t slot, object item) except -1:
        if self.text and PyUnicode_Check(item):
            try:
                self.view.pointers[slot] = <const uint8_t*> PyUnicode_AsUTF8AndSize(item, &self.view.sizes[slot])
                return 0
            except UnicodeEncodeError as error:
                raise InvalidArgumentError(f"{self.name}[{i}] is not valid Unicode: {error}") from None
        if item is None and self.nullable:
            self.view.pointers[slot], self.view.sizes[slot] = NULL, -1
            return 0
        if not PyObject_CheckBuffer(item):
            raise InvalidArgumentError(
                f"{self.name}[{i}] must be {'str or ' if self.text else ''}bytes or a buffer, got "
                f"{type(item).__name__}" + ("; encode it" if isinstance(item, str) else ""))
        cdef bytes copy = PyBytes_FromObject(item)
        if self.copies is None:
            self.copies = []
        self.copies.append(copy)
        self.view.pointers[slot] = <const uint8_t*> PyBytes_AS_STRING(copy)
        self.view.sizes[slot] = PyBytes_GET_SIZE(copy)
        return 0

    cdef Py_ssize_t plain(self, Py_ssize_t size_max):
        cdef Py_ssize_t i, n = self.count if self.items is not None else 0
        cdef PyObject** items
        if n == 0 or PySequence_Fast_GET_SIZE(self.items) < n:
            return 0
        items = PySequence_Fast_ITEMS(self.items)
        for i in range(n):
            if not PyBytes_CheckExact(<object> items[i]) or PyBytes_GET_SIZE(<object> items[i]) > size_max:
                return i
        return n

    cdef int check(self, Py_ssize_t size_max) except -1:
        cdef Py_ssize_t at = self.plain(size_max), stop, bad, size
        cdef const uint8_t* start = NULL
        while at < self.count:
            stop = self.window(at)
            with nogil:
                bad = scan(&self.view, at, stop, size_max, self.nullable)
            if bad >= 0:
                size = view_get(&self.view, bad, &start)
                if size < 0:
                    raise InvalidArgumentError(f"{self.name}[{bad}] is null")
                raise MessageTooLargeError(
                    f"{self.name}[{bad}] is {size:,} bytes, over the limit of {size_max:,}; nothing was sent")
            at = stop
        return 0


# Append one Arrow array to the column; chunk.array or chunk.owner keeps it.
cdef int take_chunk(Column column, _ArrowChunk chunk, const ArrowSchema* schema, const ArrowArray* array) except -1:
    cdef View* view = &chunk.view
    set_format(column.name, view, schema, array)
    view.base, view.first = column.count, array.offset
    if array.null_count != 0 and array.n_buffers > 0 and array.buffers[0] is not NULL:
        view.valid = <const uint8_t*> array.buffers[0]
    if array.length == 0:
        return 0
    column.count += array.length
    chunk.stop = column.count
    column.chunks.append(chunk)
    return 0


# The first message in at..stop that is too large, or null though `nullable` is false; -1 for none.
cdef Py_ssize_t scan(const View* view, Py_ssize_t at, Py_ssize_t stop, Py_ssize_t size_max,
                     bint nullable) noexcept nogil:
    cdef const uint8_t* start
    cdef const int32_t* ends
    cdef int32_t widest = 0
    cdef Py_ssize_t i, size
    if view.kind == FIXED and view.valid is NULL:
        return at if view.width > size_max else -1
    if view.kind == OFFSETS32 and view.valid is NULL:
        ends = view.offsets32 + view.first + at - view.base
        for i in range(stop - at):           # without a way out, so that several are compared at once
            widest = max(widest, ends[i + 1] - ends[i])
        if widest <= size_max:
            return -1
    for i in range(at, stop):
        size = view_get(view, i, &start)
        if size > size_max or (size < 0 and not nullable):
            return i
    return -1


# Point `view` into the buffers of an Arrow array of a supported type.
cdef int set_format(str name, View* view, const ArrowSchema* schema, const ArrowArray* array) except -1:
    cdef const char* form = schema.format
    memset(view, 0, sizeof(View))
    if schema.dictionary is not NULL and form[0] == b"i" and form[1] == 0 and array.dictionary is not NULL:
        set_format(name, view, schema.dictionary, array.dictionary)
        if view.kind == OFFSETS32 and (array.dictionary.null_count == 0 or array.dictionary.buffers[0] is NULL):
            view.kind, view.codes = CODES, <const int32_t*> array.buffers[1]
            view.offsets32 += array.dictionary.offset
            return 0
    if schema.dictionary is NULL and form[0] in b"zu" and form[1] == 0:
        view.kind = OFFSETS32
        view.offsets32 = <const int32_t*> array.buffers[1]
        view.data = <const uint8_t*> array.buffers[2]
    elif schema.dictionary is NULL and form[0] in b"ZU" and form[1] == 0:
        view.kind = OFFSETS64
        view.offsets64 = <const int64_t*> array.buffers[1]
        view.data = <const uint8_t*> array.buffers[2]
    elif strncmp(form, "w:", 2) == 0:
        view.kind, view.width = FIXED, int(form[2:])
        view.data = <const uint8_t*> array.buffers[1]
    elif strncmp(form, "vz", 3) == 0 or strncmp(form, "vu", 3) == 0:
        view.kind = VIEWS
        view.data = <const uint8_t*> array.buffers[1]
        view.buffers = <const uint8_t**> (array.buffers + 2)
    else:
        raise InvalidArgumentError(
            f"{name} must be an Arrow array of binary or string, not of format {(<bytes> form).decode()!r}"
            + (" with a dictionary" if schema.dictionary is not NULL else "") + "; cast it to binary")
    return 0


# NumPy is slow to load, and seldom needed: asked about what is none of Python's own types.
cdef bint _is_numpy_array(object source) except -1:
    import numpy as np

    return isinstance(source, np.ndarray)


cdef bint _is_numpy_integer(object number) except -1:
    import numpy as np

    return isinstance(number, np.integer)


cdef int64_t instant_ms(object instant, str name) except? -1:
    cdef object ms = instant
    cdef int overflow = 1
    cdef int64_t value = 0
    if type(instant) is int:
        value = PyLong_AsLongLongAndOverflow(instant, &overflow)
    if not overflow and value != INT64_MIN:
        return value
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise InvalidArgumentError(f"{name} must be an aware datetime; this one has no time zone")
        ms = (instant - EPOCH) // MILLISECOND
    elif isinstance(instant, bool) or not (isinstance(instant, int) or _is_numpy_integer(instant)):
        raise InvalidArgumentError(
            f"{name} must be an aware datetime or an int of milliseconds, got {type(instant).__name__}")
    if not INT64_MIN < ms <= INT64_MAX:
        raise InvalidArgumentError(f"{name} of {ms} ms does not fit 64 bits")
    return ms


def instants_ms(source):
    """Milliseconds since 1970 as int64[n], the smallest int64 for none: what an entry's event times hold.

    `source` is a list or tuple of aware datetime, int (ms) or None, a NumPy array of datetime64 (any unit; UTC) or
    integers (ms), or an Arrow array of timestamps or integers. InvalidArgumentError for anything else.
    """
    import numpy as np  # slow to load, and seldom needed

    if isinstance(source, (list, tuple)):
        return np.fromiter(
            (INT64_MIN if item is None else instant_ms(item, "event time") for item in source),
            dtype=np.int64, count=len(source))
    if hasattr(source, "type") and hasattr(source, "to_numpy"):
        return _instants_from_arrow(source)
    if not isinstance(source, np.ndarray) or source.ndim != 1 or source.dtype.kind not in "Mi":
        raise InvalidArgumentError(
            "event times must be a list of aware datetime or int (ms), a NumPy array of datetime64 or int64, "
            f"or an Arrow array of timestamps, got {type(source).__name__}")
    if source.dtype.kind == "M":
        source = source.astype("datetime64[ms]", copy=False).view(np.int64)
    return np.ascontiguousarray(source, dtype=np.int64)


def _instants_from_arrow(source):
    """instants_ms() of a pyarrow Array or ChunkedArray of timestamps or integers; a null is no time."""
    if str(source.type).startswith("timestamp"):
        chunked = hasattr(source, "chunks")
        return instants_ms(source.to_numpy() if chunked else source.to_numpy(zero_copy_only=False))
    if not str(source.type).startswith("int"):
        raise InvalidArgumentError(f"event times must be timestamps or int64, got {source.type}")
    return instants_ms(source.to_pylist()) if source.null_count else instants_ms(source.to_numpy())
