"""A topic that demands encryption: what the broker, which cannot read entries, takes and refuses."""

from __future__ import annotations

import pytest

from engine._native.format.heads import all_encrypted
from engine.client.base.encryption import Encryptor
from engine.clock import SystemClock
from engine.errors import EncryptionRequiredError
from engine.wire.commands import Command
from tests.kit.key_pairs import x25519_pair
from tests.kit.peer import make_entries

REQUIRED = {"encryption_required": True}


def encrypted(values: list[bytes], first: int = 0) -> list[bytes]:
    encryptor = Encryptor({"alice": x25519_pair(1).public}, SystemClock())
    return [encryptor.encrypt(entry) for entry in make_entries(values, first=first)]


def test_a_block_is_encrypted_when_each_of_its_entries_is_and_nothing_else_is_in_it():
    (plain,), (one, two) = make_entries([b"a"]), encrypted([b"a", b"b"])
    assert all_encrypted(one)
    assert all_encrypted(one + two)
    for block in (plain, one + plain, plain + one, one[:-1], one + b"x", one[:64], bytes(128), one[:-1] + plain):
        assert not all_encrypted(block)


async def test_a_frame_with_one_plain_entry_is_refused_as_a_whole_and_those_behind_it_are_taken(broker, peer, segment):
    await broker.service.change_topic_policies("orders", REQUIRED)
    producer = await peer.producer(segment)
    peer.publish(producer, [*encrypted([b"a"]), *make_entries([b"b"], first=1)])
    for sequence in (0, 1):
        _, refused, _ = await peer.take(Command.SEND_ERROR, producer_id=producer)
        assert (refused["sequence"], refused["code"]) == (sequence, EncryptionRequiredError.code)
    peer.publish(producer, encrypted([b"c"], first=2))
    assert await peer.receipts(producer, 1) == ([2], [0])


async def test_a_living_producer_is_held_to_the_policy_from_the_next_round_on(broker, peer, segment, producer):
    peer.publish(producer, make_entries([b"a"]))
    await peer.receipts(producer, 1)
    await broker.service.change_namespace_policies("public/default", REQUIRED)
    await broker.parts.retention.sweep()
    peer.publish(producer, make_entries([b"b"], first=1))
    with pytest.raises(EncryptionRequiredError):
        await peer.receipts(producer, 1)
    await broker.service.change_topic_policies("orders", {"encryption_required": False})
    await broker.parts.retention.sweep()
    peer.publish(producer, make_entries([b"c"], first=2))
    assert await peer.receipts(producer, 1) == ([2], [1])
