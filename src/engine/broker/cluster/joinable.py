"""A data directory that other processes of this machine may join: they are clients of the broker that has it open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.metadata.lockfile import LockFile

TARGET = "directory"  # of BROKER_CALL: the process that has the directory open


@dataclass(frozen=True, slots=True)
class Joinable:
    """`lock`: the directory's, which the broker releases when it closes. `answer(method, arguments)`: what processes
    that have joined ask for. `succeeds`: another process served it before, and its clients may come back.
    """

    lock: LockFile
    answer: Callable[[str, Mapping[str, Any]], Awaitable[Any]]
    succeeds: bool = False
