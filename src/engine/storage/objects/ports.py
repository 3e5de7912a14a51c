"""`ObjectStore`: what the log and the upload of files need of an object store, and what may go wrong there."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ObjectExistsError(Exception):
    """A conditional PUT was refused: there is an object of this name, which may be the caller's own."""


class ObjectMissingError(Exception):
    """There is no object of this name."""


class ObjectInfo(NamedTuple):
    """One object of a list. `modified_ms`: by the store's clock."""

    name: str
    size: int
    modified_ms: int


class Tail(NamedTuple):
    """The last bytes of an object, all of them where it is shorter than was asked for. `size`: of the object."""

    data: memoryview
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStatistics:
    """Requests since the store was opened, by kind: put, get, list, delete, multipart."""

    requests: dict[str, int]
    failures: dict[str, int]  # those that were answered with an error, or not at all
    slow_downs: int  # answers 429, 503 and SlowDown
    per_s: float  # requests a second that are sent at most now
    in_flight: int  # now


class ObjectStore(Protocol):
    """Named objects that never change. Names are below the store's prefix.

    All methods raise AuthenticationError, AuthorizationError, StorageError (the store did not do it after several
    attempts), AlreadyClosedError.
    """

    async def put_if_absent(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Store an object whose bytes are the buffers, one behind the other, if there is none of the name.

        One request, never repeated here. Buffers must not change until it returns. Raises ObjectExistsError;
        UnknownOutcomeError where it may be stored: read it back.
        """

    async def put_multipart(self, name: str, pieces: Iterable[Buffer] | AsyncIterable[Buffer], size: int) -> None:
        """Store a large object of so many bytes under a name that no other upload uses. UnknownOutcomeError."""

    async def get(self, name: str) -> memoryview:
        """The whole object. Raises ObjectMissingError."""

    async def get_range(self, name: str, start: int, end: int) -> memoryview:
        """Bytes [start, end), fewer where the object ends before. Raises ObjectMissingError."""

    async def get_tail(self, name: str, size: int) -> Tail:
        """The last `size` bytes. Raises ObjectMissingError."""

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        """The objects in the folder `prefix` whose names are greater than `after`, in order of name."""

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are not there count as deleted."""

    def statistics(self) -> ObjectStatistics:
        """Counters, and what holds now."""

    async def close(self) -> None:
        """Refuse further requests. Idempotent."""


async def each(pieces: Iterable[Buffer] | AsyncIterable[Buffer]) -> AsyncIterator[Buffer]:
    """The pieces of either kind, in order."""
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            yield piece
    else:
        for piece in pieces:
            yield piece
