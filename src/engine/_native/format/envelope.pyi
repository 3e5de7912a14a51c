"""Puts the body of an entry into an envelope, and takes it out."""

from collections.abc import Callable

from typing_extensions import Buffer

def enclose(
    data: bytes,
    nonce: bytes,
    key_id: bytes,
    recipients: list[tuple[bytes, int, bytes, bytes]],
    encrypt: Callable[[bytes, memoryview, bytes], bytes],
) -> bytes: ...
def enclosed(buffer: Buffer) -> tuple[bytes, bytes, list[tuple[bytes, int, bytes, bytes]], bytes, bytes]: ...
