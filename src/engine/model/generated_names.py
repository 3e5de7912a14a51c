"""Names of producers that clients generate, and the proof that one is the client's own.

A name is the hash of a secret that its client has drawn. A broker with roles asks for the secret, and keeps nothing of
such a name: whatever knows the secret may use it, at each segment, broker, and after each restart.
"""

from __future__ import annotations

import hashlib
import random
import re

SECRET_SIZE = 16
_BEGIN = "producer-"
_GENERATED = re.compile(_BEGIN + r"[0-9a-f]{32}")


def drawn(rng: random.Random) -> bytes:
    """A new secret."""
    return rng.getrandbits(8 * SECRET_SIZE).to_bytes(SECRET_SIZE, "big")


def generated(secret: bytes) -> str:
    """The name that this secret proves."""
    return _BEGIN + hashlib.sha256(b"engine producer name " + secret).digest()[:16].hex()


def is_generated(name: str) -> bool:
    """Whether a name is one that a secret proves."""
    return _GENERATED.fullmatch(name) is not None


def proves(secret: bytes | None, name: str) -> bool:
    """Whether the name was generated of this secret."""
    return secret is not None and len(secret) == SECRET_SIZE and generated(secret) == name
