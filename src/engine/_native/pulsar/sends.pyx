# cython: language_level=3, auto_pickle=False
"""The SEND that most are, read from its frame in one go; and its receipt.

    total u32 | size u32 | Command, a Send | 0x0e01 | CRC32C u32 | size u32 | MessageMetadata | batch

A broker that has waited for a client finds nothing of its own in the processor's caches any more, so what is run for a
frame costs by how much of it there is, and the general way (`pulsar/payloads.py`), of two messages of Protocol Buffers
and a dozen functions, took longer than making the entry. Only a plain batch is read here: not compressed, in no
transaction, without chunks, encryption, schema version or time of delivery, with the checksum that it says. Of anything
else, and of what is wrong, nothing is said here: it goes the general way, which tells what it is.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from engine._native.format.body cimport Lease, hold
from engine._native.format.crc32c cimport crc32c_update
from engine._native.pulsar.fields cimport (
    Field, Reading, bytes_size, load32_big, next_field, number_size, put32_big, put_number, put_varint,
)
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from engine.limits import ENTRY_MESSAGES_MAX

cdef enum:
    HEAD_SIZE = 8                 # of a frame: its size, and the command's
    SUMMED = 6                    # bytes of the magic and the checksum
    TYPE_FIELD = 1                # of a Command
    SEND = 6                      # the type, and the field
    RECEIPT = 7

cdef uint64_t COUNT_MAX = ENTRY_MESSAGES_MAX


cdef bint _read_send(Reading* at, Plain* plain) noexcept nogil:
    cdef Field field
    cdef int found
    while True:
        found = next_field(at, &field)
        if found <= 0:
            return found == 0
        if field.kind != 0:
            return False
        if field.tag == 1:
            plain.producer = field.number
        elif field.tag == 2:
            plain.sequence = field.number
        elif field.tag == 6:
            plain.highest = field.number
        elif field.tag != 3:      # how many messages, which the metadata say, too
            return False


cdef bint _read_command(Reading* at, Plain* plain) noexcept nogil:
    cdef Field kind, field
    cdef Reading inside
    if next_field(at, &kind) != 1 or kind.tag != TYPE_FIELD or kind.kind != 0 or kind.number != SEND:
        return False
    if next_field(at, &field) != 1 or field.tag != SEND or field.kind != 2 or at.p != at.end:
        return False
    inside.p, inside.end = field.data, field.data + field.size
    return _read_send(&inside, plain)


cdef bint _read_metadata(Reading* at, Plain* plain) noexcept nogil:
    cdef Field field
    cdef int found
    while True:
        found = next_field(at, &field)
        if found < 0:
            return False
        if found == 0:
            return 1 <= plain.count <= COUNT_MAX
        if field.tag == 1:        # the producer's name
            if field.kind != 2:
                return False
        elif field.kind != 0:
            return False
        elif field.tag == 2:
            plain.first = field.number
        elif field.tag == 11:
            plain.count = field.number
        elif field.tag == 8:
            if field.number != 0:
                return False
        elif field.tag != 3 and field.tag != 9 and field.tag != 24:  # publish time, size, highest sequence id
            return False


# Where the payload begins in a frame, and the batch in the payload; 0: it is no plain batch.
cdef size_t _read_frame(const uint8_t* p, size_t size, Plain* plain, size_t* batch) noexcept nogil:
    cdef Reading at
    cdef size_t command, payload, metadata
    if size < HEAD_SIZE:
        return 0
    command = load32_big(p + 4)
    if command > size - HEAD_SIZE:
        return 0
    payload = HEAD_SIZE + command
    if size - payload < SUMMED + 4 or p[payload] != 0x0e or p[payload + 1] != 0x01:
        return 0
    at.p, at.end = p + HEAD_SIZE, p + payload
    if not _read_command(&at, plain):
        return 0
    metadata = load32_big(p + payload + SUMMED)
    if metadata > size - payload - SUMMED - 4:
        return 0
    batch[0] = SUMMED + 4 + metadata
    at.p, at.end = p + payload + SUMMED + 4, p + payload + batch[0]
    if not _read_metadata(&at, plain):
        return 0
    if crc32c_update(0, p + payload + SUMMED, size - payload - SUMMED) != load32_big(p + payload + 2):
        return 0
    return payload


def plain_send(frame not None):
    """(producer's number, sequence id, highest sequence id, sequence id in the metadata, count of messages, payload,
    batch) of the frame of a SEND of a plain batch; None for any other frame. `frame`: a memoryview of all of it.
    """
    cdef Lease lease = hold(frame)
    cdef Plain plain
    cdef size_t payload, batch = 0
    memset(&plain, 0, sizeof(Plain))
    with nogil:
        payload = _read_frame(lease.start, lease.size, &plain, &batch)
    if not payload:
        return None
    content = frame[payload:]
    highest = max(plain.highest, plain.sequence)
    return plain.producer, plain.sequence, highest, plain.first, <uint32_t> plain.count, content, content[batch:]


def receipt_frame(uint64_t producer, uint64_t sequence, uint64_t highest, uint64_t ledger, uint64_t entry,
                  int64_t partition=-1):
    """The frame of a SEND_RECEIPT. `ledger`, `entry`: of the message's id. `partition`: below 0 for none."""
    cdef size_t place = number_size(1, ledger) + number_size(2, entry)
    cdef size_t inside = number_size(1, producer) + number_size(2, sequence) + number_size(4, highest), command
    cdef bytes made
    cdef uint8_t* at
    if partition >= 0:
        place += number_size(3, <uint64_t> partition)
    inside += bytes_size(3, place)
    command = number_size(TYPE_FIELD, RECEIPT) + bytes_size(RECEIPT, inside)
    made = PyBytes_FromStringAndSize(NULL, HEAD_SIZE + command)
    at = <uint8_t*> PyBytes_AS_STRING(made)
    at = put32_big(put32_big(at, <uint32_t> command + 4), <uint32_t> command)
    at = put_number(at, TYPE_FIELD, RECEIPT)
    at = put_varint(put_varint(at, RECEIPT << 3 | 2), inside)
    at = put_number(put_number(at, 1, producer), 2, sequence)
    at = put_varint(put_varint(at, 3 << 3 | 2), place)
    at = put_number(put_number(at, 1, ledger), 2, entry)
    if partition >= 0:
        at = put_number(at, 3, <uint64_t> partition)
    put_number(at, 4, highest)
    return made
