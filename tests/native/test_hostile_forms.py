"""Entries that lie under good checksums: the broker takes none that it can see through, and consumers name the rest."""

from __future__ import annotations

import pytest

from engine._native.consume.batch import decode_block
from engine._native.format.entry import verify
from engine._native.serve import log
from engine.errors import CorruptionError, MessageTooLargeError
from engine.model.compression import decompressor
from tests.reference.entry_reference import Stamp, stamped
from tests.reference.hostile_entries import COUNT, DAMAGED, FORMS, READABLE, TAKEN_BY_OLDER, Form, flags_are_right, good

SALT, SEGMENT = 77, 3


def named(form: Form) -> str:
    return form.name.replace(" ", "-")


def test_there_are_enough_of_them():
    assert len({form.name for form in FORMS}) == len(FORMS) > 27
    assert flags_are_right()
    assert verify(b"".join(form.make(0) for form in TAKEN_BY_OLDER)) == len(TAKEN_BY_OLDER)


def test_the_good_one_is_taken_and_read():
    assert log.entries(good(7))[0].count == COUNT
    [entry] = decode_block(stamped(good(7), Stamp(SEGMENT, 0, 1, 1, 0, SALT)), SALT, SEGMENT)
    assert [m.value for m in entry.messages()] == [b"hostile-%d" % i for i in range(COUNT)]


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_a_broker_takes_only_what_it_cannot_see_through(form: Form):
    image = form.make(7)
    if form.taken:
        assert log.entries(image)[0].first_sequence == 7
        return
    for data in (image, good(2) + image, bytearray(b"12345678" + image)[8:], memoryview(b"123" + image)[3:]):
        with pytest.raises((CorruptionError, MessageTooLargeError)):
            log.entries(data)


@pytest.mark.parametrize("form", TAKEN_BY_OLDER, ids=named)
def test_what_an_older_broker_took_is_found_again_when_its_log_is_opened(form: Form):
    [claim] = log.entries(form.make(7), False)
    assert claim.first_sequence in (7, 17)


@pytest.mark.parametrize("form", TAKEN_BY_OLDER, ids=named)
def test_a_consumer_reads_it_or_names_the_place(form: Form):
    block = stamped(form.make(7), Stamp(SEGMENT, 100, 1, 1, 0, SALT))
    if form.read == READABLE:
        [entry] = decode_block(block, SALT, SEGMENT, -1, decompressor())
        assert entry.count == COUNT
        return
    assert form.read == DAMAGED
    with pytest.raises(CorruptionError, match=r"segment 3, offset 100"):
        decode_block(block, SALT, SEGMENT, -1, decompressor())


@pytest.mark.parametrize("size", ["a value above the limit", "a key above the limit", "properties above the limit"])
def test_what_is_too_large_is_said_so(size: str):
    [form] = [form for form in FORMS if form.name == size]
    with pytest.raises(MessageTooLargeError, match=r"sequence ids 7 to 11: .* must have at most"):
        log.entries(form.make(7))
