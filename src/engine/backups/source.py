"""`Source`: what a broker keeps of its data directory: read from the directory where it is on this machine, or else
through the admin API.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from engine.backups.destination import LockHeld
from engine.clock import SystemClock
from engine.errors import CorruptionError, UnknownOutcomeError, UnsupportedError
from engine.model.admin_backup_operations import BEGIN_BACKUP, END_BACKUP, READ_BACKUP, RENEW_BACKUP
from engine.model.admin_requests import Operation
from engine.model.backups import FORMAT, PLAN_FILE, READ_SIZE_MAX, Plan
from engine.storage.disk.config import storage_error

RENEW_S = 30.0
ATTEMPTS_MAX = 3  # at what may be done twice, while connections are lost
Call = Callable[[Operation[Any], Mapping[str, Any]], Any]


class Source(Protocol):
    """Reads the kept files."""

    def read(self, file: str, position: int, size: int) -> bytes | bytearray:
        """Bytes of a file, fewer where it ends. Raises StorageError."""


class DirectorySource:
    """The kept files, on this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, file: str, position: int, size: int) -> bytearray:
        buffer, path = bytearray(size), self._directory / file
        try:
            with path.open("rb", buffering=0) as found, memoryview(buffer) as view:
                found.seek(position)
                done = 0
                while done < size and (n := found.readinto(view[done:])):
                    done += n
        except OSError as e:
            raise storage_error(e, str(path)) from e
        del buffer[done:]
        return buffer


class AdminSource:
    """The kept files, on another machine."""

    def __init__(self, call: Call, ident: str) -> None:
        self._call = call
        self._ident = ident

    def read(self, file: str, position: int, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            want = min(size - len(found), READ_SIZE_MAX)
            arguments = {"ident": self._ident, "file": file, "position": position + len(found), "size": want}
            piece = base64.b64decode(self._call(READ_BACKUP, arguments))
            found += piece
            if len(piece) < want:
                break
        return bytes(found)


def is_here(directory: Path) -> bool:
    """Whether a directory of kept files is on this machine: its name is a random number."""
    try:
        return (directory / PLAN_FILE).exists()
    except OSError:
        return False


class Kept:
    """What a broker keeps, from construction to end(). `data`: its data directory; None: it is on another machine.

    Raises what begin_backup raises.
    """

    def __init__(self, call: Call, lock: LockHeld) -> None:
        self._call = _repeated(call)
        self._lock = lock
        self._clock = SystemClock()
        self.data: Path | None = None
        begun = self._call(BEGIN_BACKUP, {})  # one whose answer was lost ends by itself
        self._ident = str(begun["backup"])
        self._renewed = self._clock.monotonic()
        try:
            directory = Path(begun["directory"])
            self.source: Source = AdminSource(call, self._ident)
            if is_here(directory):
                self.source = DirectorySource(directory)
                self.data = directory.parent.parent
            self.plan = self._read_plan()
        except BaseException:
            self.end(done=False)
            raise

    def _read_plan(self) -> Plan:
        image = bytearray()
        while piece := self.source.read(PLAN_FILE, len(image), READ_SIZE_MAX):
            image += piece
        try:
            plan = msgspec.json.decode(image, type=Plan)
        except msgspec.DecodeError as e:
            raise CorruptionError(f"the plan of the backup {self._ident} cannot be read: {e}") from None
        if plan.format > FORMAT:
            raise UnsupportedError(
                f"the broker's plan of a backup has format {plan.format}; this release of Engine reads up to {FORMAT}"
            )
        return plan

    def renew(self) -> None:
        """Call it now and then: the broker, and others at the destination, know that this one goes on."""
        now = self._clock.monotonic()
        if now - self._renewed > RENEW_S:
            self._renewed = now
            self._call(RENEW_BACKUP, {"ident": self._ident})
            self._lock.renew()

    def end(self, *, done: bool) -> None:
        """The broker keeps it no longer."""
        self._call(END_BACKUP, {"ident": self._ident, "done": done})


def _repeated(call: Call) -> Call:
    """Operations may be repeated here: a broker, or the process of it that answered, may end behind any request."""

    def repeated(operation: Operation[Any], arguments: Mapping[str, Any]) -> Any:
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return call(operation, arguments)
            except UnknownOutcomeError:
                continue
        return call(operation, arguments)

    return repeated
