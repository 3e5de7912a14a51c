"""The fields of each command and their types; a union with None may be absent."""

from __future__ import annotations

from typing import Any

from engine.errors import ProtocolError
from engine.wire.commands.command import Command

_C = Command
_OPT_STR = (str, type(None))
_OPT_INT = (int, type(None))
_OPT_LIST = (list, type(None))
_OPT_RANGES = (list, bytes, type(None))
_OPT_BOOL = (bool, type(None))

FIELDS: dict[Command, dict[str, type | tuple[type, ...]]] = {
    # First frame of a connection, and its answer. Anything else before CONNECTED is a ProtocolError.
    # To a proxy, `target`: the service URL of the broker that is meant; None: any. From a proxy, `forwarded`: the
    # address of its client, for logs.
    _C.CONNECT: {
        "magic": str,
        "protocol": int,
        "features": list,
        "client": str,
        "token": _OPT_STR,
        "target": _OPT_STR,
        "forwarded": _OPT_STR,
    },
    _C.CONNECTED: {
        "protocol": int,
        "features": list,
        "broker": str,  # the broker's service URL
        "admin": _OPT_STR,  # the broker's admin URL
        "keep_alive": (float, int),  # seconds after which a silent peer is pinged; twice that, it is dropped
        "frame_size_max": int,
        "proxied": _OPT_BOOL,  # a proxy is in between: every other broker is reached over it, as a `target`
    },
    _C.PING: {},
    _C.PONG: {},
    # Answers. `code` is an EngineError's wire code.
    _C.ERROR: {"request_id": int, "code": int, "message": str},
    _C.SUCCESS: {"request_id": int, "result": (dict, type(None))},
    # DAG watch: -> SCALABLE_TOPIC_UPDATE with the same request_id; then one more per layout, without it.
    # `create`: create the topic with the broker's defaults when it does not exist.
    _C.SCALABLE_TOPIC_LOOKUP: {"request_id": int, "session_id": int, "topic": str, "create": bool},
    # `dag`: {"epoch", "keyHash", "durability", "createdAtMs": of the topic, which tells it from a later one of its
    # name, "segments": [{"segmentId", "hashRange": {"start", "end"},
    # "state", "parentIds", "childIds", "bucketBoundaries": [end, ...] inclusive ends, last is 65535}, ...],
    # "segmentBrokers": {segment id as text: url}, "controllerBrokerUrl": url}. A deleted topic: ERROR with
    # NotFoundError under request_id 0 and `session_id`.
    _C.SCALABLE_TOPIC_UPDATE: {"request_id": _OPT_INT, "session_id": int, "topic": str, "epoch": int, "dag": dict},
    _C.SCALABLE_TOPIC_CLOSE: {"session_id": int},
    # A stream consumer or a checkpoint group member registers with the topic's controller
    # -> SCALABLE_TOPIC_ASSIGNMENT with the same request_id; then one more per change, without it.
    # `kind`: "stream" | "checkpoint". `instance`: unique per consumer object, so that a stale leave is harmless.
    # `initial_position`: "earliest" | "latest", used when the subscription does not exist yet. `created_ms`: None from
    # a fresh consumer, for which a missing subscription is created; from one that had an answer, what that said: no
    # subscription is created, and SubscriptionNotFoundError says that it was deleted, whatever has its name now.
    _C.SCALABLE_TOPIC_SUBSCRIBE: {
        "request_id": int,
        "consumer_id": int,
        "topic": str,
        "subscription": str,
        "consumer_name": str,
        "instance": str,
        "kind": str,
        "initial_position": str,
        "created_ms": _OPT_INT,
    },
    # `segments`: [{"segment_id": int, "topic": segment name, "mode": "exclusive" | "shared",
    # "bucketBoundaries": [end, ...] of "shared" ones: all of the segment's inclusive ends, the last is 65535}, ...]
    # `created_ms`, in an answer: when the subscription was created, which tells it from a later one of its name.
    _C.SCALABLE_TOPIC_ASSIGNMENT: {
        "request_id": _OPT_INT,
        "consumer_id": int,
        "layout_epoch": int,
        "segments": list,
        "created_ms": _OPT_INT,
    },
    # -> SUCCESS. The rest names the consumer when it is not registered over this connection (any more).
    _C.SCALABLE_TOPIC_UNSUBSCRIBE: {
        "request_id": int,
        "consumer_id": int,
        "instance": str,
        "topic": _OPT_STR,
        "subscription": _OPT_STR,
        "consumer_name": _OPT_STR,
    },
    # At any broker -> WATCH_TOPIC_LIST_UPDATE, its last part with the same request_id; then one per change, without it.
    # Of "tenant/namespace", the topics that have all the `properties` and whose own name the RE2 `pattern` matches as a
    # whole. `hash`: of the list that the client has; when it is the present one, no snapshot is sent.
    _C.WATCH_TOPIC_LIST: {
        "request_id": int,
        "session_id": int,
        "namespace": str,
        "properties": (dict, type(None)),
        "pattern": _OPT_STR,
        "hash": _OPT_STR,
    },
    # `snapshot`: the whole list, in place of whatever the client has. Else `removed`, then `added`: a topic in both is
    # another one of its name. `born`: when each of `snapshot`, then of `added`, was created, milliseconds.
    # `more`: this is a part, and the next one follows; `hash`, of the list after all of it, is in the last. A part of a
    # snapshot also says what has changed in those before it. `restart`: a snapshot begins, the parts before are void.
    _C.WATCH_TOPIC_LIST_UPDATE: {
        "request_id": _OPT_INT,
        "session_id": int,
        "hash": str,
        "snapshot": _OPT_LIST,
        "removed": list,
        "added": list,
        "born": list,
        "more": bool,
        "restart": _OPT_BOOL,
    },
    _C.WATCH_TOPIC_LIST_CLOSE: {"session_id": int},
    # At any broker -> SUCCESS {"topics": [name, ...], "more": bool}: a page of the names behind `after`, in order.
    # A topic that is there all the time is on one of the pages.
    _C.GET_TOPICS_OF_NAMESPACE: {
        "request_id": int,
        "namespace": str,
        "properties": (dict, type(None)),
        "pattern": _OPT_STR,
        "after": _OPT_STR,
    },
    # Producers attach to one segment on its owner -> PRODUCER_SUCCESS. `topic` is the segment's name.
    # `access_mode`: "shared" | "exclusive" | "exclusive_with_fencing" | "wait_for_exclusive". `claim`: what the owner
    # of the topic's first segment gave, for the others. `renewal`: it was let in before. `waited_ms`: so far,
    # elsewhere. `properties`: text to text, for statistics.
    _C.PRODUCER: {
        "request_id": int,
        "producer_id": int,
        "topic": str,
        "producer_name": str,
        "access_mode": str,
        "claim": _OPT_LIST,
        "renewal": _OPT_BOOL,
        "waited_ms": _OPT_INT,
        "properties": (dict, type(None)),
    },
    # `last_sequence`: the highest sequence of this producer that is durable in the segment, -1 for none.
    # `durability`: "fsync" | "interval" | "os".
    _C.PRODUCER_SUCCESS: {
        "request_id": int,
        "producer_id": int,
        "producer_name": str,
        "last_sequence": int,
        "floor": _OPT_INT,
        "durability": str,
        "claim": _OPT_LIST,
    },
    # Payload: `entries` whole entries back to back, in send order. Each is acknowledged in a SEND_RECEIPT, in
    # the same order; a failure is a SEND_ERROR for the entry whose first sequence is given, and (unless the
    # error is about that entry alone: MessageTooLargeError, CorruptionError, InvalidArgumentError) for all after it.
    # PartlyStoredError: some of its messages are stored and others are not; send them one by one, then what was behind.
    # `transaction`: the id of the one that all of these entries belong to, as each of them says; `attempt`: the name of
    # the attempt in it. TransactionConflictError and TransactionNotFoundError end the attachment like any other.
    _C.SEND: {"producer_id": int, "entries": int, "transaction": _OPT_STR, "attempt": _OPT_STR},
    # Parallel lists, one item an entry: first sequence, first offset (-1: a duplicate whose offset is no
    # longer known). `durability` says what the acknowledgement means. `more`: such receipts of other producers; only
    # where an END_TXN with `sent` has come.
    _C.SEND_RECEIPT: {"producer_id": int, "sequences": list, "offsets": list, "durability": str, "more": _OPT_LIST},
    _C.SEND_ERROR: {"producer_id": int, "sequence": int, "code": int, "message": str},
    # From a client: -> SUCCESS. From a broker: the segment is sealed or moved (`code`); no request_id.
    _C.CLOSE_PRODUCER: {"request_id": _OPT_INT, "producer_id": int, "code": _OPT_INT, "message": _OPT_STR},
    # At any broker -> SUCCESS {"versions": [{"type", "definition"}, ...]}: the schemas that the topic's values may have
    # been written with, oldest first. `schema`: {"type", "definition"} that the client declares, None: it only asks.
    # `producer`: whether it will write by it, or read. SchemaError when it does not go together with what is there.
    _C.TOPIC_SCHEMA: {"request_id": int, "topic": str, "schema": (dict, type(None)), "producer": bool},
    # Consumers attach to one segment on its owner -> SUBSCRIBE_SUCCESS.
    # `mode`: "exclusive" | "shared" (a stream consumer, bucket-shared) | "queue" | "reader" (no cursor).
    # `start`: for "reader", the first offset wanted. `initial_position`, `created_ms`: as in SCALABLE_TOPIC_SUBSCRIBE.
    # `bucketBoundaries`: for "shared", as assigned; others than the segment's are answered with NotOwnerError.
    # `transactions`: for "exclusive", ids of open ones in which the consumer has acknowledged here before it lost its
    # attachment: delivery goes on behind that. It waits for the end of all others that hold something here.
    _C.SUBSCRIBE: {
        "request_id": int,
        "consumer_id": int,
        "topic": str,
        "subscription": _OPT_STR,
        "consumer_name": str,
        "mode": str,
        "start": _OPT_INT,
        "initial_position": _OPT_STR,
        "created_ms": _OPT_INT,
        "bucketBoundaries": _OPT_LIST,
        "transactions": _OPT_LIST,
        "priority": _OPT_INT,
    },
    # `position`: the offset delivery starts at: the cursor's first unacknowledged one, or `start` clamped.
    # `first`: the first retained offset of the segment. `seeks`: how often a seek moved the cursor since the broker
    # opened the segment. `created_ms`: as in SCALABLE_TOPIC_ASSIGNMENT. `gaps`: runs [start, stop) of offsets that name
    # no message, those that end at `position` or above it; a reader passes them.
    _C.SUBSCRIBE_SUCCESS: {
        "request_id": int,
        "consumer_id": int,
        "position": int,
        "first": int,
        "seeks": _OPT_INT,
        "gaps": _OPT_LIST,
        "created_ms": _OPT_INT,
    },
    # Adds credit. The broker sends while both are positive, whole entries, and may overshoot by one block.
    _C.FLOW: {"consumer_id": int, "messages": int, "bytes": int},
    # Payload: whole entries of one segment in offset order. `salt` verifies their stamps. For queue consumers
    # `skip` lists inclusive offset ranges of these entries not to deliver, and `redelivered` lists
    # [first, last, count] for messages whose redelivery count is not 0.
    _C.MESSAGE: {
        "consumer_id": int,
        "segment_id": int,
        "salt": int,
        "messages": int,  # in the payload, without the skipped
        "skip": (list, type(None)),
        "redelivered": (list, type(None)),
    },
    # -> SUCCESS once durable. cumulative: `position` is the first offset not acknowledged; or, of a segment's buckets
    # one by one, `buckets`: [[bucket, position], ...]. FencedError when a bucket that is not acknowledged so far
    # belongs to another consumer; what the others say is saved all the same.
    # individual: `ranges` is a list of inclusive [first, last], or the same packed: 16 bytes each, two little-endian
    # u64 (so wherever ranges may be bytes).
    # `transaction`, `attempt`: it is only recorded, and takes effect when that transaction is committed, and accepts
    # the attempt. TransactionConflictError: it has ended, or another open one acknowledges one of these messages.
    _C.ACK: {
        "request_id": int,
        "consumer_id": int,
        "ack_type": str,
        "position": _OPT_INT,
        "ranges": _OPT_RANGES,
        "buckets": _OPT_LIST,
        "transaction": _OPT_STR,
        "attempt": _OPT_STR,
    },
    # Queue consumers hand back: inclusive ranges to deliver again; count + 1 each. At once, or kept back as `backoff`
    # says: [min, max seconds, multiplier], by how often each came back before.
    _C.REDELIVER: {"consumer_id": int, "ranges": (list, bytes), "backoff": (list, type(None))},
    # The segment is sealed at `end` and everything before it was sent to this consumer.
    _C.REACHED_END: {"consumer_id": int, "end": int},
    # From a client: -> SUCCESS. From a broker: the attachment has ended (`code`); no request_id. The codes that are not
    # passing end the consumer: SubscriptionNotFoundError when its subscription was deleted.
    # `seen`, of a queue consumer: the inclusive ranges of what it holds that its user has received. The rest goes to
    # the others without being counted as delivered.
    _C.CLOSE_CONSUMER: {
        "request_id": _OPT_INT,
        "consumer_id": int,
        "code": _OPT_INT,
        "message": _OPT_STR,
        "seen": _OPT_RANGES,
    },
    # -> SUCCESS {"offset": int, "first": int, "end": int, "sealed": bool}. `at`: "earliest" | "latest" | milliseconds.
    # The offset is of what readers may see, the end of what is durable: an open transaction lies between the two.
    # With a `subscription`, also "acknowledged": the offset below which it has acknowledged everything; and with
    # `buckets`: [[bucket, position], ...] also "open_buckets": those in which something below the position is not.
    _C.SEGMENT_OFFSET: {
        "request_id": int,
        "topic": str,
        "at": (str, int),
        "subscription": _OPT_STR,
        "buckets": _OPT_LIST,
    },
    # Where a client on the broker's machine finds the messages of [start, stop) -> SUCCESS {"files": [[path, the block
    # that it begins with, its salt, the position to begin at, that to end before, the offset after that], ...],
    # "upto": below it everything is there, "hidden": inclusive ranges of those that are not for readers}. No files: it
    # is to attach. For whom CONNECTED has the feature "short-circuit-reads".
    _C.SEGMENT_FILES: {"request_id": int, "topic": str, "start": int, "stop": int},
    # Between brokers -> SUCCESS. `target`: "segment" (the owner of a segment), "admin" or "service" (the leader of a
    # topic). Payload, both ways: one msgpack value, the map of arguments and the result, which may be larger than a
    # header. What the methods and their arguments are is in broker/cluster/segment_calls.py.
    _C.BROKER_CALL: {"request_id": int, "target": str, "method": str},
    # Transactions, at any broker. -> SUCCESS {"id": 16 hexadecimal digits, "state": "OPEN" | "COMMITTED" | "ABORTED",
    # "deadline_ms": when it is aborted if it has not ended, by the broker's wall clock, "left": how many seconds that
    # is from now, None where that cannot be said, "accepted": the numbers of the attempts that a commit has accepted,
    # None for all}. `timeout`: seconds. `name`: the open or committed one of that name, if there is one.
    # `count`: so many are begun, if all can be; the answer has the ids of the others as "more".
    _C.NEW_TXN: {"request_id": int, "timeout": (float, int), "name": _OPT_STR, "count": _OPT_INT},
    # -> SUCCESS {"state"}. `action`: "commit" | "abort"; the same once more changes nothing. `accepted`: the names of
    # the attempts whose operations take effect; None: all. `sent`: the SEND frames in the transaction that were sent on
    # this connection, which are not all answered: it is committed when they are all in the log; otherwise the answer's
    # state is OPEN. `mark`: TXN_STATE says it of one that this has committed.
    _C.END_TXN: {
        "request_id": int,
        "id": str,
        "action": str,
        "accepted": _OPT_LIST,
        "sent": _OPT_INT,
        "mark": _OPT_INT,
    },
    # -> SUCCESS {"state", "deadline_ms", "left", "accepted"}, as of NEW_TXN, and "mark".
    _C.TXN_STATE: {"request_id": int, "id": str},
}


def check_header(command: Command, header: Any) -> dict[str, Any]:
    """The header itself, when it is a map whose known fields have their types.

    Raises ProtocolError naming the command and the field otherwise.
    """
    if type(header) is not dict:
        raise ProtocolError(f"{command.name}: the header is {type(header).__name__}, not a map")
    for field, types in FIELDS[command].items():
        value = header.get(field)
        if not isinstance(value, types) or (isinstance(value, bool) and types not in (bool, _OPT_BOOL)):
            raise ProtocolError(f"{command.name}: field {field!r} is {type(value).__name__}")
    return header
