"""Codes of errors are a part of the protocol: one for each class, in order, and none ever changes."""

from __future__ import annotations

import inspect

import pytest

from engine import errors
from engine.errors import EngineError

CLASSES = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, EngineError)]

# As released. Add a line for a new error; change none.
CODES = {
    "EngineError": 1,
    "NotFoundError": 2,
    "AlreadyExistsError": 3,
    "AuthenticationError": 4,
    "AuthorizationError": 5,
    "TimeoutError": 6,
    "AlreadyClosedError": 7,
    "ProducerBusyError": 8,
    "FencedError": 9,
    "ConsumerBusyError": 10,
    "ConnectError": 11,
    "QueueFullError": 12,
    "MemoryLimitError": 13,
    "MessageTooLargeError": 14,
    "TransactionConflictError": 15,
    "TransactionNotFoundError": 16,
    "InvalidArgumentError": 17,
    "InvalidConfigurationError": 18,
    "CorruptionError": 19,
    "UnknownOutcomeError": 20,
    "UnsupportedError": 21,
    "StorageError": 22,
    "DiskFullError": 23,
    "SegmentSealedError": 24,
    "NotOwnerError": 25,
    "ProtocolError": 26,
    "DataDirectoryBusyError": 27,
    "SubscriptionKindError": 28,
    "PartlyStoredError": 29,
    "SchemaError": 30,
    "WrongPeerError": 35,
    "DataDirectoryError": 36,
    "PermitTimeoutError": 40,
    "PermitQueueFullError": 41,
    "TooManyRequestsError": 42,
    "SubscriptionNotFoundError": 43,
    "DecryptionError": 50,
    "MissingKeyError": 51,
    "WrongKeyError": 52,
    "LimitExceededError": 53,
    "EncryptionRequiredError": 54,
    "NoResponderError": 55,
}


def test_classes_stand_in_the_order_of_their_codes() -> None:
    codes = [kind.code for kind in CLASSES]
    assert codes == sorted(set(codes))


def test_codes_are_those_that_were_released() -> None:
    assert {kind.__name__: kind.code for kind in CLASSES} == CODES


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_code_becomes_the_error_that_was_sent(kind: type[EngineError]) -> None:
    error = EngineError.from_code(kind.code, "what happened")
    assert (type(error), str(error)) == (kind, "what happened")


def test_an_unknown_code_becomes_the_base() -> None:
    error = EngineError.from_code(max(CODES.values()) + 1, "from a newer version")
    assert (type(error), str(error)) == (EngineError, "from a newer version")


def test_a_code_cannot_be_given_twice() -> None:
    with pytest.raises(TypeError, match="share the wire code 2"):
        type("Other", (EngineError,), {"code": 2})
    with pytest.raises(TypeError, match="a wire code of its own"):
        type("Other", (EngineError,), {})
