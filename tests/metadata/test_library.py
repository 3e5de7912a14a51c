"""SQLite without Python's `sqlite3`: what it is told, and what it does when that is wrong."""

from __future__ import annotations

import ctypes
import sqlite3
from importlib import import_module
from pathlib import Path

import pytest

from engine.errors import DataDirectoryError
from engine.metadata.image import Image
from engine.metadata.library import Library, LibraryError, SqliteConnection, find_library

SQLITE_ROW = 100


@pytest.fixture
def library() -> Library:
    found = find_library()
    if found is None:
        assert not hasattr(import_module("_sqlite3"), "__file__"), "SQLite's library was not found"
        pytest.skip("this Python has SQLite inside it: commits go through sqlite3")
    return found


def answer(connection: SqliteConnection, text: str) -> str:
    """The first column of the first row."""
    functions = connection.library._functions
    functions.sqlite3_column_text.restype = ctypes.c_char_p
    statement = ctypes.c_void_p(connection.prepare(text))
    assert functions.sqlite3_step(statement) == SQLITE_ROW
    said = functions.sqlite3_column_text(statement, 0).decode()
    functions.sqlite3_reset(statement)
    return said


@pytest.fixture
def image(tmp_path: Path) -> Image:
    made = Image(tmp_path / "metadata.db")
    made.load()
    return made


def test_d1_every_commit_is_synced_and_nobody_else_gets_in(image, library, tmp_path):
    connection = image.connect(library)
    assert answer(connection, "PRAGMA synchronous") == "2"
    assert answer(connection, "PRAGMA journal_mode") == "wal"
    assert answer(connection, "PRAGMA locking_mode") == "exclusive"
    assert answer(connection, "SELECT sqlite_version()") == sqlite3.sqlite_version
    other = sqlite3.connect(tmp_path / "metadata.db", timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("SELECT * FROM records").fetchall()
    other.close()
    image.close()
    assert not (tmp_path / "metadata.db-wal").exists()


def test_a_statement_that_is_wrong_is_told(image, library):
    connection = image.connect(library)
    with pytest.raises(LibraryError, match="no such table: absent"):
        connection.prepare("SELECT * FROM absent")
    with pytest.raises(LibraryError, match="syntax error"):
        connection.execute("COMMIT AND MORE")
    image.close()
    image.close()


def test_a_file_that_is_gone_is_told_and_let_go(image, library, tmp_path):
    image._database.close()
    (tmp_path / "metadata.db").unlink()
    with pytest.raises(DataDirectoryError, match=r"metadata\.db"):
        image.connect(library)
    (tmp_path / "metadata.mark").unlink()
    Image(tmp_path / "metadata.db").close()  # its lock is free


def test_a_function_that_is_missing_is_told(library):
    with pytest.raises(AttributeError):
        library.addresses(["nothing"])
    assert all(library.addresses(["step", "reset"]).values())
