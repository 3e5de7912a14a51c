"""Commits steps of a metadata image, one at a time, off the loop."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from engine.aio.workers import Done, Workers
from engine.metadata.image import Image, ImageStep


class StepCommits(Protocol):
    """Commits one step at a time. Loop thread only. It is closed before the image."""

    def post(self, step: ImageStep, done: Done) -> None:
        """Start a commit; then done(None, None), or done(None, the error of Image.commit())."""

    def close(self) -> None:
        """Release threads. No step may be under way."""


class ImageCommits:
    """Commits through Python's `sqlite3`, on the thread that owns the image."""

    def __init__(self, image: Image, owner: Workers) -> None:
        self._image = image
        self._owner = owner

    def post(self, step: ImageStep, done: Done) -> None:
        self._owner.post(partial(self._image.commit, step), done)

    def close(self) -> None:
        """Does nothing: the store owns the thread."""
