"""How our errors are named in Apache Pulsar's protocol: its ServerError, which says what a client does about it."""

from __future__ import annotations

from engine.errors import (
    AuthenticationError,
    AuthorizationError,
    ConsumerBusyError,
    CorruptionError,
    EngineError,
    FencedError,
    InvalidArgumentError,
    LimitExceededError,
    NotFoundError,
    ProducerBusyError,
    SchemaError,
    SegmentSealedError,
    StorageError,
    SubscriptionNotFoundError,
    TooManyRequestsError,
    TransactionConflictError,
    TransactionNotFoundError,
    UnsupportedError,
)

UNKNOWN = 0
PERSISTENCE = 2
AUTHENTICATION = 3
AUTHORIZATION = 4
CONSUMER_BUSY = 5
NOT_READY = 6  # the client looks the topic up again, and tries again
CHECKSUM = 9
UNSUPPORTED_VERSION = 10
TOPIC_NOT_FOUND = 11
SUBSCRIPTION_NOT_FOUND = 12
TOO_MANY = 14
TOPIC_TERMINATED = 15
PRODUCER_BUSY = 16
INVALID_TOPIC = 17
INCOMPATIBLE_SCHEMA = 18
NO_COORDINATOR = 20
NOT_ALLOWED = 22
TRANSACTION_CONFLICT = 23
TRANSACTION_NOT_FOUND = 24
PRODUCER_FENCED = 25

# The first that fits.
_OF: tuple[tuple[type[EngineError], int], ...] = (
    (AuthenticationError, AUTHENTICATION),
    (AuthorizationError, AUTHORIZATION),
    (ConsumerBusyError, CONSUMER_BUSY),
    (ProducerBusyError, PRODUCER_BUSY),
    (FencedError, PRODUCER_FENCED),
    (SegmentSealedError, TOPIC_TERMINATED),
    (TransactionConflictError, TRANSACTION_CONFLICT),
    (TransactionNotFoundError, TRANSACTION_NOT_FOUND),
    (SubscriptionNotFoundError, SUBSCRIPTION_NOT_FOUND),
    (NotFoundError, TOPIC_NOT_FOUND),
    (SchemaError, INCOMPATIBLE_SCHEMA),
    (TooManyRequestsError, TOO_MANY),
    (LimitExceededError, NOT_ALLOWED),
    (CorruptionError, CHECKSUM),
    (StorageError, PERSISTENCE),
    (UnsupportedError, NOT_ALLOWED),
    (InvalidArgumentError, NOT_ALLOWED),
)


def number_of(error: EngineError) -> int:
    """The ServerError of an error."""
    found = next((number for kind, number in _OF if isinstance(error, kind)), UNKNOWN)
    return NOT_READY if error.retryable and found in (UNKNOWN, PERSISTENCE) else found
