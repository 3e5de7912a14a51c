"""What a served metadata store and its clients say to each other: the payloads of METADATA frames.

    client -> service    [request, …]
    service -> client    [position, [answer, …]]

Each is a msgpack array whose first field is the number of its kind. docs/formats/metadata.md describes the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from engine.errors import AlreadyClosedError, EngineError, ProtocolError
from engine.limits import METADATA_WRITE_ALL_MAX
from engine.metadata.store import (
    ABSENT,
    ANY,
    Append,
    ConflictError,
    Delete,
    Event,
    Expected,
    OutcomeUnknownError,
    Put,
    Record,
    Session,
    Stat,
)

PROTOCOL = 1  # on the wire: raise it with what an older peer would misunderstand

Indexes = dict[str, str | tuple[str, ...]]
Demand = int | bool | None  # a version; False: ABSENT; None: ANY

T = TypeVar("T")


class _Message(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Its subclasses' tags are on the wire: do not change."""


# Requests. `id` is chosen by the client, unique within its connection.


class Hello(_Message, tag=1, frozen=True):
    """The first request of a connection -> Welcome. `client`: a random number, kept over reconnections. `build`: for
    texts.
    """

    protocol: int
    client: int
    build: str


class Get(_Message, tag=2, frozen=True):
    """-> Got. `keep`: report later changes of the key as Kept, until Forget."""

    id: int
    key: str
    keep: bool = False


class List(_Message, tag=3, frozen=True):
    """-> Listed (records), or Keys."""

    id: int
    start: str
    end: str
    limit: int | None
    keys_only: bool


class ListIndex(_Message, tag=4, frozen=True):
    """-> Indexed."""

    id: int
    index: str
    start: str
    end: str
    limit: int | None


class PutOne(_Message, tag=5, frozen=True):
    """-> Done."""

    id: int
    key: str
    value: bytes
    expected: Demand
    session: int | None = None
    partition_key: str | None = None
    indexes: Indexes | None = None


class PutAlso(PutOne, tag=19, frozen=True):
    """A PutOne that demands the states of other keys, too -> Done."""

    also: dict[str, Demand] = {}


class DeleteOne(_Message, tag=6, frozen=True):
    """-> Deleted, with 0 or 1."""

    id: int
    key: str
    expected: Demand


class DeleteRange(_Message, tag=7, frozen=True):
    """-> Deleted."""

    id: int
    start: str
    end: str


class AppendOne(_Message, tag=8, frozen=True):
    """-> Appended, without `stat`."""

    id: int
    prefix: str
    value: bytes
    partition_key: str | None = None
    indexes: Indexes | None = None


class PutAndAppend(_Message, tag=9, frozen=True):
    """-> Appended."""

    id: int
    put: PutOne | PutAlso
    append: AppendOne


class WriteAll(_Message, tag=10, frozen=True):
    """-> Outcomes."""

    id: int
    writes: list[PutOne | PutAlso | DeleteOne]


class Watch(_Message, tag=11, frozen=True):
    """-> Events, until Unwatch, or WatchFailed. `alone`: of the record whose key is `prefix`; a service of an older
    build passes that over, and reports all records whose keys begin so.
    """

    watch: int
    prefix: str
    from_version: int | None
    alone: bool = False


class WatchIndex(_Message, tag=12, frozen=True):
    """-> Events, until Unwatch, or WatchFailed."""

    watch: int
    index: str
    start: str
    end: str


class Unwatch(_Message, tag=13, frozen=True):
    """End a watch."""

    watch: int


class Forget(_Message, tag=14, frozen=True):
    """Report no more changes as Kept."""


class OpenSession(_Message, tag=15, frozen=True):
    """-> Opened."""

    id: int
    timeout: float


class RefreshSession(_Message, tag=16, frozen=True):
    """-> Opened. `timeout`: as it was opened with; after a restart the service has forgotten it."""

    id: int
    session: int
    timeout: float


class EndSession(_Message, tag=17, frozen=True):
    """-> Opened."""

    id: int
    session: int


class Ping(_Message, tag=18, frozen=True):
    """-> Opened: a sign of life."""

    id: int


Request = (
    Hello | Get | List | ListIndex | PutOne | DeleteOne | DeleteRange | AppendOne | PutAndAppend | WriteAll | Watch
    | WatchIndex | Unwatch | Forget | OpenSession | RefreshSession | EndSession | Ping | PutAlso
)  # fmt: skip


# Answers. `id`: of the request. `version`: the store's when the answer was made.


class Welcome(_Message, tag=1, frozen=True):
    """The handshake is over: no write of an earlier connection of this client can still take place.

    `pid`: the service's process, 0 where it does not say.
    """

    protocol: int
    build: str
    pid: int
    version: int


class Got(_Message, tag=2, frozen=True):
    """The record, or None."""

    id: int
    record: Record | None
    version: int


class Listed(_Message, tag=3, frozen=True):
    """Records; `more` of them follow under the same id."""

    id: int
    records: list[Record]
    more: bool


class Keys(_Message, tag=4, frozen=True):
    """Keys; `more` of them follow under the same id."""

    id: int
    keys: list[str]
    more: bool


class Indexed(_Message, tag=5, frozen=True):
    """(index key, record); `more` of them follow under the same id."""

    id: int
    records: list[tuple[str, Record]]
    more: bool


class Done(_Message, tag=6, frozen=True):
    """A record was written."""

    id: int
    stat: Stat


class Deleted(_Message, tag=7, frozen=True):
    """So many records were deleted."""

    id: int
    count: int
    version: int


class Appended(_Message, tag=8, frozen=True):
    """A record was appended under `key`; and one was put, which `stat` describes."""

    id: int
    key: str
    appended: Stat
    stat: Stat | None = None


class Refused(_Message, tag=9, frozen=True):
    """A request failed. `code`: of an EngineError, or one of the two below 0."""

    id: int
    code: int
    text: str


class Outcomes(_Message, tag=10, frozen=True):
    """Of a WriteAll, in order."""

    id: int
    outcomes: list[Done | Deleted | Refused]


class Events(_Message, tag=11, frozen=True):
    """Events of a watch, in order."""

    watch: int
    events: list[Event]


class Watching(_Message, tag=15, frozen=True):
    """A watch has begun. `resumed`: behind the version that the client named; otherwise with a snapshot, or that is not
    known.
    """

    watch: int
    resumed: bool


class WatchFailed(_Message, tag=12, frozen=True):
    """A watch has ended with an error of the store."""

    watch: int
    code: int
    text: str


class Kept(_Message, tag=13, frozen=True):
    """Changes of keys that the client asked to keep, in order."""

    events: list[Event]


class Opened(_Message, tag=14, frozen=True):
    """A request about sessions was done."""

    id: int
    session: int = 0


Answer = (
    Welcome | Got | Listed | Keys | Indexed | Done | Deleted | Appended | Refused | Outcomes | Events | WatchFailed
    | Kept | Opened | Watching
)  # fmt: skip
Answers = tuple[int, list[Answer]]

_CONFLICT = -1  # on the wire: do not change
_UNKNOWN = -2

encode = msgspec.msgpack.Encoder().encode
_requests: msgspec.msgpack.Decoder[list[Request]] = msgspec.msgpack.Decoder(list[Request])
_answers: msgspec.msgpack.Decoder[Answers] = msgspec.msgpack.Decoder(Answers)


def joined(requests: Sequence[bytes]) -> bytes:
    """The payload of a frame of encoded requests."""
    count = len(requests)
    head = bytes((0x90 | count,)) if count < 16 else b"\xdd" + count.to_bytes(4, "big")  # msgpack: fixarray, array 32
    return head + b"".join(requests)


def decode_requests(payload: bytes | memoryview) -> list[Request]:
    """The requests in a frame. Raises ProtocolError."""
    return _decoded(_requests.decode, payload)


def decode_answers(payload: bytes | memoryview) -> Answers:
    """(position, answers) in a frame. Raises ProtocolError."""
    return _decoded(_answers.decode, payload)


def _decoded(decode: Callable[[bytes | memoryview], T], payload: bytes | memoryview) -> T:
    try:
        return decode(payload)
    except Exception as e:  # several kinds for bytes that are not msgpack
        raise ProtocolError(f"METADATA is malformed: {type(e).__name__} {e}") from e


def demand_of(expected: Expected | int) -> Demand:
    """As it is sent."""
    return None if expected is ANY else False if expected is ABSENT else int(expected)  # type: ignore[arg-type]


def expected_of(demand: Demand) -> Expected | int:
    """Undo demand_of()."""
    return ANY if demand is None else ABSENT if demand is False else demand


def put_of(ident: int, put: Put) -> PutOne:
    """The request of a put whose arguments are checked."""
    session = None if put.session is None else put.session.id
    indexes: Any = dict(put.indexes) if put.indexes else None
    fields = ident, put.key, put.value, demand_of(put.expected), session, put.partition_key, indexes
    if not put.also:
        return PutOne(*fields)
    return PutAlso(*fields, {key: demand_of(expected) for key, expected in put.also.items()})


def delete_of(ident: int, delete: Delete) -> DeleteOne:
    """The request of a deletion whose arguments are checked."""
    return DeleteOne(ident, delete.key, demand_of(delete.expected))


def append_of(ident: int, append: Append) -> AppendOne:
    """The request of an append whose arguments are checked."""
    indexes: Any = dict(append.indexes) if append.indexes else None
    return AppendOne(ident, append.prefix, append.value, append.partition_key, indexes)


def as_put(put: PutOne, session: Session | None) -> Put:
    """Undo put_of(). `session`: the one that it names."""
    also = None
    if isinstance(put, PutAlso):
        also = {key: expected_of(demand) for key, demand in put.also.items()}
    return Put(put.key, put.value, expected_of(put.expected), session, put.partition_key, put.indexes, also)


def as_delete(delete: DeleteOne) -> Delete:
    """Undo delete_of()."""
    return Delete(delete.key, expected_of(delete.expected))


def as_append(append: AppendOne) -> Append:
    """Undo append_of()."""
    return Append(append.prefix, append.value, append.partition_key, append.indexes)


def refusal_of(error: Exception) -> tuple[int, str]:
    """(code, text) of an error of the store."""
    if isinstance(error, ConflictError):
        return _CONFLICT, str(error)
    if isinstance(error, OutcomeUnknownError):
        return _UNKNOWN, str(error)
    return error.code if isinstance(error, EngineError) else EngineError.code, str(error)


def error_of(code: int, text: str) -> Exception:
    """Undo refusal_of()."""
    if code == _CONFLICT:
        return ConflictError(text)
    if code == _UNKNOWN:
        return OutcomeUnknownError(text)
    return EngineError.from_code(code, text)


def outcome_of(answer: Done | Deleted | Refused) -> Stat | bool | ConflictError | AlreadyClosedError:
    """One outcome of a WriteAll, as the store returns it."""
    if isinstance(answer, Done):
        return answer.stat
    if isinstance(answer, Deleted):
        return bool(answer.count)
    error = error_of(answer.code, answer.text)
    if not isinstance(error, ConflictError | AlreadyClosedError):
        raise ProtocolError(f"an outcome of write_all must be a conflict or an ended session, got {error!r}")
    return error


def check_count(writes: int) -> None:
    """Raise ProtocolError for a WriteAll of too many."""
    if writes > METADATA_WRITE_ALL_MAX:
        raise ProtocolError(f"writes must be at most {METADATA_WRITE_ALL_MAX}, got {writes}")
