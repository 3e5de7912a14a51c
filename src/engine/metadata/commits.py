"""Who makes the steps of a metadata image durable, one at a time, while the loop goes on."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from engine.aio.workers import Done, Workers
from engine.metadata.image import Image, ImageStep


class StepCommits(Protocol):
    """Loop thread only. The image is closed after it."""

    def post(self, step: ImageStep, done: Done) -> None:
        """Begin to make it durable; then done(None, None), or done(None, what Image.commit() raises)."""

    def close(self) -> None:
        """Let go of threads; there is no step under way."""


class ImageCommits:
    """Through Python's `sqlite3`, on the thread that owns the image."""

    def __init__(self, image: Image, owner: Workers) -> None:
        self._image = image
        self._owner = owner

    def post(self, step: ImageStep, done: Done) -> None:
        """See StepCommits."""
        self._owner.post(partial(self._image.commit, step), done)

    def close(self) -> None:
        """The thread is its owner's."""
