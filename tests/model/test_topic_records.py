"""Subscriptions, registrations and policies: their JSON and what is refused."""

from __future__ import annotations

import json

import pytest

from engine.errors import CorruptionError, InvalidArgumentError
from engine.model.access import AccessMode
from engine.model.policies import NamespacePolicies
from engine.model.subscriptions import (
    ConsumerRegistration,
    DeliveryMode,
    InitialPosition,
    Share,
    SubscriptionKind,
    SubscriptionMetadata,
    SubscriptionState,
)

SUBSCRIPTIONS = [
    SubscriptionMetadata("s", InitialPosition.EARLIEST, 5),
    SubscriptionMetadata("ü/🙂", InitialPosition.LATEST, 0, SubscriptionKind.QUEUE, SubscriptionState.DELETING),
]
REGISTRATION = ConsumerRegistration("c", "i", SubscriptionKind.STREAM, 7, 3, (Share(1), Share(4)))


@pytest.mark.parametrize("facts", SUBSCRIPTIONS)
def test_subscription_round_trip(facts: SubscriptionMetadata) -> None:
    assert SubscriptionMetadata.from_json(facts.to_json()) == facts


def test_registration_round_trip() -> None:
    assert ConsumerRegistration.from_json(REGISTRATION.to_json()) == REGISTRATION
    assert json.loads(REGISTRATION.to_json())["assignment"] == {"layoutEpoch": 3, "segmentIds": [1, 4]}
    assert REGISTRATION.segment_ids == (1, 4)


def test_a_registration_says_which_segments_are_shared() -> None:
    shares = (Share(1), Share(4, DeliveryMode.SHARED))
    registration = ConsumerRegistration("c", "i", SubscriptionKind.STREAM, 7, 3, shares)
    assert ConsumerRegistration.from_json(registration.to_json()) == registration
    expected = {"layoutEpoch": 3, "segmentIds": [1, 4], "sharedSegmentIds": [4]}
    assert json.loads(registration.to_json())["assignment"] == expected


@pytest.mark.parametrize("field", ["consumerName", "instance", "kind", "term", "assignment"])
def test_a_registration_without_a_field_names_it(field: str) -> None:
    fields = json.loads(REGISTRATION.to_json())
    del fields[field]
    with pytest.raises(CorruptionError, match=field):
        ConsumerRegistration.from_json(json.dumps(fields).encode())


@pytest.mark.parametrize("field", ["subscription", "initialPosition", "createdAtMs", "state"])
def test_a_subscription_with_a_wrong_field_names_it(field: str) -> None:
    fields = json.loads(SUBSCRIPTIONS[0].to_json()) | {field: [1]}
    with pytest.raises(CorruptionError, match=field):
        SubscriptionMetadata.from_json(json.dumps(fields).encode())


def test_unknown_choices_say_what_is_right() -> None:
    with pytest.raises(InvalidArgumentError, match="must be one of stream, queue, checkpoint, got 'fanout'"):
        SubscriptionKind.parse("fanout")
    with pytest.raises(InvalidArgumentError, match="must be one of earliest, latest, got 'first'"):
        InitialPosition.parse("first")
    with pytest.raises(InvalidArgumentError, match="mode must be one of exclusive, shared, queue, reader, got 'loud'"):
        DeliveryMode.parse("loud")
    modes = "shared, exclusive, exclusive_with_fencing, wait_for_exclusive"
    with pytest.raises(InvalidArgumentError, match=f"access_mode must be one of {modes}, got 'loud'"):
        AccessMode.parse("loud")


def test_policies_round_trip_and_defaults() -> None:
    policies = NamespacePolicies.of({"retention_time_s": 60, "retention_size_bytes": 10, "durability": "os"})
    assert NamespacePolicies.from_json(policies.to_json()) == policies
    assert NamespacePolicies.of(policies.to_mapping()) == policies
    assert NamespacePolicies().retention_time_s == 7 * 24 * 3600
    assert NamespacePolicies.of({"retention_time_s": -1, "retention_size_bytes": -1}).retention_time_s == -1  # for ever
    assert NamespacePolicies.from_json(b"{}") == NamespacePolicies()


@pytest.mark.parametrize(
    "wrong",
    [
        {"retention_time_s": 1.5},
        {"retention_time_s": None},
        {"retention_time_s": -2},
        {"retention_size_bytes": -5},
        {"retention_size_bytes": "1"},
        {"durability": "x"},
        {"ttl": 1},
    ],
)
def test_policies_refuse_and_name_the_field(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        NamespacePolicies.of(wrong)


def test_policies_of_a_version_for_which_every_negative_number_had_no_limit() -> None:
    read = NamespacePolicies.from_json(b'{"retentionTimeSeconds":-7,"retentionSizeBytes":-2}')
    assert (read.retention_time_s, read.retention_size_bytes) == (-1, -1)


def test_damaged_policies_are_corruption() -> None:
    with pytest.raises(CorruptionError, match="retention_time_s"):
        NamespacePolicies.from_json(b'{"retentionTimeSeconds":"x"}')
