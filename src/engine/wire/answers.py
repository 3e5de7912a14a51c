"""What a broker says to a client, field by field: types, ranges, and what has to be there.

A struct for each command, and one for the `result` of each request that SUCCESS answers. They are the whole check:
what passes it is used without another look, and what does not ends its connection (`ProtocolError`), so that whatever
waits there fails, or goes on over another one. Fields that are not named here are ignored: a newer broker says more.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from engine.errors import ProtocolError
from engine.limits import HASH_RING_SIZE
from engine.wire.commands import Command

# Everything that counts or is an offset fits a signed 64-bit number of native code.
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
CountOrNone = Annotated[int, Meta(ge=-1, le=2**63 - 1)]  # -1: none
Salt = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Hash = Annotated[int, Meta(ge=0, le=HASH_RING_SIZE - 1)]
ErrorCode = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Mark = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Range = tuple[Count, Count]  # inclusive
Attempt = Annotated[int, Meta(ge=0)]  # 64 bits, and msgpack knows no more
Times = Annotated[int, Meta(ge=0, le=2**32 - 1)]
TransactionId = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
State = Literal["OPEN", "COMMITTED", "ABORTED"]


class _Struct(msgspec.Struct, gc=False):
    """Named as on the wire."""

    def fault(self) -> str | None:
        """What is wrong with fields that are right one by one."""
        return None


class Connected(_Struct):
    """The handshake is over."""

    protocol: Count
    features: list[str]
    broker: str
    keep_alive: Seconds
    frame_size_max: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    admin: str | None = None
    proxied: bool | None = None


class Error(_Struct):
    """A request was refused, or (0) a session has ended."""

    request_id: Count
    code: ErrorCode
    message: str
    session_id: Count = 0


class Success(_Struct):
    """A request was done; its `result` is checked by itself."""

    request_id: Count


class Ring(_Struct):
    """Inclusive."""

    start: Hash
    end: Hash


class Segment(_Struct):
    """One segment of a layout."""

    segmentId: Count  # noqa: N815 - the specification's names
    hashRange: Ring  # noqa: N815
    state: str
    bucketBoundaries: Annotated[list[Hash], Meta(min_length=1)]  # noqa: N815
    parentIds: list[Count] | None = None  # noqa: N815
    childIds: list[Count] | None = None  # noqa: N815


class Dag(_Struct):
    """A topic's layout."""

    epoch: Count
    segments: Annotated[list[Segment], Meta(min_length=1)]
    keyHash: str = "xxh64"  # noqa: N815
    durability: str = "fsync"
    createdAtMs: Count | None = None  # noqa: N815
    segmentBrokers: dict[str, str] | None = None  # noqa: N815
    controllerBrokerUrl: str | None = None  # noqa: N815

    def fault(self) -> str | None:
        for s in self.segments:
            ring, ends = s.hashRange, s.bucketBoundaries
            if ring.start > ring.end:
                return f"hashRange of segment {s.segmentId} must have start <= end, got {ring.start}..{ring.end}"
            if ends[-1] != HASH_RING_SIZE - 1 or any(a >= b for a, b in pairwise(ends)):
                return f"bucketBoundaries of segment {s.segmentId} must rise to {HASH_RING_SIZE - 1}, got {ends!r:.80}"
        return None


class TopicUpdate(_Struct):
    """A layout, or newer addresses."""

    session_id: Count
    topic: str
    epoch: Count
    dag: Dag
    request_id: Count | None = None

    def fault(self) -> str | None:
        return self.dag.fault()


class AssignedSegment(_Struct):
    """One segment of a share."""

    segment_id: Count
    topic: str
    mode: Literal["exclusive", "shared"]
    bucketBoundaries: list[Hash] | None = None  # noqa: N815


class Assignment(_Struct):
    """A consumer's whole share."""

    consumer_id: Count
    layout_epoch: Count
    segments: list[AssignedSegment]
    request_id: Count | None = None
    created_ms: Count | None = None


class TopicListUpdate(_Struct):
    """A part of a topic list, or what has changed in it."""

    session_id: Count
    hash: str
    removed: list[str]
    added: list[str]
    born: list[Count]
    more: bool
    snapshot: list[str] | None = None
    restart: bool | None = None
    request_id: Count | None = None

    def fault(self) -> str | None:
        listed = len(self.snapshot or ()) + len(self.added)
        return None if len(self.born) == listed else f"born must have {listed} items, got {len(self.born)}"


class ProducerSuccess(_Struct):
    """A producer is attached."""

    request_id: Count
    producer_id: Count
    producer_name: str
    last_sequence: CountOrNone
    durability: str
    floor: Count | None = None
    claim: list[Count] | None = None


class Receipt(_Struct):
    """Entries of one producer are acknowledged."""

    producer_id: Count
    sequences: list[Count]
    offsets: list[CountOrNone]
    durability: str

    def fault(self) -> str | None:
        given, needed = len(self.offsets), len(self.sequences)
        return None if given == needed else f"offsets must have {needed} items, as sequences, got {given}"


class SendReceipt(Receipt):
    """The same, and of other producers."""

    more: list[Receipt] | None = None

    def fault(self) -> str | None:
        faults = (Receipt.fault(receipt) for receipt in (self, *(self.more or ())))
        return next(filter(None, faults), None)


class SendError(_Struct):
    """An entry was refused."""

    producer_id: Count
    sequence: Count
    code: ErrorCode
    message: str


class CloseProducer(_Struct):
    """A producer's attachment has ended."""

    producer_id: Count
    request_id: Count | None = None
    code: ErrorCode | None = None
    message: str | None = None


class SubscribeSuccess(_Struct):
    """A consumer is attached."""

    request_id: Count
    consumer_id: Count
    position: Count
    first: Count
    seeks: Count | None = None
    created_ms: Count | None = None
    gaps: list[Range] | None = None  # half-open, unlike others

    def fault(self) -> str | None:
        return _disorder("gaps", self.gaps)


class Messages(_Struct):
    """The header of a block of entries."""

    consumer_id: Count
    segment_id: Count
    salt: Salt
    messages: Count
    skip: list[Range] | None = None
    redelivered: list[tuple[Count, Count, Times]] | None = None

    def fault(self) -> str | None:
        return _disorder("skip", self.skip) or _disorder("redelivered", self.redelivered)


class ReachedEnd(_Struct):
    """A sealed segment was sent to its end."""

    consumer_id: Count
    end: Count


class CloseConsumer(_Struct):
    """A consumer's attachment, or its registration, has ended."""

    consumer_id: Count
    request_id: Count | None = None
    code: ErrorCode | None = None
    message: str | None = None


class Place(_Struct):
    """Of SEGMENT_OFFSET."""

    offset: Count
    first: Count
    end: Count
    sealed: bool = False
    acknowledged: Count = 0
    open_buckets: list[Hash] | UnsetType = UNSET


class Files(_Struct):
    """Of SEGMENT_FILES. What is in `files`, `client/ranges/local_files.py` checks further."""

    files: list[tuple[str, bytes, Salt, Count, Count, Count]] | None = None
    upto: Count = 0
    hidden: list[Range] | None = None

    def fault(self) -> str | None:
        return _disorder("hidden", self.hidden)


class SchemaVersion(_Struct):
    """One version of a topic's schema."""

    type: str
    definition: str = ""


class Schemas(_Struct):
    """Of TOPIC_SCHEMA."""

    versions: list[SchemaVersion]


class TopicNames(_Struct):
    """Of GET_TOPICS_OF_NAMESPACE."""

    topics: list[str]
    more: bool


class Ended(_Struct):
    """Of END_TXN."""

    state: State


class Standing(_Struct):
    """Of TXN_STATE."""

    state: State
    deadline_ms: Count
    left: Seconds | None = None
    accepted: list[Attempt] | None = None
    mark: Mark | None = None


class Begun(Standing, kw_only=True):
    """Of NEW_TXN."""

    id: TransactionId
    more: list[TransactionId] | None = None


_C = Command

FRAMES: dict[Command, type[_Struct]] = {
    _C.CONNECTED: Connected,
    _C.ERROR: Error,
    _C.SUCCESS: Success,
    _C.SCALABLE_TOPIC_UPDATE: TopicUpdate,
    _C.SCALABLE_TOPIC_ASSIGNMENT: Assignment,
    _C.WATCH_TOPIC_LIST_UPDATE: TopicListUpdate,
    _C.PRODUCER_SUCCESS: ProducerSuccess,
    _C.SEND_RECEIPT: SendReceipt,
    _C.SEND_ERROR: SendError,
    _C.CLOSE_PRODUCER: CloseProducer,
    _C.SUBSCRIBE_SUCCESS: SubscribeSuccess,
    _C.MESSAGE: Messages,
    _C.REACHED_END: ReachedEnd,
    _C.CLOSE_CONSUMER: CloseConsumer,
}

# By what a request is answered, where that is not SUCCESS; and the result in SUCCESS, where the client reads it.
ANSWERS: dict[Command, Command] = {
    _C.SCALABLE_TOPIC_LOOKUP: _C.SCALABLE_TOPIC_UPDATE,
    _C.SCALABLE_TOPIC_SUBSCRIBE: _C.SCALABLE_TOPIC_ASSIGNMENT,
    _C.WATCH_TOPIC_LIST: _C.WATCH_TOPIC_LIST_UPDATE,
    _C.PRODUCER: _C.PRODUCER_SUCCESS,
    _C.SUBSCRIBE: _C.SUBSCRIBE_SUCCESS,
}
RESULTS: dict[Command, type[_Struct]] = {
    _C.SEGMENT_OFFSET: Place,
    _C.SEGMENT_FILES: Files,
    _C.TOPIC_SCHEMA: Schemas,
    _C.GET_TOPICS_OF_NAMESPACE: TopicNames,
    _C.NEW_TXN: Begun,
    _C.END_TXN: Ended,
    _C.TXN_STATE: Standing,
}


def check_frame(command: Command, header: dict[str, Any]) -> None:
    """Raise ProtocolError, naming the command and the field, for a frame that no broker sends."""
    kind = FRAMES.get(command)
    if kind is not None:
        _check(command.name, header, kind)


def check_answer(request: Command, answer: Command, header: dict[str, Any]) -> None:
    """Raise ProtocolError for an answer to another request, or with another result. The frame itself is checked."""
    if answer is _C.ERROR:
        return
    expected = ANSWERS.get(request, _C.SUCCESS)
    if answer is not expected:
        raise ProtocolError(f"{request.name} must be answered by {expected.name}, got {answer.name}")
    if (kind := RESULTS.get(request)) is not None:
        _check(f"the answer to {request.name}", header.get("result"), kind)


def _check(what: str, value: Any, kind: type[_Struct]) -> None:
    try:
        fault = msgspec.convert(value, kind).fault()
    except msgspec.ValidationError as e:
        fault = str(e)
    if fault is not None:
        raise ProtocolError(f"{what} is malformed: {fault}")


def _disorder(name: str, ranges: list[Any] | None) -> str | None:
    """What is wrong with ranges of which one ends before it begins."""
    wrong = next((r for r in ranges or () if r[0] > r[1]), None)
    return None if wrong is None else f"{name} must have ranges [first, last] with first <= last, got {list(wrong)}"
