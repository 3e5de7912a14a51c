"""Messages that their client has encrypted or cut into chunks, by hand; key pairs for Apache Pulsar's clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from engine._native.format.crc32c import crc32c
from engine.pulsar.messages import MessageMetadata, command

KEYS = [b"\x0a\x01k\x12\x01v"]  # an EncryptionKeys: a name and the wrapped key


def metadata_of(sequence: int, publish_time: int = 1, **fields: Any) -> bytes:
    made: bytes = MessageMetadata(
        producer_name=b"p", sequence=sequence, publish_time=publish_time, **fields
    ).SerializeToString()
    return made


def chunk_of(sequence: int, chunk: int, chunks: int, *, uuid: str = "", size: int = 0, **fields: Any) -> bytes:
    """The metadata of a chunk."""
    said = {"uuid": uuid or f"p-{sequence}", "chunk": chunk, "chunks": chunks, "chunks_size": size or 4 * chunks}
    return metadata_of(sequence, **{**said, **fields})


def send_of(sequence: int, metadata: bytes, payload: bytes, **fields: Any) -> bytes:
    """The frame of a SEND of the producer 1."""
    summed = len(metadata).to_bytes(4, "big") + metadata + payload
    body = b"\x0e\x01" + crc32c(summed).to_bytes(4, "big") + summed
    head = command("send", producer=1, sequence=sequence, count=1, **fields)
    return b"".join(((4 + len(head) + len(body)).to_bytes(4, "big"), len(head).to_bytes(4, "big"), head, body))


def make_keys(secret: Path, public: Path) -> None:
    """Write a new pair of RSA keys as PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, plain))
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
