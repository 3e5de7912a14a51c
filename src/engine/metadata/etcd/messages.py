"""What is said to etcd: messages by the numbers of their fields, made when this module is imported.

Only the fields in use are named (wire/protobuf.py).
"""

from __future__ import annotations

from typing import Any

from engine.wire.protobuf import messages

# Message -> its fields.
_TABLE = {
    "ResponseHeader": "cluster_id 1 uint64, member_id 2 uint64, revision 3 int64, raft_term 4 uint64",
    "KeyValue": "key 1 bytes, create_revision 2 int64, mod_revision 3 int64, version 4 int64, value 5 bytes, "
    "lease 6 int64",
    "RangeRequest": "key 1 bytes, range_end 2 bytes, limit 3 int64, revision 4 int64, serializable 7 bool, "
    "keys_only 8 bool, count_only 9 bool",
    "RangeResponse": "header 1 ResponseHeader, kvs 2 KeyValue[], more 3 bool, count 4 int64",
    "PutRequest": "key 1 bytes, value 2 bytes, lease 3 int64",
    "PutResponse": "header 1 ResponseHeader",
    "DeleteRangeRequest": "key 1 bytes, range_end 2 bytes",
    "DeleteRangeResponse": "header 1 ResponseHeader, deleted 2 int64",
    "RequestOp": "request_range 1 RangeRequest, request_put 2 PutRequest, request_delete_range 3 DeleteRangeRequest, "
    "request_txn 4 TxnRequest",
    "ResponseOp": "response_range 1 RangeResponse, response_put 2 PutResponse, "
    "response_delete_range 3 DeleteRangeResponse, response_txn 4 TxnResponse",
    "Compare": "result 1 int32, target 2 int32, key 3 bytes, mod_revision 6 int64, range_end 64 bytes",
    "TxnRequest": "compare 1 Compare[], success 2 RequestOp[], failure 3 RequestOp[]",
    "TxnResponse": "header 1 ResponseHeader, succeeded 2 bool, responses 3 ResponseOp[]",
    "CompactionRequest": "revision 1 int64, physical 2 bool",
    "CompactionResponse": "header 1 ResponseHeader",
    "Event": "type 1 int32, kv 2 KeyValue",
    "WatchRequest": "create_request 1 WatchCreateRequest, cancel_request 2 WatchCancelRequest",
    "WatchCreateRequest": "key 1 bytes, range_end 2 bytes, start_revision 3 int64, progress_notify 4 bool, "
    "watch_id 7 int64",
    "WatchCancelRequest": "watch_id 1 int64",
    "WatchResponse": "header 1 ResponseHeader, watch_id 2 int64, created 3 bool, canceled 4 bool, "
    "compact_revision 5 int64, cancel_reason 6 string, events 11 Event[]",
    "LeaseGrantRequest": "TTL 1 int64, ID 2 int64",
    "LeaseGrantResponse": "header 1 ResponseHeader, ID 2 int64, TTL 3 int64, error 4 string",
    "LeaseRevokeRequest": "ID 1 int64",
    "LeaseRevokeResponse": "header 1 ResponseHeader",
    "LeaseKeepAliveRequest": "ID 1 int64",
    "LeaseKeepAliveResponse": "header 1 ResponseHeader, ID 2 int64, TTL 3 int64",
    "LeaseTimeToLiveRequest": "ID 1 int64",
    "LeaseTimeToLiveResponse": "header 1 ResponseHeader, ID 2 int64, TTL 3 int64, grantedTTL 4 int64",
    "AuthenticateRequest": "name 1 string, password 2 string",
    "AuthenticateResponse": "header 1 ResponseHeader, token 2 string",
    "StatusRequest": "",
    "StatusResponse": "header 1 ResponseHeader, version 2 string, dbSize 3 int64, leader 4 uint64, "
    "errors 8 string[], dbSizeInUse 9 int64",
}  # fmt: skip

EQUAL, LESS = 0, 2  # Compare.result
MOD = 2  # Compare.target
DELETED = 1  # Event.type

_made = messages("engine.metadata.etcd", _TABLE, "proto3")
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

# Method -> path, request, response; the last word of the path is the method's name.
_CALLS = {
    "KV": ("Range", "Txn"),
    "Lease": ("LeaseGrant", "LeaseRevoke", "LeaseTimeToLive"),
    "Auth": ("Authenticate",),
    "Maintenance": ("Status",),
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
