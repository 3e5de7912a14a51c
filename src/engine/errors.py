"""Every exception, its wire code, and what the caller may do about it.

Each class carries three facts: `code`, a stable number that travels on the wire (a duplicate is refused
when this module loads); `retryable`, whether the same call may succeed later without a change by the
caller; `layout_stale`, whether the caller should look the topic's layout up again before retrying.

Classes are ordered by code. A code is never changed and never given again; a new error takes the next one, at the end.
"""

from __future__ import annotations

import builtins
from typing import ClassVar


class EngineError(Exception):
    """Base of every error that Engine raises."""

    code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False
    layout_stale: ClassVar[bool] = False

    _by_code: ClassVar[dict[int, type[EngineError]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" not in cls.__dict__:
            raise TypeError(f"{cls.__name__} needs a wire code of its own")
        known = EngineError._by_code.setdefault(cls.code, cls)
        if known is not cls:
            raise TypeError(f"{cls.__name__} and {known.__name__} share the wire code {cls.code}")

    @staticmethod
    def from_code(code: int, message: str) -> EngineError:
        """The exception that a peer meant by `code`; an unknown code becomes a plain EngineError."""
        return EngineError._by_code.get(code, EngineError)(message)


class NotFoundError(EngineError):
    """A topic, subscription, segment or transaction that does not exist."""

    code = 2


class AlreadyExistsError(EngineError):
    """Something of that name is there already."""

    code = 3


class AuthenticationError(EngineError):
    """The credentials are missing, malformed, expired or wrong."""

    code = 4


class AuthorizationError(EngineError):
    """The credentials are good, but not for this."""

    code = 5


class TimeoutError(EngineError, builtins.TimeoutError):  # noqa: A001 - the pinned public name
    """The operation did not finish in its time; its outcome may be unknown."""

    code = 6
    retryable = True


class AlreadyClosedError(EngineError):
    """The client, producer, consumer or engine was closed."""

    code = 7


class ProducerBusyError(EngineError):
    """Another producer holds the access that was asked for."""

    code = 8


class FencedError(EngineError):
    """A newer owner, leader or producer has taken over; what this one does is refused for good."""

    code = 9


class ConsumerBusyError(EngineError):
    """Another consumer holds the subscription or the consumer name."""

    code = 10


class ConnectError(EngineError):
    """No connection to the broker could be made, or it was lost and not re-established in time."""

    code = 11
    retryable = True


class QueueFullError(EngineError):
    """The pending-bytes limit of a producer is reached; wait for room and send again."""

    code = 12
    retryable = True


class MemoryLimitError(EngineError):
    """A memory limit was reached and no room came free in time."""

    code = 13
    retryable = True


class MessageTooLargeError(EngineError):
    """A key, value, property map or entry is over its limit; nothing was sent."""

    code = 14


class TransactionConflictError(EngineError):
    """The transaction has ended, or another open transaction holds what this one asked for."""

    code = 15


class TransactionNotFoundError(EngineError):
    """No transaction of that id is known."""

    code = 16


class InvalidArgumentError(EngineError, ValueError):
    """An argument has the wrong type, form or range; the text says what it must be."""

    code = 17


class InvalidConfigurationError(EngineError, ValueError):
    """A configuration key is unknown or its value is out of range; the text names the key."""

    code = 18


class CorruptionError(EngineError):
    """Stored or received bytes are damaged; the text names the file or the segment and offset.

    Where a consumer met it, also as `topic`, `segment_id` and `offsets`: the first and last that it concerns, of which
    the last is None where it is not known how far it goes.
    """

    code = 19
    topic: str | None = None
    segment_id: int | None = None
    offsets: tuple[int, int | None] | None = None


class UnknownOutcomeError(EngineError):
    """The operation may or may not have taken effect; read back to find out."""

    code = 20


class UnsupportedError(EngineError):
    """The peer, the format or the platform lacks what was asked for."""

    code = 21


class StorageError(EngineError):
    """The disk refused an operation; nothing that was acknowledged is affected."""

    code = 22
    retryable = True


class DiskFullError(StorageError):
    """No space is left on the device that holds the data directory."""

    code = 23


class SegmentSealedError(EngineError):
    """The segment takes no more messages. The client re-routes; users never see it."""

    code = 24
    retryable = True
    layout_stale = True


class NotOwnerError(EngineError):
    """This broker does not own the segment or lead the topic. The client looks again; users never see it."""

    code = 25
    retryable = True
    layout_stale = True


class ProtocolError(EngineError):
    """The peer sent bytes that are not this protocol; the connection is closed."""

    code = 26


class DataDirectoryBusyError(EngineError):
    """Another process has this data directory open."""

    code = 27


class SubscriptionKindError(ConsumerBusyError):
    """Consumers of another kind hold the subscription; while they do, waiting does not help."""

    code = 28


class PartlyStoredError(InvalidArgumentError):
    """Some of an entry's messages are stored and others are not. The client takes it apart; users never see it."""

    code = 29
    sequence: int | None = None  # the entry's first one, where it was found out


class SchemaError(InvalidArgumentError):
    """A schema does not go together with the topic's, or a value not with its schema."""

    code = 30


class WrongPeerError(ConnectError):
    """What answers at an address is no broker; connecting once more does not help, another address does."""

    code = 35
    retryable = False


class DataDirectoryError(StorageError):
    """The data directory cannot be used as it is. The text names it, and says why; trying again does not help."""

    code = 36
    retryable = False


class PermitTimeoutError(MemoryLimitError):
    """The broker's memory for this was in use and none came free in the time allowed; try again later."""

    code = 40
    retryable = True


class PermitQueueFullError(MemoryLimitError):
    """The broker's memory for this is in use, and as many wait for it as may; try again later."""

    code = 41
    retryable = True


class TooManyRequestsError(EngineError):
    """The broker has as many requests of this kind under way as it takes; try again later."""

    code = 42
    retryable = True


class SubscriptionNotFoundError(NotFoundError):
    """The subscription was deleted, whatever there is under its name now; attaching again does not help."""

    code = 43


class DecryptionError(EngineError):
    """An entry cannot be opened with the keys at hand. Nothing is lost: with the right key it can be read.

    This class itself: it was encrypted, or sent in chunks, by a client of Apache Pulsar, and only these can read it.
    Then it has also `segment_id` and `offsets`, the first and last of the entry, and, of a consumer, `topic`.
    """

    code = 50
    topic: str | None = None
    segment_id: int | None = None
    offsets: tuple[int, int] | None = None


class MissingKeyError(DecryptionError):
    """There is no private key of any name that the entry was encrypted for; the text has the names."""

    code = 51


class WrongKeyError(DecryptionError):
    """There is a private key of that name, but the entry was encrypted for another public key."""

    code = 52


class LimitExceededError(EngineError):
    """A limit of a topic, namespace, tenant, role or of the broker is reached. The text says which, whose, its value,
    and what was asked for; so do `limit`, `resource` and `value`, where the text is a broker's.
    """

    code = 53
    retryable = True

    @staticmethod
    def of(limit: str, resource: str, value: object, asked: str) -> LimitExceededError:
        """`asked`: what would be beyond it."""
        return LimitExceededError(f"{limit} of {resource} must be at most {value}, got {asked}")

    @property
    def limit(self) -> str | None:
        """The name of the limit."""
        return self._parts()[0]

    @property
    def resource(self) -> str | None:
        """That has the limit: "*", a tenant, "tenant/namespace", "tenant/namespace/topic", "role:NAME"."""
        return self._parts()[1]

    @property
    def value(self) -> int | None:
        """Of the limit."""
        found = self._parts()[2]
        return int(found) if found is not None and found.isdigit() else None

    def _parts(self) -> tuple[str | None, str | None, str | None]:
        limit, of, rest = str(self).partition(" of ")
        resource, must, rest = rest.partition(" must be at most ")
        return (limit, resource, rest.partition(",")[0]) if of and must else (None, None, None)


class EncryptionRequiredError(EngineError):
    """The topic, or its namespace, takes only messages that are encrypted end to end; nothing was stored."""

    code = 54


class NoResponderError(TimeoutError):
    """No reply came in time, and no subscription of the topic has a consumer that could have sent one."""

    code = 55


class NotAwaitedError(TypeError, AttributeError):
    """A producer, consumer or transaction was used before `await` or `async with` had made it.

    A mistake in the program, which no peer sends: it has no code, and is no EngineError.
    """
