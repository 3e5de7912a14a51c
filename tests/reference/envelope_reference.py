"""An encrypted entry opened by the page of the format alone: independent of the code that it is compared with."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

HEAD = struct.Struct("<I BB H 12s I 16s")
RECIPIENT = struct.Struct("<HH B 3x 8s")


@dataclass(frozen=True)
class Opened:
    """`plain`: the body as it was, perhaps compressed."""

    nonce: bytes
    key_id: bytes
    deliver_at: tuple[int, ...]
    recipients: dict[str, tuple[int, bytes, bytes]]  # how it is wrapped, fingerprint, wrapped key
    plain: bytes


def opened(entry: bytes, name: str, private: X25519PrivateKey) -> Opened:
    """Opened with a private X25519 key."""
    body, count, delayed = entry[128:], int.from_bytes(entry[20:24], "little"), bool(entry[17] & 32)
    size, version, cipher, recipients, nonce, zero, key_id = HEAD.unpack_from(body)
    assert (version, cipher, zero) == (1, 1, 0)
    assert entry[18] & 4
    at = HEAD.size
    deliver_at = struct.unpack_from(f"<{count}q", body, at) if delayed else ()
    at += 8 * len(deliver_at)
    found = {}
    for _ in range(recipients):
        name_size, wrapped_size, way, mark = RECIPIENT.unpack_from(body, at)
        text, at = body[at + 16 : at + 16 + name_size + wrapped_size], at + 16 + -(-(name_size + wrapped_size) // 8) * 8
        found[text[:name_size].decode()] = way, mark, text[name_size:]
    assert not any(body[at:size])
    way, _, wrapped = found[name]
    assert way == 1
    sent, public = wrapped[:32], private.public_key().public_bytes_raw()
    shared = private.exchange(X25519PublicKey.from_public_bytes(sent))
    wrapping = HKDF(hashes.SHA256(), 32, sent + public, b"engine data key 1").derive(shared)
    key = AESGCM(wrapping).decrypt(bytes(12), wrapped[32:], key_id)
    plain = AESGCM(key).decrypt(nonce, body[size:], entry[:8] + entry[16:80] + body[:size])
    return Opened(nonce, key_id, deliver_at, found, plain)
