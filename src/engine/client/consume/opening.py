"""How a consumer opens the bodies of entries: decompressed, and decrypted where it has keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.client.base.options import ConsumerOptions
from engine.model.compression import decompressor


def opener(options: ConsumerOptions) -> Callable[[int, Any, int], bytes]:
    """For one thread at a time; see Entry.messages(). Without keys, an encrypted entry raises MissingKeyError."""
    if options.decryption_keys is None:
        return decompressor()
    from engine.client.base.encryption import Decryptor  # loads cryptography

    return Decryptor(options.decryption_keys).open
