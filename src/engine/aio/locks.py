"""A lock for what threads of users and the loop's own both touch, in steps that take no time; or for users' alone."""

from __future__ import annotations

from threading import Lock

__all__ = ["Lock"]
