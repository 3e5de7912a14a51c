"""Statistics of topics in the form of Apache Pulsar's admin REST. Rates are per second, sizes bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES = {"stream": "Exclusive", "queue": "Shared"}
_SUMS = ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut", "storageSize", "backlogSize")
_SUBSCRIPTION_SUMS = ("msgRateOut", "msgThroughputOut", "msgBacklog", "msgDelayed", "unackedMessages")


def topic_stats(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """Of our statistics of a topic; None: of one that was not used yet."""
    if found is None:
        return {**dict.fromkeys(_SUMS, 0), "publishers": [], "subscriptions": {}, "deduplicationStatus": "Enabled"}
    return {
        "msgRateIn": found["msgRateIn"],
        "msgThroughputIn": found["bytesRateIn"],
        "msgRateOut": found["msgRateOut"],
        "msgThroughputOut": found["bytesRateOut"],
        "averageMsgSize": found["bytesRateIn"] / found["msgRateIn"] if found["msgRateIn"] else 0.0,
        "storageSize": found["storageSize"],
        "backlogSize": 0,
        "publishers": [_publisher(one) for segment in found["segments"].values() for one in segment["publishers"]],
        "subscriptions": {name: _subscription(one) for name, one in found["subscriptions"].items()},
        "replication": {},
        "deduplicationStatus": "Enabled",
    }


def _publisher(found: Mapping[str, Any]) -> dict[str, Any]:
    mode = found["accessMode"].replace("_", " ").title().replace(" ", "")
    return {"producerName": found["producerName"], "accessMode": mode, "metadata": found["properties"]}


def _subscription(found: Mapping[str, Any]) -> dict[str, Any]:
    consumers = [
        {
            "consumerName": name,
            "msgRateOut": one["msgRateOut"],
            "msgThroughputOut": one["bytesRateOut"],
            "unackedMessages": one["unackedMessages"],
        }
        for name, one in found["consumers"].items()
        if one["connected"]
    ]
    made: dict[str, Any] = {
        "msgRateOut": found["msgRateOut"],
        "msgThroughputOut": found["bytesRateOut"],
        "msgBacklog": found["backlog"],
        "msgDelayed": found["delayed"],
        "unackedMessages": sum(one["unackedMessages"] for one in consumers),
        "consumers": consumers,
        "durable": True,
        "replicated": False,
    }
    if (kind := _TYPES.get(found["kind"])) is not None:
        made["type"] = kind
    return made


def partitioned_stats(found: Mapping[str, dict[str, Any]], metadata: dict[str, Any], *, each: bool) -> dict[str, Any]:
    """Sums over partitions, and the partitions themselves with `each`."""
    whole: dict[str, Any] = {name: sum(one.get(name, 0) for one in found.values()) for name in _SUMS}
    subscriptions: dict[str, dict[str, Any]] = {}
    for one in found.values():
        for name, numbers in one["subscriptions"].items():
            into = subscriptions.get(name)
            if into is None:
                subscriptions[name] = {**numbers, "consumers": list(numbers["consumers"])}
                continue
            for sum_name in _SUBSCRIPTION_SUMS:
                into[sum_name] += numbers[sum_name]
            into["consumers"] += numbers["consumers"]
    publishers = [publisher for one in found.values() for publisher in one["publishers"]]
    whole |= {"publishers": publishers, "subscriptions": subscriptions, "metadata": metadata}
    return {**whole, "partitions": dict(found) if each else {}}
