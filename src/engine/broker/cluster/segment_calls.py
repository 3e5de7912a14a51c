"""The encoding of calls between brokers about a segment: `BROKER_CALL` with the target "segment"."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgpack

from engine.control.base.ports import (
    HostedConsumerStatistics,
    HostedSegmentStatistics,
    SegmentEnd,
    SegmentHost,
    SegmentSpec,
    SubscriptionStatistics,
)
from engine.errors import InvalidArgumentError
from engine.model.names import SegmentName
from engine.model.subscriptions import InitialPosition

if TYPE_CHECKING:
    from typing_extensions import Buffer

CALL_S_MAX = 10.0  # one call, and all attempts of one together

Args = Mapping[str, Any]


def pack(value: object) -> bytes:
    """A call's arguments, or its result, as the payload of a frame."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(payload: Buffer) -> Any:
    """Undo pack(). Raises InvalidArgumentError."""
    try:
        return msgpack.unpackb(payload, raw=False)
    except (ValueError, msgpack.UnpackException) as e:
        raise InvalidArgumentError(f"a call must be a msgpack value, got {e!r}") from None


def unpack_args(payload: Buffer) -> dict[str, Any]:
    """A call's arguments. Raises InvalidArgumentError."""
    args = unpack(payload)
    if not isinstance(args, dict):
        raise InvalidArgumentError(f"a call's arguments must be a map, got {type(args).__name__}")
    return args


def pack_spec(spec: SegmentSpec) -> dict[str, Any]:
    """A spec as plain values."""
    return {
        "name": str(spec.name),
        "durability": spec.durability,
        "bucket_ends": list(spec.bucket_ends),
        "sealed": spec.sealed,
    }


def unpack_spec(args: Args) -> SegmentSpec:
    """Undo pack_spec(), of a call's arguments. Raises InvalidArgumentError."""
    try:
        spec = args["spec"]
        name = SegmentName.parse(spec["name"])
        return SegmentSpec(name, str(spec["durability"]), tuple(map(int, spec["bucket_ends"])), bool(spec["sealed"]))
    except (KeyError, TypeError, ValueError) as e:
        raise InvalidArgumentError(f"a segment call must name its segment, got {e!r}") from None


def _position(value: object) -> int | InitialPosition:
    return value if isinstance(value, int) else InitialPosition.parse(str(value))


def pack_position(position: int | InitialPosition) -> int | str:
    """An offset, or "earliest" or "latest"."""
    return str(position) if isinstance(position, InitialPosition) else position


async def _terminate(host: SegmentHost, spec: SegmentSpec, args: Args) -> dict[str, Any]:
    return dataclasses.asdict(await host.terminate_segment(spec, term=args["term"]))


def unpack_end(value: Args) -> SegmentEnd:
    return SegmentEnd(value["offset"], value["producers"])


async def _statistics(host: SegmentHost, spec: SegmentSpec, args: Args) -> dict[str, Any]:
    found = await host.statistics(spec)
    return dataclasses.asdict(dataclasses.replace(found, subscriptions=dict(found.subscriptions)))


def unpack_statistics(value: Args) -> HostedSegmentStatistics:
    subscriptions = {name: _subscription(fields) for name, fields in value["subscriptions"].items()}
    return HostedSegmentStatistics(**{**value, "subscriptions": subscriptions})


_KNOWN = {field.name for field in dataclasses.fields(SubscriptionStatistics)}


def _subscription(fields: Args) -> SubscriptionStatistics:
    members = tuple(HostedConsumerStatistics(**member) for member in fields["members"])
    known = {name: value for name, value in fields.items() if name in _KNOWN}  # a newer broker may say more
    return SubscriptionStatistics(**{**known, "members": members})


# By name: the method on the owner's host, with the call's arguments, and its result as plain values.
SEGMENT_CALLS: dict[str, Callable[[SegmentHost, SegmentSpec, Args], Awaitable[Any]]] = {
    "create_segment": lambda h, s, a: h.create_segment(s, a["subscriptions"], term=a["term"]),
    "terminate_segment": _terminate,
    "inherit": lambda h, s, a: h.inherit(s, a["producers"], term=a["term"]),
    "delete_segment": lambda h, s, a: h.delete_segment(s, term=a["term"]),
    "subscriptions": lambda h, s, a: h.subscriptions(s),
    "create_subscription": lambda h, s, a: h.create_subscription(
        s, a["subscription"], InitialPosition.parse(a["position"]), term=a["term"]
    ),
    "delete_subscription": lambda h, s, a: h.delete_subscription(s, a["subscription"], term=a["term"]),
    "seek_subscription": lambda h, s, a: h.seek_subscription(s, a["subscription"], _position(a["offset"])),
    "skip_messages": lambda h, s, a: h.skip_messages(s, a["subscription"], int(a["first"]), int(a["last"])),
    "offset_at": lambda h, s, a: h.offset_at(s, a["time_ms"]),
    "backlog": lambda h, s, a: h.backlog(s, a["subscription"]),
    "statistics": _statistics,
}
