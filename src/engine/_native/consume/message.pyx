# cython: language_level=3, auto_pickle=False
"""Messages: lazy views of one place in an entry, and what those of one delivery share."""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport Py_TPFLAGS_HAVE_GC, PyTypeObject, newfunc
from engine._native.format.entry cimport Entry, instant
from libc.stdint cimport int32_t, uint32_t, uint64_t

from types import GenericAlias

from engine.errors import CorruptionError, InvalidArgumentError

cdef enum:
    BYTES_SHOWN = 48              # of a key or a value, in a repr
    PROPERTIES_SHOWN = 200        # characters


@cython.final
cdef class Origin:
    """What the messages of one delivery share."""

    cdef dict positions_before(self, Py_ssize_t rank):
        cdef Py_ssize_t at
        if self.before is None or self.walked > rank:
            self.before = self.base.copy()
            self.walked = 0
        for at in range(self.walked, rank):
            place, next_offset = <tuple> self.steps[at]
            self.before[place] = next_offset
        self.walked = rank
        return self.before.copy()


cdef Origin new_origin(str topic, object make_id, object decode, dict base):
    cdef Origin origin = Origin.__new__(Origin)
    origin.topic = topic
    origin.make_id = make_id
    origin.decode = decode
    origin.base = base
    origin.steps = []
    return origin


@cython.final
cdef class Slice:
    """Messages start..stop (half open) of one entry.

    `redelivered` holds (first offset, last offset, count), inclusive, for messages whose redelivery count is not 0.
    Raises InvalidArgumentError for a range outside the entry, UnsupportedError for an entry that is still compressed.
    """

    def __init__(self, Entry entry not None, uint32_t start=0, stop=None, redelivered=None):
        cdef uint32_t end = entry.count if stop is None else stop
        cdef Slice made
        if not start <= end <= entry.count:
            raise InvalidArgumentError(
                f"a slice must lie within the messages of an entry of {entry.count}, got {start}..{end}")
        entry.open_body(None)
        made = whole(entry, start, end, tuple(redelivered) if redelivered else None, entry.segment_id)
        self.entry, self.start, self.stop, self.redelivered = entry, start, end, made.redelivered
        self.place = made.place
        self.value_offsets, self.values = made.value_offsets, made.values

    cdef Slice part(self, uint32_t start, uint32_t stop, Origin origin):
        cdef Slice part = Slice.__new__(Slice)
        part.entry = self.entry
        part.start = start
        part.stop = stop
        part.redelivered = self.redelivered
        part.place = self.place
        part.value_offsets = self.entry.columns.value_offsets
        part.values = self.entry.columns.values
        part.origin = origin
        part.rank = len(origin.steps)
        origin.steps.append((self.place, self.entry.first_offset + stop))
        return part

    cdef size_t bytes_before(self, uint32_t i) noexcept nogil:
        cdef size_t size = self.value_offsets[i]
        if self.entry.columns.key_offsets is not NULL:
            size += self.entry.columns.key_offsets[i]
        return size

    cdef Py_ssize_t fitting(self, uint32_t start, Py_ssize_t messages, Py_ssize_t bytes) noexcept:
        cdef Py_ssize_t low = 0, high = min(messages, <Py_ssize_t> (self.stop - start)), middle
        cdef size_t before = self.bytes_before(start)
        if bytes < 0 or self.bytes_before(start + high) - before <= <size_t> bytes:
            return high
        while low < high:  # the answer is in low..high
            middle = (low + high + 1) // 2
            if self.bytes_before(start + middle) - before <= <size_t> bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def __len__(self):
        return self.stop - self.start

    def __repr__(self):
        return f"<Slice {self.start}..{self.stop} of {self.entry!r}>"


cdef Slice whole(Entry entry, uint32_t start, uint32_t stop, object redelivered, uint64_t place):
    cdef Slice slice = Slice.__new__(Slice)
    slice.entry = entry
    slice.start = start
    slice.stop = stop
    slice.redelivered = redelivered
    slice.place = place
    slice.value_offsets = entry.columns.value_offsets
    slice.values = entry.columns.values
    return slice


cdef Py_ssize_t parts_outside(
    list parts, object ranges, Entry entry, uint32_t start, uint32_t stop, object redelivered, uint64_t place
) except -1:
    cdef uint64_t first, last, base = entry.first_offset
    cdef Py_ssize_t found = 0
    for first, last in ranges:
        if last < base + start or first >= base + stop:
            continue
        if first > base + start:
            parts.append(whole(entry, start, first - base, redelivered, place))
            found += first - base - start
        start = min(last + 1 - base, <uint64_t> stop)
    if start < stop:
        parts.append(whole(entry, start, stop, redelivered, place))
        found += stop - start
    return found


@cython.final
@cython.freelist(64)
@cython.no_gc
cdef class Message:
    """One received message. Its key, value and other parts are made when they are read."""

    __class_getitem__ = classmethod(GenericAlias)  # Message[T], for annotations

    def __init__(self):
        raise TypeError("messages are received, not made")

    @property
    def value(self):
        """The value: bytes, or the object that the consumer's schema decodes them to; raises what the schema raises."""
        cdef const int32_t* at = self.slice.value_offsets + self.index
        cdef bytes value = PyBytes_FromStringAndSize(<const char*> self.slice.values + at[0], at[1] - at[0])
        return value if self.slice.origin.decode is None else self.slice.origin.decode(value)

    @property
    def encoded_value(self):
        """The value as it is stored: bytes, also where the consumer has a schema."""
        cdef const int32_t* at = self.slice.value_offsets + self.index
        return PyBytes_FromStringAndSize(<const char*> self.slice.values + at[0], at[1] - at[0])

    @property
    def key(self):
        """The key as bytes, or None for a keyless message. b"" is a key."""
        return self.slice.entry.key_at(self.index)

    @property
    def id(self):
        """The message's id: its place, and the positions delivered up to and including it."""
        cdef Origin origin = self.slice.origin
        cdef uint64_t offset = self.slice.entry.first_offset + self.index
        positions = origin.positions_before(self.slice.rank)
        positions[self.slice.place] = offset + 1
        return origin.make_id(self.slice.entry.segment_id, offset, positions)

    @property
    def topic(self):
        """The topic that the message was received from."""
        return self.slice.origin.topic

    @property
    def properties(self):
        """A new dict of the properties, str to str. Raises CorruptionError for a map of anything else."""
        return self.slice.entry.properties_at(self.index)

    @property
    def publish_time(self):
        """When the broker stored the message: an aware datetime in UTC, in whole milliseconds."""
        return self.slice.entry.published_at()

    @property
    def event_time(self):
        """The time that the producer gave the message, an aware datetime in UTC, or None.

        Raises UnsupportedError for a time outside the years of datetime; `event_time_ms` returns any.
        """
        ms = self.slice.entry.event_time_ms_at(self.index)
        return None if ms is None else instant(ms)

    @property
    def event_time_ms(self):
        """The time that the producer gave the message, in milliseconds since 1970, or None."""
        return self.slice.entry.event_time_ms_at(self.index)

    @property
    def sequence_id(self):
        """The sequence id that the producer gave the message."""
        return self.slice.entry.sequence_at(self.index)

    @property
    def producer_name(self):
        """The name of the producer that sent the message."""
        return self.slice.entry.producer()

    @property
    def redelivery_count(self):
        """How often the message was delivered before this delivery."""
        cdef uint64_t offset
        if self.slice.redelivered is None:
            return 0
        offset = self.slice.entry.first_offset + self.index
        for first, last, count in self.slice.redelivered:
            if first <= offset <= last:
                return count
        return 0

    @property
    def size(self):
        """Bytes of key and value together."""
        return self.slice.bytes_before(self.index + 1) - self.slice.bytes_before(self.index)

    @property
    def segment_id(self):
        """The id of the segment that holds the message."""
        return self.slice.entry.segment_id

    @property
    def offset(self):
        """The message's ordinal in its segment, from 0."""
        return self.slice.entry.first_offset + self.index

    def __repr__(self):
        return (
            f"<Message topic={self.topic!r} segment={self.segment_id} offset={self.offset} "
            f"key={shown_bytes(self.key)} value={shown_bytes(self.raw_value())} properties={self.shown_properties()}>"
        )

    cdef bytes raw_value(self):
        cdef const int32_t* at = self.slice.value_offsets + self.index
        return PyBytes_FromStringAndSize(<const char*> self.slice.values + at[0], at[1] - at[0])

    cdef str shown_properties(self):
        try:
            return shown_text(repr(self.properties), PROPERTIES_SHOWN)
        except CorruptionError:
            return "(damaged)"

    def __copy__(self):
        return self  # immutable

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise TypeError("a Message is a view of what was received; pickle its value, key, properties or id.to_bytes()")


cdef str shown_bytes(object data):
    if data is None or len(data) <= BYTES_SHOWN:
        return repr(data)
    return f"{data[:BYTES_SHOWN]!r}… ({len(data):,} bytes)"


cdef str shown_text(str text, Py_ssize_t longest):
    return text if len(text) <= longest else text[:longest] + "…"


cdef Message message_at(Slice slice, uint32_t index):
    cdef Message message = Message.__new__(Message)
    message.slice = slice
    message.index = index
    return message


# Replaces Message's tp_new, so that Message.__new__() cannot make a message without a slice to read from.
cdef object _refuse_new(object kind, object args, object keywords):
    raise TypeError("messages are received, not made")


(<PyTypeObject*> Message).tp_new = <newfunc> _refuse_new


cdef int _check_unseen() except -1:
    if (<PyTypeObject*> Message).tp_flags & Py_TPFLAGS_HAVE_GC:
        raise AssertionError("the garbage collector must not track Message: making one could run it")
    return 0


_check_unseen()
