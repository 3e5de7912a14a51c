"""What a broker cannot read is refused by an error of the protocol, and nothing of it is stored: chunks, encryption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import engine
from engine._native.format.crc32c import crc32c
from engine.limits import MESSAGE_SIZE_MAX
from engine.pulsar.messages import MessageMetadata, command
from tests.pulsar.conftest import EARLIEST, WAIT_MS, is_quiet
from tests.pulsar.raw import Raw, greeted

_KEY = b"\x0a\x01k\x12\x01v"  # an EncryptionKeys: a name and the wrapped key
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"encryption_keys": [_KEY]}, "encrypted end to end"),
    ({"uuid": "u", "chunks": 3}, "one of 3 chunks"),
    ({"marker": 21}, "markers"),
]


def send_with(sequence: int, **fields: Any) -> bytes:
    """The frame of a SEND whose metadata say more."""
    metadata = MessageMetadata(producer_name=b"p", sequence=sequence, publish_time=1, **fields).SerializeToString()
    summed = len(metadata).to_bytes(4, "big") + metadata + b"opaque"
    payload = b"\x0e\x01" + crc32c(summed).to_bytes(4, "big") + summed
    head = command("send", producer=1, sequence=sequence, count=1)
    return b"".join(((4 + len(head) + len(payload)).to_bytes(4, "big"), len(head).to_bytes(4, "big"), head, payload))


def make_keys(secret: Path, public: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, plain))
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))


def test_a_message_in_chunks_is_refused_and_those_around_it_are_not(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, chunking_enabled=True)
    producer.send(b"before")
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"x" * (2 * MESSAGE_SIZE_MAX))
    producer.send(b"behind")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert [consumer.receive(WAIT_MS).data() for _ in range(2)] == [b"before", b"behind"]
    assert is_quiet(consumer)


def test_a_producer_that_encrypts_is_refused(client: pulsar.Client, topic: str, tmp_path: Path) -> None:
    secret, public = tmp_path / "secret.pem", tmp_path / "public.pem"
    make_keys(secret, public)
    reader = pulsar.CryptoKeyReader(str(public), str(secret))
    with pytest.raises(pulsar.NotAllowedError):
        client.create_producer(topic, encryption_key="k", crypto_key_reader=reader)


async def test_an_encrypted_message_is_refused_also_where_its_producer_did_not_say_so(
    served: engine.Engine, topic: str
) -> None:
    async with Raw(served) as raw:
        await greeted(raw)
        await raw.say_command("producer", topic=topic, producer=1, request=1)
        await raw.heard("producer_success")
        for n, (said, text) in enumerate(REFUSED):
            await raw.say(send_with(n, **said))
            heard = await raw.hear()
            assert heard is not None
            assert heard[0] == "send_error"
            assert text in heard[1].message
        await raw.say_command("ping")
        await raw.heard("pong")  # and the connection goes on
    stats = served.admin.get_stats(topic)
    assert [segment["nextOffset"] for segment in stats["segments"].values()] == [0]
