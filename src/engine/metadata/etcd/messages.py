"""What is said to etcd: the messages of etcd.proto, made when this module is imported, and the calls."""

from __future__ import annotations

from typing import Any

from engine.wire.protobuf import messages

EQUAL, LESS = 0, 2  # Compare.result
MOD = 2  # Compare.target
DELETED = 1  # Event.type

_made = messages("engine.metadata.etcd", "etcd")
Compare: Any = _made["Compare"]
RangeRequest: Any = _made["RangeRequest"]
RangeResponse: Any = _made["RangeResponse"]
PutRequest: Any = _made["PutRequest"]
DeleteRangeRequest: Any = _made["DeleteRangeRequest"]
RequestOp: Any = _made["RequestOp"]
TxnRequest: Any = _made["TxnRequest"]
CompactionRequest: Any = _made["CompactionRequest"]
WatchRequest: Any = _made["WatchRequest"]
WatchCreateRequest: Any = _made["WatchCreateRequest"]
WatchCancelRequest: Any = _made["WatchCancelRequest"]
LeaseGrantRequest: Any = _made["LeaseGrantRequest"]
LeaseRevokeRequest: Any = _made["LeaseRevokeRequest"]
LeaseKeepAliveRequest: Any = _made["LeaseKeepAliveRequest"]
LeaseTimeToLiveRequest: Any = _made["LeaseTimeToLiveRequest"]
AuthenticateRequest: Any = _made["AuthenticateRequest"]
StatusRequest: Any = _made["StatusRequest"]
HashKVRequest: Any = _made["HashKVRequest"]

# Method -> path, request, response; the last word of the path is the method's name.
_CALLS = {
    "KV": ("Range", "Txn"),
    "Lease": ("LeaseGrant", "LeaseRevoke", "LeaseTimeToLive"),
    "Auth": ("Authenticate",),
    "Maintenance": ("Status", "HashKV"),
}
UNARY: dict[str, tuple[str, Any, Any]] = {
    method: (f"/etcdserverpb.{service}/{method}", _made[f"{method}Request"], _made[f"{method}Response"])
    for service, methods in _CALLS.items()
    for method in methods
} | {"Compact": ("/etcdserverpb.KV/Compact", _made["CompactionRequest"], _made["CompactionResponse"])}
WATCH = ("/etcdserverpb.Watch/Watch", _made["WatchRequest"], _made["WatchResponse"])
KEEP_ALIVE = ("/etcdserverpb.Lease/LeaseKeepAlive", _made["LeaseKeepAliveRequest"], _made["LeaseKeepAliveResponse"])


def txn_answer(succeeded: bool, found: list[Any]) -> Any:
    """The answer to a transaction that was done without one; `found`: RangeResponses of the keys that it compared."""
    responses = [_made["ResponseOp"](response_range=one) for one in found]
    return _made["TxnResponse"](succeeded=succeeded, responses=responses)


def deletion_answer(succeeded: bool, count: int) -> Any:
    """The same, of one that deletes a range."""
    deleted = _made["ResponseOp"](response_delete_range=_made["DeleteRangeResponse"](deleted=count))
    return _made["TxnResponse"](succeeded=succeeded, responses=[deleted] if succeeded else [])
