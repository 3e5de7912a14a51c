# cython: language_level=3, auto_pickle=False
"""Received blocks decoded into entries, and batches of their messages.

A MessageBatch is a list of slices of entries, not of messages: a Message is made when it is asked for, and values and
keys are copied out of the entries only for the columns that are read. Index i is found by bisection over the slices'
first indexes.
"""
cimport cython
from engine._native.consume.arrow cimport join_texts, stream_of
from engine._native.format.body cimport Lease, hold
from engine._native.format.entry cimport FAULT_NONE, GIL_FREE_BYTES, Entry, Fault, entry_at, raise_fault, unknown
from engine._native.consume.message cimport Message, Origin, Slice, message_at, new_origin, shown_bytes, whole
from engine._native.consume.opening cimport check_block
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from bisect import bisect_right
from importlib import import_module
from types import GenericAlias

from engine.errors import InvalidArgumentError, UnsupportedError

cdef enum:
    MESSAGES_SHOWN = 10           # of a batch, in a notebook

cdef Origin NOWHERE = new_origin("", None, None, {})


def decode_block(
    payload, uint32_t salt, uint64_t segment_id, int64_t expect_offset=-1, decompress=None, bint copy=False
):
    """The entries of a payload of whole entries back to back, every checksum and every column verified.

    salt: of the file the entries were stamped for. expect_offset: no entry may end at or below it (-1: any).
    decompress(codec, body, raw_size) returns bytes of exactly raw_size; without it a compressed entry raises
    UnsupportedError. The entries keep `payload` alive; copy=True copies it once instead. The payload must not change.
    Raises CorruptionError naming the segment and, where known, the offset.
    """
    cdef Lease lease = hold(payload, copy)
    cdef const uint8_t* p = lease.start
    cdef const uint8_t* end = p + lease.size
    cdef uint64_t next_offset = 0 if expect_offset < 0 else expect_offset
    cdef Fault fault
    cdef Entry entry
    cdef list entries = []
    if lease.size < GIL_FREE_BYTES:
        fault = check_block(lease.start, &p, end, salt, segment_id, &next_offset)
    else:
        with nogil:
            fault = check_block(lease.start, &p, end, salt, segment_id, &next_offset)
    if fault != FAULT_NONE:
        raise_fault(fault, segment_id, next_offset if next_offset or expect_offset >= 0 else unknown())
    p = lease.start
    while p < end:
        entry = entry_at(lease, p)
        entry.open_body(decompress)
        entries.append(entry)
        p += entry.size
    return entries


@cython.final
cdef class MessageBatch:
    """Messages delivered together: a sequence of Message, readable as columns, too.

    slices: Slices, or (entry, start, stop) with half-open message indexes. base: {segment: next offset} delivered
    before, in shared segments per bucket (model/positions.py). make_id(segment_id, offset, positions) is called when an
    id is asked for; positions is a new mapping of that kind, of everything delivered up to and including that message.
    redelivered: {segment: [(first offset, last offset, count)]}. decode(bytes) makes the values; None leaves bytes.
    """

    __class_getitem__ = classmethod(GenericAlias)  # MessageBatch[T], for annotations

    def __cinit__(self):
        self.origin, self.parts = NOWHERE, []

    def __init__(self, str topic not None, slices, base, make_id, redelivered=None, decode=None):
        cdef Slice slice
        self.origin = new_origin(topic, make_id, decode, dict(base))
        self.parts = []
        for item in slices:
            slice = item if isinstance(item, Slice) else Slice(*item)
            if redelivered:
                again = tuple(redelivered.get(slice.entry.segment_id, ()))
                slice = whole(slice.entry, slice.start, slice.stop, again, slice.place)
            if slice.stop > slice.start:
                self.parts.append(slice.part(slice.start, slice.stop, self.origin))
                self.count += slice.stop - slice.start

    cdef Message at(self, Py_ssize_t index):
        cdef Slice slice
        cdef Py_ssize_t rank
        if self.starts is None:
            self._find_starts()
        rank = bisect_right(self.starts, index) - 1
        slice = self.parts[rank]
        return message_at(slice, slice.start + <uint32_t> (index - <Py_ssize_t> self.starts[rank]))

    def _find_starts(self):
        cdef Py_ssize_t start = 0
        cdef Slice slice
        self.starts = []
        for slice in self.parts:
            self.starts.append(start)
            start += slice.stop - slice.start

    cdef MessageBatch between(self, Py_ssize_t start, Py_ssize_t stop):
        cdef Py_ssize_t rank, first, begin, end, count = 0
        cdef Slice slice
        cdef Origin origin = None
        cdef list parts = []
        if self.starts is None:
            self._find_starts()
        for rank in range(max(bisect_right(self.starts, start) - 1, 0), len(self.parts)):
            slice, first = self.parts[rank], self.starts[rank]
            begin, end = max(start - first, 0), min(stop - first, <Py_ssize_t> (slice.stop - slice.start))
            if begin >= end:
                break
            if origin is None:
                origin = new_origin(
                    self.origin.topic, self.origin.make_id, self.origin.decode, self.origin.positions_before(rank))
            parts.append(slice.part(slice.start + <uint32_t> begin, slice.start + <uint32_t> end, origin))
            count += end - begin
        return batch_of(self.origin if origin is None else origin, parts, count)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        cdef Py_ssize_t start, stop, step, at
        if isinstance(index, slice):
            start, stop, step = index.indices(self.count)
            if step != 1:
                raise InvalidArgumentError(f"a batch must be sliced with step 1, got {step}")
            return self.between(start, max(start, stop))
        at = index
        if at < 0:
            at += self.count
        if not 0 <= at < self.count:
            raise IndexError(f"message {index} of a batch of {self.count}")
        return self.at(at)

    def __iter__(self):
        cdef MessageIterator iterator = MessageIterator.__new__(MessageIterator)
        iterator.parts = self.parts
        return iterator

    @property
    def topic(self):
        """The topic that the messages were received from."""
        return self.origin.topic

    @property
    def values(self):
        """A new list of the values: bytes, or the objects that the consumer's schema decodes them to."""
        cdef Slice slice
        cdef uint32_t i
        cdef list found = []
        for slice in self.parts:
            for i in range(slice.start, slice.stop):
                found.append(slice.entry.value_at(i))
        return found if self.origin.decode is None else list(map(self.origin.decode, found))

    @property
    def keys(self):
        """A new list of the keys: bytes, None for keyless messages."""
        cdef Slice slice
        cdef uint32_t i
        cdef list found = []
        for slice in self.parts:
            for i in range(slice.start, slice.stop):
                found.append(slice.entry.key_at(i))
        return found

    @property
    def last_id(self):
        """The id of the last message, None for an empty batch. Acknowledging it acknowledges all before it."""
        return self.at(self.count - 1).id if self.count else None

    @property
    def positions(self):
        """{segment: next offset} of everything delivered up to and including this batch, a new dict. A shared segment
        has one position for each bucket.
        """
        return self.origin.positions_before(len(self.parts))

    @property
    def segments(self):
        """The ids of the segments that the messages are in, ascending."""
        cdef Slice slice
        return sorted({slice.entry.segment_id for slice in self.parts})

    @property
    def slices(self):
        """The Slices of the batch, in order, none empty."""
        return list(self.parts)

    @property
    def size(self):
        """Bytes of all keys and values."""
        cdef Slice slice
        cdef Py_ssize_t size = 0
        for slice in self.parts:
            size += slice.bytes_before(slice.stop) - slice.bytes_before(slice.start)
        return size

    def to_arrow(self, *, bint include_sequence_ids=False):
        """The batch as a pyarrow.Table: key, value, segment, offset, publish_time, event_time, properties.

        One chunk per slice of an entry; key, value and event_time are the entry's own bytes where it was not
        compressed, and keep it alive. A message without properties has an empty map, a keyless one a null key.
        include_sequence_ids: producer_name (string) and sequence_id (int64) as well, behind the others. Raises
        UnsupportedError without pyarrow, CorruptionError when properties are not a map of text to text.
        """
        arrow = _pyarrow("to_arrow()")
        return arrow.RecordBatchReader.from_stream(ArrowStream(self, include_sequence_ids)).read_all()

    @classmethod
    def join_arrow(cls, batches, str column):
        """The "key" or "value" of all messages of several batches, in order, as one pyarrow.Array of binary.

        All bytes are copied once, into one piece, and keep no entry alive; keyless messages have a null key. Raises
        UnsupportedError without pyarrow, InvalidArgumentError for another column and for more than 2 GiB.
        """
        cdef MessageBatch batch
        cdef list slices = []
        if column != "key" and column != "value":
            raise InvalidArgumentError(f"column must be 'key' or 'value', got {column!r}")
        arrow = _pyarrow("join_arrow()")
        for batch in batches:
            slices += batch.parts
        count, nulls, buffers = join_texts(slices, column == "key")
        buffers = [None if part is None else arrow.py_buffer(part) for part in buffers]
        return arrow.Array.from_buffers(arrow.binary(), count, buffers, nulls)

    def __arrow_c_stream__(self, requested_schema=None):
        """Arrow's stream protocol: pyarrow.table(batch), polars.DataFrame(batch) and others accept a batch."""
        return stream_of(self.parts, False)

    def __repr__(self):
        return f"<MessageBatch topic={self.topic!r} messages={self.count} segments={self.segments}>"

    def _repr_html_(self):
        """The first messages as a table, for notebooks."""
        cdef Message message
        cdef Py_ssize_t i
        escape, rows = import_module("html").escape, []
        for i in range(min(self.count, MESSAGES_SHOWN)):
            message = self.at(i)
            cells = (
                shown_bytes(message.key), shown_bytes(message.raw_value()), f"{message.segment_id}:{message.offset}",
                str(message.publish_time), message.shown_properties())
            rows.append("<tr>" + "".join([f"<td>{escape(cell)}</td>" for cell in cells]) + "</tr>")
        more = f", the first {MESSAGES_SHOWN} of them" if self.count > MESSAGES_SHOWN else ""
        head = "".join([f"<th>{name}</th>" for name in ("key", "value", "segment:offset", "published", "properties")])
        return (
            f"<table><caption>{self.count:,} messages of {escape(self.topic)}{more}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        )

    def __copy__(self):
        return self  # immutable

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise TypeError("a MessageBatch is a view of what was received; pickle to_arrow(), or its keys and values")


@cython.final
cdef class ArrowStream:
    """The messages of a batch in Arrow's stream protocol, with the columns that a caller chose."""

    def __cinit__(self, MessageBatch batch not None, bint origin):
        self.parts, self.origin = batch.parts, origin

    def __arrow_c_stream__(self, requested_schema=None):
        """As of a batch."""
        return stream_of(self.parts, self.origin)


cdef object _pyarrow(str asker):
    try:
        return import_module("pyarrow")
    except ImportError:
        raise UnsupportedError(f"{asker} needs pyarrow 17 or later: pip install pyarrow") from None


cdef MessageBatch batch_of(Origin origin, list parts, Py_ssize_t count):
    cdef MessageBatch batch = MessageBatch.__new__(MessageBatch)
    batch.origin, batch.parts, batch.count = origin, parts, count
    return batch


@cython.final
@cython.no_gc
cdef class MessageIterator:
    """One pass over the messages of a batch."""

    def __iter__(self):
        return self

    def __next__(self):
        if self.index == self.stop:
            if self.following == len(self.parts):
                raise StopIteration
            self.slice = self.parts[self.following]
            self.following += 1
            self.index, self.stop = self.slice.start, self.slice.stop
        self.index += 1
        return message_at(self.slice, self.index - 1)
