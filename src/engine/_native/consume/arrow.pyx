# cython: language_level=3, auto_pickle=False
"""Messages as Arrow columns: without a copy through the C data interface, or as one column in one piece.

stream_of() gives one record batch per slice of an entry. A record batch is one malloc: its nodes, their buffer lists,
and the columns that are not in the entry already.

    malloc   | nodes, links, buffer lists | numbers | event-time bits | producer names | properties |
                    |
    entry    | ... key offsets, value offsets, keys, values, event times ... |    kept alive by the block

Keys, values and event times are pointers into the entry. The numbers are segment, offset and publish time, and the
sequence id where a reader wants it: an entry holds 32-bit differences to its first one, or nothing where they are
consecutive. A block is freed with the last of its nodes, which are counted: a reader may keep one column and release
the rest, on any thread.

join_texts() gives the keys or the values of many slices as one column instead: sizes first, then every text is copied
once. It serves readers that need one contiguous array, and keeps no entry alive.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from engine._native.format.entry cimport Entry, pad8
from engine._native.consume.message cimport Slice
from engine._native.format.properties cimport Cursor, measure, read_map, read_text
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from engine.errors import CorruptionError, InvalidArgumentError
from engine.limits import ENTRY_MESSAGES_MAX

cdef extern from *:
    """
    #define engine_countdown(n) __sync_sub_and_fetch((n), 1)
    """
    int engine_countdown(int* n) nogil

cdef extern from "Python.h":
    int Py_IsInitialized() noexcept nogil

cdef enum:
    NULLABLE = 2
    NODES = 13  # the record batch, its nine columns, and what the map is made of
    COLUMNS = 7  # without the origin
    ORIGIN_COLUMNS = 2
    PROPERTIES_NODE = 7
    PRODUCER_NODE = 8
    SEQUENCE_NODE = 9
    PAIRS_NODE = 10
    LINKS = 12
    BUFFERS = 29

cdef int64_t NO_TIME = -(<int64_t> 1 << 62) * 2  # INT64_MIN

# A column of nulls, as long as the longest: no bit set in its validity, every offset 0. Never freed.
cdef void* ZEROS = calloc(ENTRY_MESSAGES_MAX + 1, 8)
if ZEROS is NULL:
    raise MemoryError

# The nodes level by level, so that the children of each are neighbours. A record batch without the origin of messages
# (producer and sequence id) has the nodes of those columns, but not as its children.
cdef const char* FORMATS[NODES]
cdef const char* NAMES[NODES]
cdef int64_t FLAGS[NODES]
cdef int CHILDREN[NODES]
cdef int FIRST_CHILD[NODES]
cdef int BUFFER_COUNTS[NODES]
FORMATS[:] = ["+s", "z", "z", "l", "l", "tsm:UTC", "tsm:UTC", "+m", "u", "l", "+s", "u", "u"]
NAMES[:] = [
    "", "key", "value", "segment", "offset", "publish_time", "event_time", "properties", "producer_name", "sequence_id",
    "entries", "key", "value",
]
FLAGS[:] = [
    0, NULLABLE, NULLABLE, NULLABLE, NULLABLE, NULLABLE, NULLABLE, NULLABLE, NULLABLE, NULLABLE, 0, 0, NULLABLE,
]
CHILDREN[:] = [COLUMNS + ORIGIN_COLUMNS, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0]
FIRST_CHILD[:] = [1, 0, 0, 0, 0, 0, 0, PAIRS_NODE, 0, 0, PAIRS_NODE + 1, 0, 0]
BUFFER_COUNTS[:] = [1, 3, 3, 2, 2, 2, 2, 2, 3, 2, 1, 3, 3]


# What nodes share. `alive` counts the nodes not released yet; the last one frees the block and its owner.
cdef struct Block:
    int alive
    PyObject* owner

cdef struct SchemaBlock:
    Block block
    ArrowSchema nodes[NODES]
    ArrowSchema* links[LINKS]

cdef struct ArrayBlock:
    Block block
    ArrowArray nodes[NODES]  # the first is moved out to the reader at once
    ArrowArray* links[LINKS]
    const void* buffers[BUFFERS]

cdef struct Stream:
    bint origin
    Py_ssize_t count
    Py_ssize_t taken
    ArrowArray* batches


cdef void _leave(Block* block) noexcept nogil:
    if engine_countdown(&block.alive) == 0:
        if block.owner is not NULL and Py_IsInitialized():
            with gil:
                Py_DECREF(<object> block.owner)
        free(block)


cdef void _release_schema(ArrowSchema* node) noexcept nogil:
    cdef int64_t i
    for i in range(node.n_children):
        if node.children[i].release is not NULL:
            node.children[i].release(node.children[i])
    node.release = NULL
    _leave(<Block*> node.private_data)


cdef void _release_array(ArrowArray* node) noexcept nogil:
    cdef int64_t i
    for i in range(node.n_children):
        if node.children[i].release is not NULL:
            node.children[i].release(node.children[i])
    node.release = NULL
    _leave(<Block*> node.private_data)


# How many nodes are handed out, and so released.
cdef int _alive(bint origin) noexcept nogil:
    return NODES if origin else NODES - ORIGIN_COLUMNS


cdef int _get_schema(ArrowArrayStream* stream, ArrowSchema* out) noexcept nogil:
    cdef SchemaBlock* all = <SchemaBlock*> calloc(1, sizeof(SchemaBlock))
    cdef Stream* own = <Stream*> stream.private_data
    cdef ArrowSchema* node
    cdef int i, links = 0, child
    if all is NULL:
        return 12  # ENOMEM
    all.block.alive = _alive(own.origin)
    for i in range(NODES):
        node = &all.nodes[i]
        node.format, node.name, node.flags = FORMATS[i], NAMES[i], FLAGS[i]
        node.n_children = CHILDREN[i]
        node.children = &all.links[links]
        for child in range(CHILDREN[i]):
            all.links[links] = &all.nodes[FIRST_CHILD[i] + child]
            links += 1
        node.release = _release_schema
        node.private_data = all
    if not own.origin:
        all.nodes[0].n_children = COLUMNS
    out[0] = all.nodes[0]
    return 0


cdef int _get_next(ArrowArrayStream* stream, ArrowArray* out) noexcept nogil:
    cdef Stream* own = <Stream*> stream.private_data
    if own.taken == own.count:
        memset(out, 0, sizeof(ArrowArray))
        return 0
    out[0] = own.batches[own.taken]
    own.batches[own.taken].release = NULL
    own.taken += 1
    return 0


cdef const char* _get_last_error(ArrowArrayStream* stream) noexcept nogil:
    return NULL


cdef void _release_stream(ArrowArrayStream* stream) noexcept nogil:
    cdef Stream* own = <Stream*> stream.private_data
    cdef Py_ssize_t i
    for i in range(own.count):
        if own.batches[i].release is not NULL:
            own.batches[i].release(&own.batches[i])
    free(own.batches)
    free(own)
    stream.release = NULL


cdef void _drop_capsule(object capsule) noexcept:
    cdef ArrowArrayStream* stream = <ArrowArrayStream*> PyCapsule_GetPointer(capsule, "arrow_array_stream")
    if stream.release is not NULL:
        stream.release(stream)
    free(stream)


cdef object stream_of(list slices, bint origin):
    cdef ArrowArrayStream* stream = <ArrowArrayStream*> calloc(1, sizeof(ArrowArrayStream))
    cdef Stream* own = <Stream*> calloc(1, sizeof(Stream))
    cdef Slice slice
    if own is not NULL:
        own.batches = <ArrowArray*> calloc(len(slices) + 1, sizeof(ArrowArray))
    if stream is NULL or own is NULL or own.batches is NULL:
        free(own)
        free(stream)
        raise MemoryError
    stream.get_schema, stream.get_next, stream.get_last_error = _get_schema, _get_next, _get_last_error
    stream.release = _release_stream
    stream.private_data = own
    own.origin = origin
    capsule = PyCapsule_New(stream, "arrow_array_stream", _drop_capsule)  # from here on it frees all of this
    for slice in slices:
        _build(&own.batches[own.count], slice, origin)
        own.count += 1
    return capsule


# The room that a slice's own columns take besides the nodes: the numbers made for every message, the bits of event
# times, the repeated name of the producer, and the unpacked properties.
cdef struct Sizes:
    size_t numbers
    size_t bits
    size_t names
    uint32_t pairs
    size_t key_bytes
    size_t value_bytes


cdef int _build(ArrowArray* out, Slice slice, bint origin) except -1:
    cdef Entry entry = slice.entry
    cdef size_t n = slice.stop - slice.start
    cdef bytes name = (<str> entry.producer()).encode() if origin else b""
    cdef Sizes sizes
    cdef ArrayBlock* all
    cdef uint8_t* free_room
    memset(&sizes, 0, sizeof(Sizes))
    sizes.numbers = 24 * n
    if origin:
        sizes.numbers += 8 * n
        sizes.names = pad8(4 * (n + 1)) + pad8(n * len(name))
    if entry.columns.event_times is not NULL:
        sizes.bits = pad8((n + 7) // 8)
    if entry.columns.property_offsets is not NULL:
        _measure_properties(slice, &sizes)
    all = <ArrayBlock*> malloc(
        sizeof(ArrayBlock) + sizes.numbers + sizes.bits + sizes.names + _properties_room(&sizes, n))
    if all is NULL:
        raise MemoryError
    _lay_nodes(all, n, origin)
    Py_INCREF(entry)
    all.block.owner = <PyObject*> entry
    free_room = <uint8_t*> (all + 1)
    _point_into_entry(all, slice)
    free_room = _fill_numbers(all, slice, free_room)
    if origin:
        free_room = _fill_sequences(all, slice, free_room)
    free_room = _fill_event_bits(all, slice, free_room)
    if origin:
        free_room = _fill_names(all, name, free_room)
    out[0] = all.nodes[0]
    all.nodes[0].release = NULL
    try:
        _fill_properties(all, slice, &sizes, free_room)
    except:
        out.release(out)
        raise
    return 0


cdef void _lay_nodes(ArrayBlock* all, int64_t n, bint origin) noexcept nogil:
    cdef ArrowArray* node
    cdef int i, child, links = 0, buffers = 0
    memset(all, 0, sizeof(ArrayBlock))
    all.block.alive = _alive(origin)
    for i in range(NODES):
        node = &all.nodes[i]
        node.length = n
        node.n_buffers = BUFFER_COUNTS[i]
        node.buffers = &all.buffers[buffers]
        buffers += BUFFER_COUNTS[i]
        node.n_children = CHILDREN[i]
        node.children = &all.links[links]
        for child in range(CHILDREN[i]):
            all.links[links] = &all.nodes[FIRST_CHILD[i] + child]
            links += 1
        node.release = _release_array
        node.private_data = all
    if not origin:
        all.nodes[0].n_children = COLUMNS


cdef void _point_into_entry(ArrayBlock* all, Slice slice) noexcept:
    cdef Entry entry = slice.entry
    cdef ArrowArray* key = &all.nodes[1]
    cdef ArrowArray* value = &all.nodes[2]
    if entry.columns.key_offsets is NULL:
        key.null_count = key.length
        key.buffers[0] = key.buffers[1] = key.buffers[2] = ZEROS
    else:
        key.buffers[1] = entry.columns.key_offsets + slice.start
        key.buffers[2] = entry.columns.keys
    value.buffers[1] = entry.columns.value_offsets + slice.start
    value.buffers[2] = entry.columns.values


cdef uint8_t* _fill_numbers(ArrayBlock* all, Slice slice, uint8_t* room) noexcept:
    cdef int64_t n = slice.stop - slice.start, i
    cdef int64_t segment = slice.entry.segment_id, offset = slice.entry.first_offset + slice.start
    cdef int64_t published = slice.entry.publish_ms()
    cdef int64_t* segments = <int64_t*> room
    cdef int64_t* offsets = segments + n
    cdef int64_t* times = offsets + n
    for i in range(n):
        segments[i] = segment
    for i in range(n):
        offsets[i] = offset + i
    for i in range(n):
        times[i] = published
    all.nodes[3].buffers[1], all.nodes[4].buffers[1], all.nodes[5].buffers[1] = segments, offsets, times
    return <uint8_t*> (times + n)


cdef uint8_t* _fill_sequences(ArrayBlock* all, Slice slice, uint8_t* room) noexcept:
    cdef Entry entry = slice.entry
    cdef int64_t n = slice.stop - slice.start, i
    cdef int64_t* ids = <int64_t*> room
    for i in range(n):
        ids[i] = <int64_t> entry.sequence_at(slice.start + i)
    all.nodes[SEQUENCE_NODE].buffers[1] = ids
    return <uint8_t*> (ids + n)


# All messages of an entry are of one producer.
cdef uint8_t* _fill_names(ArrayBlock* all, bytes name, uint8_t* room) noexcept:
    cdef ArrowArray* node = &all.nodes[PRODUCER_NODE]
    cdef const char* text = PyBytes_AS_STRING(name)
    cdef int32_t size = len(name)
    cdef int32_t* ends = <int32_t*> room
    cdef int64_t i
    room += pad8(4 * (node.length + 1))
    ends[0] = 0
    for i in range(node.length):
        memcpy(room + ends[i], text, size)
        ends[i + 1] = ends[i] + size
    node.buffers[1], node.buffers[2] = ends, room
    return room + pad8(<size_t> ends[node.length])


cdef uint8_t* _fill_event_bits(ArrayBlock* all, Slice slice, uint8_t* room) noexcept:
    cdef ArrowArray* node = &all.nodes[6]
    cdef const int64_t* times = slice.entry.columns.event_times
    cdef size_t size = pad8((node.length + 7) // 8)
    cdef int64_t i
    if times is NULL:
        node.null_count = node.length
        node.buffers[0] = node.buffers[1] = ZEROS
        return room
    times += slice.start
    memset(room, 0, size)
    for i in range(node.length):
        if times[i] == NO_TIME:
            node.null_count += 1
        else:
            room[i >> 3] |= 1 << (i & 7)
    node.buffers[0] = room
    node.buffers[1] = times
    return room + size


cdef size_t _properties_room(Sizes* sizes, size_t n) noexcept nogil:
    cdef size_t offsets = pad8(4 * (n + 1)) + 2 * pad8(4 * (<size_t> sizes.pairs + 1))
    return offsets + pad8(sizes.key_bytes) + pad8(sizes.value_bytes)


cdef int _measure_properties(Slice slice, Sizes* sizes) except -1:
    cdef const int32_t* offsets = slice.entry.columns.property_offsets
    cdef const uint8_t* maps = slice.entry.columns.properties
    cdef uint32_t i
    for i in range(slice.start, slice.stop):
        if not measure(maps + offsets[i], offsets[i + 1] - offsets[i],
                       &sizes.pairs, &sizes.key_bytes, &sizes.value_bytes):
            _refuse(slice, i)
    return 0


cdef int _refuse(Slice slice, uint32_t i) except -1:
    offset = slice.entry.first_offset + i
    raise CorruptionError(
        f"segment {slice.entry.segment_id}, offset {offset}: the properties are not a map of text to text"
    )


# A column of texts that is being filled; `count` texts so far.
cdef struct TextColumn:
    int32_t* offsets
    uint8_t* bytes
    int64_t count


cdef uint8_t* _text_column(ArrowArray* node, TextColumn* column, uint32_t pairs, size_t size, uint8_t* room) noexcept:
    node.length = pairs
    column.offsets = <int32_t*> room
    column.offsets[0] = 0
    column.bytes = room + pad8(4 * (<size_t> pairs + 1))
    column.count = 0
    node.buffers[1], node.buffers[2] = column.offsets, column.bytes
    return column.bytes + pad8(size)


cdef int _fill_properties(ArrayBlock* all, Slice slice, Sizes* sizes, uint8_t* room) except -1:
    cdef ArrowArray* maps = &all.nodes[PROPERTIES_NODE]
    cdef int32_t* ends = <int32_t*> room
    cdef TextColumn keys, values
    cdef uint32_t i
    all.nodes[PAIRS_NODE].length = sizes.pairs
    room += pad8(4 * (maps.length + 1))
    room = _text_column(&all.nodes[PAIRS_NODE + 1], &keys, sizes.pairs, sizes.key_bytes, room)
    _text_column(&all.nodes[PAIRS_NODE + 2], &values, sizes.pairs, sizes.value_bytes, room)
    if slice.entry.columns.property_offsets is NULL:
        maps.buffers[1] = ZEROS
        return 0
    maps.buffers[1] = ends
    ends[0] = 0
    for i in range(slice.start, slice.stop):
        if not _fill_map(slice, i, &keys, &values):
            _refuse(slice, i)
        ends[i - slice.start + 1] = <int32_t> keys.count
    return 0


cdef bint _fill_map(Slice slice, uint32_t i, TextColumn* keys, TextColumn* values) noexcept:
    cdef const int32_t* offsets = slice.entry.columns.property_offsets
    cdef Cursor at
    cdef int pairs
    at.p = slice.entry.columns.properties + offsets[i]
    at.end = slice.entry.columns.properties + offsets[i + 1]
    if at.p == at.end:
        return True
    pairs = read_map(&at)
    for _ in range(pairs):
        if not _append_text(keys, &at) or not _append_text(values, &at):
            return False
    return True


cdef bint _append_text(TextColumn* column, Cursor* at) noexcept:
    cdef const uint8_t* text = NULL
    cdef uint32_t size = 0
    if not read_text(at, &text, &size):
        return False
    memcpy(column.bytes + column.offsets[column.count], text, size)
    column.offsets[column.count + 1] = column.offsets[column.count] + size
    column.count += 1
    return True


cdef tuple join_texts(list slices, bint keys):
    cdef size_t count = 0, nulls = 0, size = 0, at = 0
    cdef const int32_t* offsets
    cdef Slice slice
    for slice in slices:
        offsets = _text_offsets(slice, keys)
        count += slice.stop - slice.start
        if offsets is NULL:
            nulls += slice.stop - slice.start
        else:
            size += offsets[slice.stop] - offsets[slice.start]
    if size > INT32_MAX:
        raise InvalidArgumentError(f"an Arrow column of binary must have at most {INT32_MAX:,} bytes, got {size:,}")
    ends = PyBytes_FromStringAndSize(NULL, 4 * (count + 1))
    texts = PyBytes_FromStringAndSize(NULL, size)
    valid = bytes((count + 7) // 8) if nulls else None
    cdef int32_t* end = <int32_t*> PyBytes_AS_STRING(ends)
    end[0] = 0
    for slice in slices:
        _append_texts(slice, keys, end, <uint8_t*> PyBytes_AS_STRING(texts))
        if valid is not None and _text_offsets(slice, keys) is not NULL:
            _set_bits(<uint8_t*> PyBytes_AS_STRING(valid), at, slice.stop - slice.start)
        at += slice.stop - slice.start
        end += slice.stop - slice.start
    return count, nulls, [valid, ends, texts]


cdef const int32_t* _text_offsets(Slice slice, bint keys) noexcept:
    return slice.entry.columns.key_offsets if keys else slice.entry.columns.value_offsets


# `end` points to the end of the text before; the ends of this slice's texts follow.
cdef void _append_texts(Slice slice, bint keys, int32_t* end, uint8_t* texts) noexcept:
    cdef const int32_t* offsets = _text_offsets(slice, keys)
    cdef const uint8_t* source = slice.entry.columns.keys if keys else slice.entry.columns.values
    cdef Py_ssize_t i, n = slice.stop - slice.start
    cdef int32_t shift = end[0]
    if offsets is NULL:
        for i in range(n):
            end[i + 1] = shift
        return
    offsets += slice.start
    memcpy(texts + shift, source + offsets[0], offsets[n] - offsets[0])
    shift -= offsets[0]
    for i in range(n):
        end[i + 1] = offsets[i + 1] + shift


cdef void _set_bits(uint8_t* bits, size_t start, size_t count) noexcept:
    cdef size_t i
    for i in range(start, start + count):
        bits[i >> 3] |= 1 << (i & 7)
