"""Subscriptions, registrations and policies: their JSON and what is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest

from engine.errors import CorruptionError, InvalidArgumentError
from engine.model import policies
from engine.model.access import AccessMode
from engine.model.fields import Fields
from engine.model.layout import SegmentLayout
from engine.model.policies import NamespacePolicies, TopicPolicies, policies_of_topic, resolved
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
    assert NamespacePolicies.of({"retention_time_s": -1, "retention_size_bytes": -1}).retention_time_s == -1  # for ever
    assert NamespacePolicies.from_json(b"{}") == NamespacePolicies()
    assert not NamespacePolicies()
    assert policies.changed({"durability": None, "retention_time_s": 0}).said() == {
        "retention_time_s": 0,
        "retention_size_bytes": 10,
    }


def test_policies_are_resolved_field_by_field() -> None:
    broker = NamespacePolicies(7, -1, durability="fsync", auto_create_topics=True)
    namespace = NamespacePolicies.of({"retention_time_s": 0, "auto_create_topics": False})
    assert resolved(None, namespace, broker) == {
        "retention_time_s": 0,
        "auto_create_topics": False,
        "retention_size_bytes": -1,
        "durability": "fsync",
    }
    assert resolved(TopicPolicies(retention_time_s=-1), namespace, broker)["retention_time_s"] == -1


def test_policies_that_replace_all_name_all() -> None:
    with pytest.raises(InvalidArgumentError, match="got none for retention_size_bytes; to change some, merge"):
        NamespacePolicies.of_all({"retention_time_s": 5, "durability": "os", "auto_create_topics": None})


def test_a_topics_policies_are_in_its_record_only_where_it_has_some() -> None:
    layout = SegmentLayout.create(now_ms=1)
    assert b"policies" not in layout.to_json()
    kept = dataclasses.replace(layout, policies=TopicPolicies(retention_size_bytes=-1))
    assert SegmentLayout.from_json(kept.to_json()) == kept
    assert policies_of_topic(kept.to_json()) == kept.policies
    damaged = kept.to_json().replace(b"-1", b'"x"')
    with pytest.raises(CorruptionError, match="retention_size_bytes"):
        SegmentLayout.from_json(damaged)


@pytest.mark.parametrize(
    "wrong",
    [
        {"retention_time_s": 1.5},
        {"auto_create_topics": 1},
        {"retention_time_s": -2},
        {"retention_size_bytes": -5},
        {"message_ttl_s": 0},
        {"message_ttl_s": 10**12},
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
    read = NamespacePolicies.from_json(b'{"retentionTimeSeconds":5,"retentionSizeBytes":null,"durability":null}')
    assert (read.retention_size_bytes, read.durability) == (-1, None), "null was no limit by size"


def test_damaged_policies_are_corruption() -> None:
    with pytest.raises(CorruptionError, match="retention_time_s"):
        NamespacePolicies.from_json(b'{"retentionTimeSeconds":"x"}')


def test_the_policies_of_a_wide_topic_are_read_once_for_all_of_its_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = SegmentLayout.create(now_ms=1, segments=64)
    records = [
        dataclasses.replace(wide, policies=TopicPolicies(retention_size_bytes=size)).to_json() for size in (7, 8)
    ]
    parse, parsed = Fields.parse, list[bytes]()

    def counted(what: str, value: bytes) -> Fields:
        parsed.append(value)
        return parse(what, value)

    policies._of_wide_topic.cache_clear()  # of other tests of this process
    monkeypatch.setattr(Fields, "parse", counted)
    for record, size in zip(records, (7, 8), strict=True):
        for _ in wide.segments:
            assert policies_of_topic(record).retention_size_bytes == size
    assert parsed == records
