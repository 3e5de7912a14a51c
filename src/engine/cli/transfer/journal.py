"""`Journal`: how far an export has come, beside its file, so that it goes on after whatever has ended it.

    .orders.parquet.partial     what is written: `size` bytes of it count, the rest is of a part that was not finished
    .orders.parquet.export      the journal: JSON, replaced as a whole after the data that it speaks of is synced
    orders.parquet              the file, by a rename when it is complete

A file is synced before the journal says so, and the journal before the rename: at each moment one of the three tells
what is there.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import AlreadyExistsError, InvalidArgumentError

VERSION = 1


@dataclass(slots=True)
class State:
    """`asked`: what the export is of, by which a later one knows that it is the same. `ranges`: {segment: (first, end)}
    at its start. `positions`: {segment: the next offset}. `footers`: of the row groups of a Parquet file, in base64.
    """

    asked: dict[str, Any]
    ranges: dict[str, list[int]]
    positions: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    file: int = 0  # of several, the present one
    file_rows: int = 0
    size: int = 0
    footers: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)  # that are complete
    finished: bool = False  # the present file: it only has to be renamed
    done: bool = False  # and it is the last
    bytes: int = 0  # of complete files


class Journal:
    """Of the export to `target`; it holds a lock as long as it is open. `overwrite`: files that are there may go.

    Raises AlreadyExistsError where another export writes there, or a file is in the way.
    """

    def __init__(self, target: Path, *, overwrite: bool) -> None:
        self._target = target
        self._overwrite = overwrite
        if not target.parent.is_dir():
            raise InvalidArgumentError(f"{target.parent} must be a directory")
        self.partial = target.with_name(f".{target.name}.partial")
        self._path = target.with_name(f".{target.name}.export")
        self._lock = os.open(target.with_name(f".{target.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = os.fstat(self._lock).st_nlink > 0  # else its owner has removed it since it was opened
        except OSError:
            taken = False
        if not taken:
            os.close(self._lock)
            raise AlreadyExistsError(f"another export is writing {target}")

    def load(self, asked: Mapping[str, Any], *, restart: bool) -> State | None:
        """What an interrupted export of the same has left; None: there is none. Raises AlreadyExistsError where there
        is one of something else, or the file is there already.
        """
        if restart:
            self.forget()
        state = self._read()
        if state is None:
            if self._target.exists() and not self._overwrite:
                raise AlreadyExistsError(f"{self._target} is there already; --overwrite replaces it")
            return None
        if state.asked != asked:
            names = sorted(name for name in {*state.asked, *asked} if state.asked.get(name) != asked.get(name))
            raise AlreadyExistsError(
                f"an interrupted export to {self._target} differs in {', '.join(names)}: repeat that one to complete "
                "it, or give --restart to forget it"
            )
        return state

    def _read(self) -> State | None:
        try:
            found = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as e:
            raise InvalidArgumentError(f"{self._path} is damaged ({e}); --restart begins anew") from e
        if not isinstance(found, dict) or found.pop("version", None) != VERSION:
            raise InvalidArgumentError(f"{self._path} is of another version; --restart begins anew")
        try:
            return State(**found)
        except TypeError as e:
            raise InvalidArgumentError(f"{self._path} is damaged ({e}); --restart begins anew") from e

    def save(self, state: State) -> None:
        """Durable when it returns."""
        new = self._path.with_name(f"{self._path.name}.new")
        with new.open("wb") as file:
            file.write(json.dumps({"version": VERSION, **asdict(state)}).encode())
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        sync_directory(self._path.parent)

    def publish(self, name: str) -> None:
        """Give the present file its name. Idempotent."""
        target = self._target.with_name(name)
        if self.partial.exists():
            if target.exists() and not self._overwrite:
                raise AlreadyExistsError(f"{target} is there already; --overwrite replaces it")
            self.partial.replace(target)
            sync_directory(target.parent)

    def forget(self) -> None:
        """Remove what is beside the file."""
        for path in (self._path, self._path.with_name(f"{self._path.name}.new"), self.partial):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let another export begin. Idempotent."""
        if self._lock >= 0:
            self._target.with_name(f".{self._target.name}.lock").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


def sync_directory(path: Path) -> None:
    """Make names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def left_of(target: str) -> bool:
    """Whether an export to this file can go on."""
    path = Path(target)
    return path.with_name(f".{path.name}.export").exists()
