"""Ids of messages that a consumer of several topics received: the vector of every topic goes with them."""

from __future__ import annotations

import pickle
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineError, InvalidArgumentError
from engine.model.positions import MessageId, TopicPositions

PLACES = st.dictionaries(st.integers(0, 2**63 - 1), st.integers(0, 2**62), max_size=4)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VECTORS = st.dictionaries(NAMES, st.builds(TopicPositions, st.integers(0, 2**62), PLACES), max_size=4)


@given(PLACES, VECTORS)
def test_bytes_keep_the_vectors_of_all_topics(positions, vectors):
    ident = MessageId(3, 7, positions, "topic://a/b/c", vectors)
    again = MessageId.from_bytes(ident.to_bytes())
    assert again == ident
    assert (again.positions, again.vectors) == (positions, vectors)
    assert again.to_bytes() == ident.to_bytes()


def test_an_id_of_one_topic_has_the_bytes_it_always_had():
    ident = MessageId(3, 7, {3: 8}, "topic://a/b/c")
    assert ident.to_bytes()[:2] == b"\x01M"
    assert ident.vectors == {}
    assert MessageId.from_bytes(ident.to_bytes()).vectors == {}


def test_the_bytes_of_version_3():
    """Users keep them: do not change."""
    ident = MessageId(1, 2, {1: 3}, "t", {"t": TopicPositions(5, {1: 3}), "u": TopicPositions(6, {0: 4, 1 << 62: 9})})
    assert ident.to_bytes().hex() == GOLDEN
    assert pickle.loads(pickle.dumps(ident)).vectors == ident.vectors


GOLDEN = (
    "034d40c1019f0100000000000000020000000000000001000100000074010000000000000003000000000000000200000001"
    "0005000000000000000100000074010000000000000003000000000000000100060000000000000002000000750000000000"
    "000000040000000000000000000000000000400900000000000000"
)


@given(st.binary(max_size=60), st.integers(1, 80))
def test_what_was_cut_or_changed_is_refused(noise, cut):
    data = bytes.fromhex(GOLDEN)
    for damaged in (data[:-cut], data + noise + b"x", data[: cut % len(data)] + noise):
        if damaged != data:
            with pytest.raises(InvalidArgumentError):
                MessageId.from_bytes(damaged)


def test_announced_topics_that_are_not_there_are_refused():
    body = bytes.fromhex(GOLDEN)[6:]
    at = body.index(struct.pack("<I", 2), 22)
    body = body[:at] + struct.pack("<I", 2**32 - 1) + body[at + 4 :]
    with pytest.raises(EngineError):
        MessageId.from_bytes(struct.pack("<BcI", 3, b"M", zlib.crc32(body)) + body)
