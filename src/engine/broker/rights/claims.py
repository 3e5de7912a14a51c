"""Claims to exclusive access that a broker has issued, told from those that a client has made up.

A claim is three numbers, issued at the topic's first segment and shown at the others. Where there are roles, two more
numbers go with it, its seal: a keyed hash of the claim, the topic, the producer's name and its role. The key is a
record of the metadata store, drawn by the first broker that needs it, so that every broker knows the claims of all
others, and nothing is kept of a claim. One that was overtaken stays sealed, but is smaller than the one behind it.
"""

from __future__ import annotations

import hmac
import json
import random

from engine.errors import CorruptionError
from engine.metadata import keys
from engine.metadata.store import ABSENT, ConflictError, MetadataStore
from engine.model.names import TopicName

_KEY_SIZE = 32
_PART_SIZE = 7  # bytes of each of the two numbers: each fits a signed 64-bit one

Seal = tuple[int, int]


class Claims:
    """The key, once it is known. Loop thread only."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._key: bytes | None = None

    async def load(self, metadata: MetadataStore) -> None:
        """Read the key, or draw it. Raises CorruptionError, and what the metadata store raises."""
        while self._key is None:
            record = await metadata.newest.get(keys.CLAIMS)
            if record is not None:
                self._key = _parsed(record.value)
                return
            try:
                await metadata.put(
                    keys.CLAIMS, json.dumps({"key": self._rng.randbytes(_KEY_SIZE).hex()}).encode(), ABSENT
                )
            except ConflictError:
                continue  # another broker was faster

    def seal(self, claim: tuple[int, int, int], topic: TopicName, name: str, role: str) -> Seal:
        """The seal of a claim that is issued to a producer. After load()."""
        assert self._key is not None
        digest = hmac.digest(self._key, json.dumps([*claim, str(topic), name, role]).encode(), "sha256")
        first, second = digest[:_PART_SIZE], digest[_PART_SIZE : 2 * _PART_SIZE]
        return int.from_bytes(first, "big"), int.from_bytes(second, "big")

    def sealed(self, seal: Seal | None, claim: tuple[int, int, int], topic: TopicName, name: str, role: str) -> bool:
        """Whether a seal that a client shows is that of the claim. After load()."""
        if seal is None or not all(0 <= part < 1 << 8 * _PART_SIZE for part in seal):
            return False
        return hmac.compare_digest(_bytes(seal), _bytes(self.seal(claim, topic, name, role)))


def _bytes(seal: Seal) -> bytes:
    return b"".join(part.to_bytes(_PART_SIZE) for part in seal)


def _parsed(value: bytes) -> bytes:
    try:
        key = bytes.fromhex(json.loads(value)["key"])
    except (ValueError, KeyError, TypeError) as e:
        raise CorruptionError(f"{keys.CLAIMS} must hold a key of {_KEY_SIZE} bytes as hexadecimal digits") from e
    if len(key) != _KEY_SIZE:
        raise CorruptionError(f"{keys.CLAIMS} must hold a key of {_KEY_SIZE} bytes, got {len(key)}")
    return key
