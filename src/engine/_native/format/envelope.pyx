# cython: language_level=3, auto_pickle=False
"""Puts the body of an entry into an envelope, and takes it out; the picture of the bytes is in `envelope.pxd`.

What is authenticated with the ciphertext: all that the producer writes into the header but its two checksums, which
follow from the rest, and the envelope. So the body of one entry does not pass under the header of another, and no field
can be changed: not the count, not the sequence ids, not the transaction, not the hashes by which the broker routes.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from engine._native.format.body cimport map_columns, Columns
from engine._native.format.cipher cimport AT_CIPHER, CIPHER_AES_256_GCM, cipher_of, is_foreign
from engine._native.format.entry cimport Entry, foreign_error, seal
from engine._native.format.layout cimport (
    AT_COMPRESSION, AT_PADDING, AT_SIZE, AT_VERSION, ENCRYPTED, PRODUCER_HEADER_SIZE, store16, store32,
)
from libc.stdint cimport uint8_t, uint16_t
from libc.string cimport memcpy, memset

from engine.errors import CorruptionError, InvalidArgumentError, MessageTooLargeError
from engine.limits import ENTRY_SIZE_MAX

cdef size_t SIZE_MAX = ENTRY_SIZE_MAX


# The producer's fields of the header but the checksums, and the envelope.
cdef bytes _authenticated(const uint8_t* p, size_t envelope):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 8 + PRODUCER_HEADER_SIZE - AT_VERSION + envelope)
    cdef uint8_t* to = <uint8_t*> PyBytes_AS_STRING(made)
    memcpy(to, p, 8)
    memcpy(to + 8, p + AT_VERSION, PRODUCER_HEADER_SIZE - AT_VERSION)
    memcpy(to + 8 + PRODUCER_HEADER_SIZE - AT_VERSION, p + HEADER_SIZE, envelope)
    return made


def enclose(bytes data not None, bytes nonce not None, bytes key_id not None, list recipients not None, encrypt):
    """The entry `data`, compressed or not, with its body encrypted.

    `recipients`: (name, method, fingerprint, wrapped key), each bytes but the method, an int. `encrypt(nonce, body,
    authenticated)` returns ciphertext and tag. Raises InvalidArgumentError; MessageTooLargeError above the limit of an
    entry.
    """
    cdef Entry entry = Entry(data)
    cdef Columns columns
    cdef bytes made, sealed
    cdef uint8_t* p
    cdef uint8_t* body
    cdef size_t at = recipients_at(entry.p), plain, size, envelope
    if entry.p[AT_COMPRESSION] & ENCRYPTED:
        raise InvalidArgumentError("an entry to be encrypted must not be encrypted already")
    if len(nonce) != 12 or len(key_id) != 16 or not 1 <= len(recipients) <= RECIPIENTS_MAX:
        raise InvalidArgumentError(
            f"an envelope must have a nonce of 12 bytes, a key id of 16 and 1 to {RECIPIENTS_MAX} recipients, got "
            f"{len(nonce)}, {len(key_id)} and {len(recipients)}")
    envelope = at
    for name, _, fingerprint, wrapped in recipients:
        if len(fingerprint) != 8 or len(name) > 0xFFFF or len(wrapped) > 0xFFFF:
            raise InvalidArgumentError(
                "a recipient must have a fingerprint of 8 bytes, and a name and a wrapped key below 64 KiB")
        envelope += RECIPIENT_HEAD + pad8(len(name) + len(wrapped))
    view = entry.compressed_body()
    plain = len(view)
    envelope += pad8(envelope + plain + TAG_SIZE) - (envelope + plain + TAG_SIZE)
    size = HEADER_SIZE + envelope + plain + TAG_SIZE
    if size > SIZE_MAX:
        raise MessageTooLargeError(f"an encrypted entry must have at most {SIZE_MAX:,} bytes, got {size:,}")
    made = PyBytes_FromStringAndSize(NULL, size)
    p = <uint8_t*> PyBytes_AS_STRING(made)
    body = p + HEADER_SIZE
    memcpy(p, entry.p, HEADER_SIZE)
    memset(body, 0, envelope)
    store32(p + AT_SIZE, <uint32_t> size)
    p[AT_COMPRESSION], p[AT_PADDING] = entry.p[AT_COMPRESSION] | ENCRYPTED, 0
    store32(body + AT_ENVELOPE_SIZE, <uint32_t> envelope)
    body[AT_ENVELOPE_VERSION], body[AT_CIPHER] = ENVELOPE_VERSION, CIPHER_AES_256_GCM
    store16(body + AT_RECIPIENTS, <uint16_t> len(recipients))
    memcpy(body + AT_NONCE, PyBytes_AS_STRING(nonce), 12)
    memcpy(body + AT_KEY_ID, PyBytes_AS_STRING(key_id), 16)
    if at > AT_DELIVER_AT:
        if entry.p[AT_COMPRESSION] or not map_columns(&columns, entry.p, entry.p + HEADER_SIZE):
            raise InvalidArgumentError("an entry with deliver-at times to be encrypted must be whole and uncompressed")
        memcpy(body + AT_DELIVER_AT, columns.deliver_at, at - AT_DELIVER_AT)
    for name, method, fingerprint, wrapped in recipients:
        at = _write_recipient(body, at, name, method, fingerprint, wrapped)
    sealed = encrypt(nonce, view, _authenticated(p, envelope))
    if <size_t> PyBytes_GET_SIZE(sealed) != plain + TAG_SIZE:
        raise InvalidArgumentError(f"the ciphertext must have {plain + TAG_SIZE} bytes, got {len(sealed)}")
    memcpy(body + envelope, PyBytes_AS_STRING(sealed), plain + TAG_SIZE)
    seal(p)
    return made


cdef size_t _write_recipient(
    uint8_t* body, size_t at, bytes name, int method, bytes fingerprint, bytes wrapped
) except 0:
    store16(body + at, <uint16_t> PyBytes_GET_SIZE(name))
    store16(body + at + 2, <uint16_t> PyBytes_GET_SIZE(wrapped))
    body[at + 4] = <uint8_t> method
    memcpy(body + at + 8, PyBytes_AS_STRING(fingerprint), 8)
    memcpy(body + at + RECIPIENT_HEAD, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
    memcpy(body + at + RECIPIENT_HEAD + PyBytes_GET_SIZE(name), PyBytes_AS_STRING(wrapped), PyBytes_GET_SIZE(wrapped))
    return at + RECIPIENT_HEAD + pad8(PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(wrapped))


def enclosed(buffer):
    """(nonce, key id, recipients, authenticated, ciphertext) of an encrypted entry.

    As enclose() takes them; the ciphertext is a copy. Checks the header and the envelope. Raises CorruptionError;
    DecryptionError for one that clients of Apache Pulsar alone can read.
    """
    cdef Entry entry = Entry(buffer)
    cdef const uint8_t* body = entry.p + HEADER_SIZE
    cdef size_t at = recipients_at(entry.p), envelope, name, wrapped
    cdef list recipients = []
    if not entry.p[AT_COMPRESSION] & ENCRYPTED or not envelope_fits(entry.p):
        raise CorruptionError("the envelope of an encrypted entry must fit its body; this one does not")
    if is_foreign(cipher_of(entry.p)):
        raise foreign_error(entry)
    envelope = load32(body + AT_ENVELOPE_SIZE)
    for _ in range(load16(body + AT_RECIPIENTS)):
        name, wrapped = load16(body + at), load16(body + at + 2)
        recipients.append((
            _copy(body + at + RECIPIENT_HEAD, name), body[at + 4], _copy(body + at + 8, 8),
            _copy(body + at + RECIPIENT_HEAD + name, wrapped)))
        at += RECIPIENT_HEAD + pad8(name + wrapped)
    return (
        _copy(body + AT_NONCE, 12), _copy(body + AT_KEY_ID, 16), recipients, _authenticated(entry.p, envelope),
        _copy(body + envelope, entry.size - HEADER_SIZE - envelope))


cdef bytes _copy(const uint8_t* p, size_t size):
    return PyBytes_FromStringAndSize(<const char*> p, size)
