"""The options that clients, producers and consumers are made with: frozen records, checked when they are made."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from engine.aio.files import ReadFile
from engine.client.base.schema import Schema
from engine.clock import Clock
from engine.errors import InvalidArgumentError
from engine.limits import (
    BATCH_BYTES_MAX,
    BATCH_DELAY_S_MAX,
    BATCH_MESSAGES_MAX,
    CLIENT_MEMORY_MAX,
    ENTRY_MESSAGES_MAX,
    ENTRY_SIZE_MAX,
    KIB,
    MESSAGE_SIZE_MAX,
    MIB,
    OPERATION_TIMEOUT_S,
    PENDING_BYTES_MAX,
    RECEIVE_QUEUE_MESSAGES,
    SEND_TIMEOUT_S,
)
from engine.model.access import AccessMode
from engine.model.checks import check_choice, check_flag, check_number
from engine.model.names import check_new_name
from engine.model.positions import Checkpoint
from engine.model.redelivery import Backoff, DeadLetter
from engine.wire.stream import Connector

if TYPE_CHECKING:
    from engine.client.base.object_access import OpenStore
    from engine.wire.connector import Tls

ACCESS_MODES = tuple(AccessMode)
INITIAL_POSITIONS = ("earliest", "latest")
AUTO: Literal["auto"] = "auto"
ON_CORRUPT = ("stop", "skip")
AccessModeName = Literal["shared", "exclusive", "exclusive_with_fencing", "wait_for_exclusive"]
CompressionName = Literal["none", "lz4", "zstd"]
InitialPosition = Literal["earliest", "latest"]
OnCorrupt = Literal["stop", "skip"]
Keys = Mapping[str, str | bytes | PathLike[str]]  # PEM, or the path of a file, by name
COUNT_MAX = 2**31 - 1  # of messages or bytes requested at once
ACK_TIMEOUT_S_MIN = 0.01
_LARGEST_MESSAGE = f"the largest message, {MESSAGE_SIZE_MAX // MIB} MiB, has to fit"
_LARGEST_ENTRY = f"the largest batch that a broker may send, {ENTRY_SIZE_MAX // MIB} MiB, has to fit"
SECONDS_MAX = 1e9  # 31 years: what an event loop's timers can count


def check_seconds(name: str, value: Any, low: float = 0) -> None:
    """Raise InvalidArgumentError unless `value` is a number of seconds, at least `low`, that a timer can wait."""
    check_number(name, value, low, SECONDS_MAX)


def check_start(start: object) -> None:
    """Raise InvalidArgumentError unless it is a Checkpoint, or None."""
    if start is not None and not isinstance(start, Checkpoint):
        raise InvalidArgumentError(f"start must be an engine.Checkpoint, got {type(start).__name__}")


def check_count(name: str, value: Any) -> None:
    """Raise InvalidArgumentError unless it is a number of messages or bytes to ask for, 1 or more."""
    if type(value) is not int or not 1 <= value <= COUNT_MAX:
        check_number(name, value, 1, COUNT_MAX, whole=True)


def check_keys(name: str, keys: Keys | None) -> None:
    """Raise InvalidArgumentError unless it is None or a mapping. Each key is checked where it is first used."""
    if keys is not None and not isinstance(keys, Mapping):
        raise InvalidArgumentError(f"{name} must be a mapping of names to keys in PEM, got {type(keys).__name__}")


def check_timeout(timeout: float | None) -> None:
    """Raise InvalidArgumentError unless it is None (no limit) or a number of seconds, 0 or more."""
    if timeout is not None and not (type(timeout) in (int, float) and 0 <= timeout <= SECONDS_MAX):
        check_seconds("timeout", timeout)


@dataclass(frozen=True, slots=True)
class Batching:
    """When a producer closes a batch: at the first of these limits.

    `max_bytes` of keys and values and `max_messages` are per entry bucket; `max_delay` is the most seconds that a
    message waits while others are in flight. A producer with nothing in flight sends at once, whatever the delay.
    """

    max_bytes: int = BATCH_BYTES_MAX
    max_messages: int = BATCH_MESSAGES_MAX
    max_delay: float = BATCH_DELAY_S_MAX

    def __post_init__(self) -> None:
        check_number("batching.max_bytes", self.max_bytes, 1 * KIB, ENTRY_SIZE_MAX, whole=True)
        check_number("batching.max_messages", self.max_messages, 1, ENTRY_MESSAGES_MAX, whole=True)
        check_number("batching.max_delay", self.max_delay, 0, 60)


Token = str | Callable[[], str]  # a callable returns the one that is valid now


class ClientKeywords(TypedDict, total=False):
    """The keyword arguments of AsyncClient, for the blocking client."""

    token: Token | None
    tls: ssl.SSLContext | None
    objects: str | OpenStore | None
    memory_limit: int
    operation_timeout: float
    connector: Connector | None
    clock: Clock | None
    rng: random.Random | None


class ProducerKeywords(TypedDict, total=False):
    """The keyword arguments of AsyncClient.producer, but `schema`, which decides on types."""

    name: str | None
    access_mode: AccessModeName
    batching: Batching | None
    compression: CompressionName
    send_timeout: float
    max_pending_bytes: int
    initial_sequence_id: int | None
    properties: Mapping[str, str] | None
    on_error: Callable[[Exception], object] | None
    encryption_keys: Keys | None


class StreamConsumerKeywords(TypedDict, total=False):
    """The keyword arguments of AsyncClient.stream_consumer, but `schema`, which decides on types."""

    namespace: str | None
    name: str | None
    initial_position: InitialPosition
    properties: Mapping[str, str] | None
    pattern: str | None
    receive_queue_size: int | Literal["auto"]
    create: bool
    on_corrupt: OnCorrupt
    decryption_keys: Keys | None


class QueueConsumerKeywords(StreamConsumerKeywords, total=False):
    """The keyword arguments of AsyncClient.queue_consumer."""

    ack_timeout: float | None
    nack_backoff: Backoff | float | None
    dead_letter: DeadLetter | None
    priority: int


class TopicListKeywords(TypedDict, total=False):
    """The keyword arguments of AsyncClient.list_topics and AsyncClient.watch_topics."""

    pattern: str | None
    properties: Mapping[str, str] | None


class RangeReaderKeywords(TypedDict, total=False):
    """The keyword arguments of AsyncClient.range_reader."""

    buckets: tuple[int, int] | None
    keys: Iterable[bytes | str] | None
    skip_deleted: bool
    receive_queue_size: int | Literal["auto"]
    on_corrupt: OnCorrupt
    decryption_keys: Keys | None


class CheckpointConsumerKeywords(TypedDict, total=False):
    """The keyword arguments of AsyncClient.checkpoint_consumer, but `schema`, which decides on types."""

    start: Checkpoint | None
    group: str | None
    name: str | None
    receive_queue_size: int | Literal["auto"]
    create: bool
    on_corrupt: OnCorrupt
    decryption_keys: Keys | None


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options of a client, which everything made by it shares. Times are seconds, sizes bytes.

    `threadsafe`: producers' `send_nowait` may be called from threads other than the loop's (the blocking client).
    """

    connector: Connector
    clock: Clock
    rng: random.Random
    token: Token | None = field(default=None, repr=False)
    tls: Tls | None = None  # for the admin API; the connector has it for the rest
    memory_limit: int = CLIENT_MEMORY_MAX
    operation_timeout: float = OPERATION_TIMEOUT_S
    threadsafe: bool = False
    open_file: Callable[[str], ReadFile] = ReadFile  # of a broker on this machine
    open_objects: OpenStore | None = None  # of the brokers' cluster, with this client's credentials

    def __post_init__(self) -> None:
        if self.token is not None and not callable(self.token):
            _check_token(self.token, "token must be text")
        check_number("memory_limit", self.memory_limit, ENTRY_SIZE_MAX, whole=True, why=_LARGEST_ENTRY)
        check_seconds("operation_timeout", self.operation_timeout, 0.001)

    def token_now(self) -> str | None:
        """The token; of a callable, what it returns. Raises InvalidArgumentError, and what the callable raises."""
        if not callable(self.token):
            return self.token
        return _check_token(self.token(), "token() must return text")


def _check_token(token: object, what: str) -> str:
    if not isinstance(token, str):
        raise InvalidArgumentError(f"{what}, got {type(token).__name__}")
    if token != token.strip():  # never shown
        raise InvalidArgumentError("token must not begin or end with white space, as what is read from a file does")
    return token


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The keyword arguments of `producer()`."""

    name: str | None = None
    access_mode: str = "shared"
    batching: Batching = field(default_factory=Batching)
    compression: str = "none"
    send_timeout: float = SEND_TIMEOUT_S
    max_pending_bytes: int = PENDING_BYTES_MAX
    initial_sequence_id: int | None = None
    on_error: Callable[[Exception], object] | None = None
    encryption_keys: Keys | None = field(default=None, repr=False)
    schema: Schema[Any] = field(default_factory=Schema.bytes)
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name is not None:
            check_new_name(self.name, "producer", pattern=False)
        check_choice("access_mode", self.access_mode, ACCESS_MODES)
        check_keys("encryption_keys", self.encryption_keys)
        check_seconds("send_timeout", self.send_timeout, 0.001)
        check_number("max_pending_bytes", self.max_pending_bytes, MESSAGE_SIZE_MAX, whole=True, why=_LARGEST_MESSAGE)
        if self.initial_sequence_id is not None:
            check_number("initial_sequence_id", self.initial_sequence_id, -1, 2**63 - 2, whole=True)
        if not isinstance(self.batching, Batching):
            raise InvalidArgumentError(
                f"batching must be an engine.Batching or None, got {self.batching!r}; "
                "Batching(max_messages=1) makes every message a batch of its own"
            )
        if self.on_error is not None and not callable(self.on_error):
            raise InvalidArgumentError(f"on_error must be a function of one exception, got {self.on_error!r}")


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The options that the three kinds of consumers share.

    `subscription` is None for a checkpoint consumer, `group` is None for all others. `create_topic`: whether a missing
    topic is created, where the broker allows it. `priority`: of a queue consumer; the lowest is served first.
    `on_corrupt`: what happens at a bad entry. `receive_queue_size`: messages fetched ahead; "auto" follows the pace of
    a queue consumer, and is as much as memory allows for all others.
    """

    name: str
    instance: str
    subscription: str | None = None
    initial_position: str = "latest"
    receive_queue_size: int | Literal["auto"] = "auto"
    group: str | None = None
    create_topic: bool = True
    priority: int = 0
    schema: Schema[Any] = field(default_factory=Schema.bytes)
    on_corrupt: str = "stop"
    decryption_keys: Keys | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_new_name(self.name, "consumer", pattern=False)
        check_keys("decryption_keys", self.decryption_keys)
        check_choice("on_corrupt", self.on_corrupt, ON_CORRUPT)
        if self.group is not None:
            check_new_name(self.group, "consumer group", pattern=False)
        check_choice("initial_position", self.initial_position, INITIAL_POSITIONS)
        check_flag("create", self.create_topic)
        check_number("priority", self.priority, 0, COUNT_MAX, whole=True)
        if isinstance(self.receive_queue_size, str) and self.receive_queue_size != AUTO:
            raise InvalidArgumentError(
                f"receive_queue_size must be a number of messages or 'auto', got {self.receive_queue_size!r}"
            )
        if self.receive_queue_size != AUTO:
            check_number("receive_queue_size", self.receive_queue_size, 1, COUNT_MAX, whole=True)

    @property
    def fetched_ahead(self) -> int:
        """Messages, of a consumer that reads in order: no other may have them, so only memory limits their number."""
        return RECEIVE_QUEUE_MESSAGES if self.receive_queue_size == AUTO else self.receive_queue_size

    @property
    def announced_window(self) -> int | None:
        """What FLOW says at first: the broker may send whole blocks, where the number is not fixed."""
        return RECEIVE_QUEUE_MESSAGES if self.receive_queue_size == AUTO else None


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The keyword arguments that only `queue_consumer()` has. `own_transaction`: begins one of a timeout in seconds, in
    which dead letters are moved.
    """

    ack_timeout: float | None = None
    nack_backoff: Backoff = field(default_factory=lambda: Backoff.constant(1.0))
    dead_letter: DeadLetter | None = None
    own_transaction: Callable[[float], AbstractAsyncContextManager[Any]] | None = None

    def __post_init__(self) -> None:
        if self.ack_timeout is not None:
            check_seconds("ack_timeout", self.ack_timeout, ACK_TIMEOUT_S_MIN)
        if self.dead_letter is not None and not isinstance(self.dead_letter, DeadLetter):
            raise InvalidArgumentError(f"dead_letter must be an engine.DeadLetter or None, got {self.dead_letter!r}")


def consumer_options(
    make_name: Callable[[str], str], name: str | None, *, schema: object = None, **more: Any
) -> ConsumerOptions:
    """Of a consumer that has that name, or one made up."""
    made = make_name("consumer") if name is None else name
    return ConsumerOptions(name=made, instance=make_name("instance"), schema=Schema.of(schema), **more)


def backoff_of(option: Backoff | float | None) -> Backoff:
    """A back-off, or a plain number of seconds; one second when it is None. Raises InvalidArgumentError."""
    if isinstance(option, Backoff):
        return option
    seconds = 1.0 if option is None else option
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidArgumentError(f"nack_backoff must be an engine.Backoff or a number of seconds, got {option!r}")
    check_seconds("nack_backoff", seconds)
    return Backoff.constant(float(seconds))
