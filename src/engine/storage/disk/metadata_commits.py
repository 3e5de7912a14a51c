"""`NativeCommits`: commits the steps of a metadata image on a thread that needs no interpreter lock."""

from __future__ import annotations

from pathlib import Path

from engine._native.jobs.commitjob import FUNCTIONS, CommitJob, Statements
from engine.aio.workers import Done
from engine.metadata.image import STATEMENTS, ImageStep, error_of
from engine.metadata.library import SqliteConnection
from engine.metadata.mark import Mark
from engine.storage.disk.workers import NativeWorkers


class _Commit(CommitJob):
    """The commit of one step."""

    __slots__ = ("mark", "path")
    path: Path
    mark: Mark | None

    def check(self) -> None:
        """Raise what Image.commit() would raise."""
        if self.code:
            raise error_of(self.path, self.code, self.message, committing=self.committing)
        if self.mark_failed and self.mark is not None:
            self.mark.complain("the write behind a commit failed")


class NativeCommits:
    """See Commits. The image keeps connection and mark, and closes them."""

    def __init__(self, connection: SqliteConnection, mark: Mark | None = None) -> None:
        prepared = {name: connection.prepare(text) for name, text in STATEMENTS.items()}
        functions = connection.library.addresses(FUNCTIONS)
        self._path = connection.path
        self._mark = mark
        self._statements = Statements(connection.address, functions, prepared)
        self._workers = NativeWorkers(1)

    def post(self, step: ImageStep, done: Done) -> None:
        job = _Commit(self._statements, step.put, step.removed, step.summary, step.mark)
        job.path, job.mark = self._path, self._mark
        self._workers.post(job, done)

    def close(self) -> None:
        self._workers.close()
