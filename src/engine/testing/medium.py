"""One file on a simulated medium: what is visible, what is durable, and the operations that lie between.

Several machines may have the file open. Each sees what the others wrote at once, and syncs only what is its own: when a
machine loses power, what it had not synced is lost, for all.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from dataclasses import dataclass

SECTOR = 512
_KEEP_ALL, _KEEP_NONE = 0.3, 0.6  # of a write that was not synced, in a power cut; between 0.6 and 1: any sectors


@dataclass(slots=True)
class Write:
    """Bytes put at a position."""

    position: int
    data: bytes
    machine: str
    durable: bool = False


@dataclass(slots=True)
class Truncate:
    """The file was given a size."""

    size: int
    machine: str
    durable: bool = False


Operation = Write | Truncate


class Inode:
    """One file. `pending` are the operations behind the durable state, in the order in which they were done."""

    def __init__(self) -> None:
        if sys.platform == "linux":
            self.fd = os.memfd_create("engine-sim")
        else:
            self.fd, path = tempfile.mkstemp(prefix="engine-sim-")
            os.unlink(path)
        self.durable = bytearray()
        self.pending: list[Operation] = []

    def __del__(self) -> None:
        os.close(self.fd)

    def sync(self, machine: str) -> None:
        """What a machine has written is durable."""
        for operation in self.pending:
            operation.durable = operation.durable or operation.machine == machine
        self._fold()

    def lose(self, machine: str | None, rng: random.Random) -> None:
        """A power cut (None: of all machines), or a failed sync: some of what was pending is durable, the rest gone."""
        left: list[Operation] = []
        for operation in self.pending:
            if operation.durable or machine not in (None, operation.machine):
                left.append(operation)
            else:
                left += _survivors(operation, rng)
        self.pending = left
        self._fold()

    def _fold(self) -> None:
        """Operations may be done in their order only, also those that were synced early."""
        done = 0
        for operation in self.pending:
            if not operation.durable:
                break
            _apply(self.durable, operation)
            done += 1
        del self.pending[:done]

    def show(self) -> None:
        """What is left becomes what is read."""
        content = bytearray(self.durable)
        for operation in self.pending:
            _apply(content, operation)
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, content, 0)


def _apply(content: bytearray, operation: Operation) -> None:
    if isinstance(operation, Write):
        end = operation.position + len(operation.data)
        content.extend(bytes(max(0, operation.position - len(content))))
        content[operation.position : end] = operation.data
    elif operation.size < len(content):
        del content[operation.size :]
    else:
        content.extend(bytes(operation.size - len(content)))


def _survivors(operation: Operation, rng: random.Random) -> list[Operation]:
    luck = rng.random()
    if luck < _KEEP_ALL:
        operation.durable = True
        return [operation]
    if luck < _KEEP_NONE or isinstance(operation, Truncate):
        return []
    first = operation.position - operation.position % SECTOR
    end = operation.position + len(operation.data)
    parts: list[Operation] = []
    for sector in range(first, end, SECTOR):
        if rng.random() < 0.5:
            start = max(sector, operation.position)
            data = operation.data[start - operation.position : sector + SECTOR - operation.position]
            parts.append(Write(start, data, operation.machine, durable=True))
    return parts
