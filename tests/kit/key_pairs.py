"""Pairs of keys, as PEM."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


class Pair(NamedTuple):
    """Both are PEM."""

    private: bytes
    public: bytes


def pair_of(key: X25519PrivateKey | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> Pair:
    """The PEM of a pair."""
    pem, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(private, key.public_key().public_bytes(pem, form))


def x25519(seed: int) -> X25519PrivateKey:
    """The same one for a seed each time."""
    return X25519PrivateKey.from_private_bytes(seed.to_bytes(32, "big"))


def x25519_pair(seed: int) -> Pair:
    return pair_of(x25519(seed))


@cache
def rsa_pair(bits: int = 2048) -> Pair:
    """The same one for the whole process: it takes a tenth of a second to make."""
    return pair_of(rsa.generate_private_key(65537, bits))
