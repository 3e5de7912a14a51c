"""Recognises Apache Pulsar's clients; what does it is loaded with the first TCP connection of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.pulsar.door import Door
    from engine.wire.stream import FrameHandler, FrameStream, Recognise, Speaker


def recogniser() -> Recognise:
    """Of one broker."""
    door: Door | None = None

    def recognise(first: bytes, stream: FrameStream, handler: FrameHandler) -> Speaker | None:
        nonlocal door
        if door is None:
            from engine.pulsar.door import Door

            door = Door()
        return door.recognise(first, stream, handler)

    return recognise
