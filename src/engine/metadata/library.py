"""The SQLite library that Python's `sqlite3` uses, for native code that runs without the interpreter lock.

Python does not expose its database handles. So a file is checked with `sqlite3`, closed, and opened again here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

_OK = 0
_OPEN_READWRITE = 2
_PREPARE_PERSISTENT = 1


class LibraryError(Exception):
    """An error of SQLite: its code and its message."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code = code


class Library:
    """The addresses of SQLite's functions."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        """Raises AttributeError when a function is missing."""
        pointer = ctypes.c_void_p
        self.errmsg = functions.sqlite3_errmsg
        self.errmsg.argtypes, self.errmsg.restype = [pointer], ctypes.c_char_p
        self.open = functions.sqlite3_open_v2
        self.open.argtypes = [ctypes.c_char_p, ctypes.POINTER(pointer), ctypes.c_int, ctypes.c_char_p]
        self.close = functions.sqlite3_close
        self.close.argtypes = [pointer]
        self.execute = functions.sqlite3_exec
        self.execute.argtypes = [pointer, ctypes.c_char_p, pointer, pointer, pointer]
        self.prepare = functions.sqlite3_prepare_v3
        self.prepare.argtypes = [
            pointer, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(pointer), pointer,
        ]  # fmt: skip
        self.finalize = functions.sqlite3_finalize
        self.finalize.argtypes = [pointer]
        self._functions = functions

    @property
    def threadsafe(self) -> bool:
        """Whether several threads may use a connection, one at a time."""
        return bool(self._functions.sqlite3_threadsafe())

    def addresses(self, names: Iterable[str]) -> dict[str, int]:
        """{name: address} for names without `sqlite3_`. Raises AttributeError when one is missing."""
        found = {name: getattr(self._functions, f"sqlite3_{name}") for name in names}
        return {name: ctypes.cast(function, ctypes.c_void_p).value or 0 for name, function in found.items()}


def _file_name(path: Path) -> bytes:
    return str(path).encode(errors="surrogateescape")


def find_library() -> Library | None:
    """The library of this process; None where it is not accessible, such as a Python with SQLite linked in."""
    for name in (getattr(import_module("_sqlite3"), "__file__", None), None):
        try:
            library = Library(ctypes.CDLL(name))
        except (OSError, AttributeError):
            continue
        if library.threadsafe:
            return library
    return None


class SqliteConnection:
    """An open database. Blocking; one thread at a time. Raises LibraryError."""

    def __init__(self, library: Library, path: Path) -> None:
        """Open an existing file."""
        self.path = path
        self.library = library
        self._statements: list[int] = []
        self._database = ctypes.c_void_p()
        try:
            self._check(library.open(_file_name(path), ctypes.byref(self._database), _OPEN_READWRITE, None))
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> int:
        """The address of the database handle."""
        return self._database.value or 0

    def execute(self, text: str) -> None:
        """Run statements; their results are dropped."""
        self._check(self.library.execute(self._database, text.encode(), None, None, None))

    def prepare(self, text: str) -> int:
        """The address of a prepared statement, valid until close()."""
        statement = ctypes.c_void_p()
        code = self.library.prepare(
            self._database, text.encode(), -1, _PREPARE_PERSISTENT, ctypes.byref(statement), None
        )
        self._check(code)
        self._statements.append(statement.value or 0)
        return self._statements[-1]

    def close(self) -> None:
        """Fold the write-ahead log into the file and close it. Idempotent."""
        while self._statements:
            self.library.finalize(self._statements.pop())
        database, self._database = self._database, ctypes.c_void_p()
        if database:
            self.library.close(database)

    def _check(self, code: int) -> None:
        if code != _OK:
            said = self.library.errmsg(self._database) if self._database else b"out of memory"
            raise LibraryError(code, said.decode(errors="replace"))
