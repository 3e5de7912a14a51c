"""Batchers for tests, and what came out of them."""

from __future__ import annotations

from typing import Any

from engine._native.produce.batcher import Batcher
from engine._native.produce.sealed import SealedEntry
from tests.reference.entry_reference import PlainMessage, decode

QUARTERS = [0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF]
ONE = ([0], [0], [QUARTERS])
WHOLE = ([0], [0], [[0xFFFF]])
HALVES = ([0, 0x8000], [1, 2], [[0x7FFF, 0xFFFF], [0x7FFF, 0xFFFF]])
LAYOUTS = [
    ONE,
    ([0], [5], [[0xFFFF]]),
    ([0, 0x8000], [1, 2], [[0x7FFF, 0xFFFF], [0xFFFF]]),
    ([0, 1, 0x5000, 0xFFFF], [7, 3, 9, 4], [[0, 1, 0xFFFF], QUARTERS, [0xFFFF], [0xFFFE, 0xFFFF]]),
]


def batcher(layout: Any = ONE, **options: Any) -> Batcher:
    made = Batcher(options.pop("name", b"test"), **options)
    made.set_layout(*layout)
    return made


def sealed(subject: Batcher) -> list[SealedEntry]:
    subject.seal_all()
    return subject.take()


def messages(subject: Batcher) -> list[PlainMessage]:
    """Everything that was sealed, by sequence id."""
    return sorted((m for entry in sealed(subject) for m in decode(entry.data)), key=lambda m: m.sequence_id)
