"""LZ4's block format, decoded as its page says it: slow, and plain to check."""

from __future__ import annotations


def decompress(block: bytes) -> bytes:
    """What a whole block stands for. A match of itself, which the format forbids and LZ4's own library takes, is
    zeros. Raises ValueError where the block is damaged.
    """
    made, at = bytearray(), 0

    def length(first: int) -> int:
        nonlocal at
        total = first
        while first == 15:
            total, more = total + block[at], block[at]
            at += 1
            if more != 255:
                break
        return total

    try:
        while True:
            token = block[at]
            at += 1
            literals = length(token >> 4)
            if at + literals > len(block):
                raise ValueError("literals end behind the block")
            made += block[at : at + literals]
            at += literals
            if at == len(block):
                return bytes(made)
            back = block[at] | block[at + 1] << 8
            at += 2
            if back > len(made):
                raise ValueError("a match begins before the block")
            for _ in range(4 + length(token & 15)):
                made.append(made[-back] if back else 0)
    except IndexError as e:
        raise ValueError("the block ends too early") from e
