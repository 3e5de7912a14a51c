"""Commits of a SQLite database without the interpreter lock."""

from __future__ import annotations

import sqlite3
from importlib import import_module
from pathlib import Path

import pytest

from engine._native.jobs.commitjob import FUNCTIONS, CommitJob, Statements
from engine.metadata.image import STATEMENTS, Image
from engine.metadata.library import Library, SqliteConnection, find_library

FULL, CONSTRAINT, ERROR = 13, 19, 1
ROW = ("/k", b"value", 7, 1, 2, None, None, 99)


class Database:
    """An image's, with what is prepared for it."""

    def __init__(self, path: Path, library: Library) -> None:
        self.path = path
        self.image = Image(path)
        self.image.load()
        self.connection: SqliteConnection = self.image.connect(library)
        prepared = {name: self.connection.prepare(text) for name, text in STATEMENTS.items()}
        self.statements = Statements(self.connection.address, library.addresses(FUNCTIONS), prepared)

    def run(self, put=(), removed=(), summary=(7, 1, 99, 5)) -> CommitJob:
        job = CommitJob(self.statements, list(put), list(removed), summary)
        job.run()
        return job

    def closed(self) -> tuple[list[tuple], tuple]:
        """What is in the file: rows by key, and the summary."""
        self.image.close()
        reader = sqlite3.connect(self.path)
        rows = reader.execute("SELECT * FROM records ORDER BY key").fetchall()
        summary = reader.execute("SELECT version, rows, digest, checksum FROM meta").fetchone()
        reader.close()
        return rows, summary


@pytest.fixture
def database(tmp_path):
    library = find_library()
    if library is None:
        assert not hasattr(import_module("_sqlite3"), "__file__"), "SQLite's library was not found"
        pytest.skip("this Python has SQLite inside it: commits go through sqlite3")
    made = Database(tmp_path / "metadata.db", library)
    yield made
    made.image.close()


def test_every_column_is_written_as_it_is(database):
    rows = [
        ("/a", b"", 1, 0, 0, None, None, 0),
        ("/é☃\U0001f600", bytes(range(256)), 1 << 62, 1_795_391_871_089, -1, 12, '{"i":"k"}', (1 << 32) - 1),
        ("/with\0zero", b"\0" * 5000, 3, 4, 5, 0, "", 6),
    ]
    assert database.run(rows, summary=(1 << 62, 3, (1 << 63) - 1, 4_000_000_000)).code == 0
    found, summary = database.closed()
    assert found == sorted(rows)
    assert summary == (1 << 62, 3, (1 << 63) - 1, 4_000_000_000)


def test_rows_are_replaced_and_removed_together(database):
    database.run([(f"/{i}", b"old", i, 0, 0, None, None, i) for i in range(100)])
    job = database.run([("/5", b"new", 200, 0, 0, None, None, 1)], [f"/{i}" for i in range(10, 100)] + ["/none"])
    assert (job.code, job.committing, job.message) == (0, False, "")
    rows, _ = database.closed()
    assert [row[0] for row in rows] == [f"/{i}" for i in range(10)]
    assert rows[5][1] == b"new"


def test_a_refused_row_takes_everything_back(database):
    database.run([ROW])
    database.connection.execute("CREATE TEMP TRIGGER t BEFORE INSERT ON records WHEN NEW.key = '/bad' "
                                "BEGIN SELECT RAISE(ABORT, 'not this one'); END")  # fmt: skip
    job = database.run([("/good", b"", 8, 0, 0, None, None, 1), ("/bad", b"", 9, 0, 0, None, None, 1)], ["/k"])
    assert (job.code & 0xFF, job.committing, job.message) == (CONSTRAINT, False, "not this one")
    assert database.run([("/after", b"", 10, 0, 0, None, None, 1)]).code == 0, "the next one is not in the way of it"
    rows, _ = database.closed()
    assert [row[0] for row in rows] == ["/after", "/k"]


def test_a_full_database_takes_everything_back(database):
    database.run([ROW])
    database.connection.execute("PRAGMA max_page_count = 10")
    job = database.run([("/big", bytes(100_000), 8, 0, 0, None, None, 1)])
    assert job.code & 0xFF == FULL
    assert "full" in job.message
    rows, summary = database.closed()
    assert (rows, summary) == ([ROW], (7, 1, 99, 5))


def test_a_disk_that_is_full_when_it_commits_takes_everything_back(database):
    """SQLite writes with COMMIT; here that is played by a statement that finds no room."""
    fill = "INSERT INTO records VALUES ('/fill', zeroblob(100000), 1, 1, 1, NULL, NULL, 1)"
    full = {name: database.connection.prepare(text) for name, text in {**STATEMENTS, "commit": fill}.items()}
    functions = database.connection.library.addresses(FUNCTIONS)
    database.connection.execute("PRAGMA max_page_count = 10")
    job = CommitJob(Statements(database.connection.address, functions, full), [ROW], [], (7, 1, 99, 5))
    job.run()
    assert (job.code & 0xFF, job.committing) == (FULL, True)
    assert database.run([("/after", b"", 8, 0, 0, None, None, 1)], summary=(8, 1, 1, 5)).code == 0
    rows, summary = database.closed()
    assert ([row[0] for row in rows], summary) == (["/after"], (8, 1, 1, 5))


def test_a_commit_inside_of_another_is_refused(database):
    database.connection.execute("BEGIN")
    job = database.run([ROW])
    assert (job.code & 0xFF, job.committing) == (ERROR, False)
    assert "within a transaction" in job.message
    assert database.closed()[0] == []


@pytest.mark.parametrize(
    ("put", "removed", "summary", "error"),
    [
        ([("/k", "text", 1, 0, 0, None, None, 0)], [], (1, 1, 1, 1), TypeError),
        ([("/k", b"", 1, 0, 0, None, None)], [], (1, 1, 1, 1), ValueError),
        ([(b"/k", b"", 1, 0, 0, None, None, 0)], [], (1, 1, 1, 1), TypeError),
        ([("/\ud800", b"", 1, 0, 0, None, None, 0)], [], (1, 1, 1, 1), UnicodeEncodeError),
        ([("/k", b"", 1 << 64, 0, 0, None, None, 0)], [], (1, 1, 1, 1), OverflowError),
        ([], [7], (1, 1, 1, 1), TypeError),
        ([], [], (1, 1, 1), ValueError),
    ],
)
def test_what_cannot_be_written_is_refused_when_it_is_made(database, put, removed, summary, error):
    with pytest.raises(error):
        CommitJob(database.statements, put, removed, summary)
    rows, summary = database.closed()
    assert (rows, summary[:3]) == ([], (0, 0, 0))
