"""A lock for state that user threads share with the loop's thread, or with each other; held for short steps only."""

from __future__ import annotations

from threading import Lock

__all__ = ["Lock"]
