"""One commit of a SQLite database, for JobThreads."""

from collections.abc import Mapping

from engine._native.jobs.jobs import Job

FUNCTIONS: tuple[str, ...]
STATEMENTS: tuple[str, ...]

_Fields = tuple[str, bytes, int, int, int, int | None, str | None, int]

class Statements:
    def __init__(self, database: int, functions: Mapping[str, int], statements: Mapping[str, int]) -> None: ...

class CommitJob(Job):
    @property
    def code(self) -> int: ...
    @property
    def committing(self) -> bool: ...
    @property
    def mark_failed(self) -> bool: ...
    @property
    def message(self) -> str: ...
    def __init__(
        self,
        statements: Statements,
        put: list[_Fields],
        removed: list[str],
        summary: tuple[int, int, int, int],
        mark: tuple[int, int, bytes] | None = None,
    ) -> None: ...
