"""The messages of Apache Pulsar's protocol, by the numbers of their fields, made when this module is imported.

They are defined at run time, in a descriptor pool of this module, as those of etcd are (metadata/etcd/messages.py):
Apache Pulsar's own client in the same process has the same messages in the default pool.

Only what is used is named; other fields are kept by the library, unread. Enumerations are plain integers.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "engine.pulsar"

# Message -> fields: name, number, type; "[]" behind a type: repeated. Another message's name is a type, too.
_TABLE = {
    "KeyValue": "key 1 string, value 2 string",
    "MessageIdData": "ledger 1 uint64, entry 2 uint64, partition 3 int32, batch_index 4 int32, ack_set 5 int64[], "
    "batch_size 6 int32",
    "Schema": "name 1 string, data 3 bytes, type 4 int32, properties 5 KeyValue[]",
    "MessageMetadata": "producer_name 1 bytes, sequence 2 uint64, publish_time 3 uint64, properties 4 Pair[], "
    "key 6 bytes, compression 8 int32, uncompressed_size 9 uint32, count 11 int32, event_time 12 uint64, "
    "encryption_keys 13 bytes[], schema_version 16 bytes, key_base64 17 bool, ordering_key 18 bytes, "
    "deliver_at 19 int64, marker 20 int32, highest_sequence 24 uint64, null_value 25 bool, uuid 26 string, "
    "chunks 27 int32, null_key 30 bool",
    "Pair": "key 1 bytes, value 2 bytes",  # a KeyValue whose text is not looked at
    "SingleMessageMetadata": "properties 1 Pair[], key 2 bytes, payload_size 3 int32, event_time 5 uint64, "
    "key_base64 6 bool, ordering_key 7 bytes, sequence 8 uint64, null_value 9 bool, null_key 10 bool",
    "FeatureFlags": "auth_refresh 1 bool, broker_entry_metadata 2 bool, partial_producer 3 bool, topic_watchers 4 bool",
    "Connect": "client_version 1 string, auth_data 3 bytes, protocol 4 int32, auth_method 5 string, proxy_to 6 string, "
    "original_principal 7 string, original_auth_data 8 string, original_auth_method 9 string, "
    "features 10 FeatureFlags",
    "Connected": "server_version 1 string, protocol 2 int32, max_message_size 3 int32, features 4 FeatureFlags",
    "AuthData": "auth_method 1 string, auth_data 2 bytes",
    "AuthResponse": "client_version 1 string, response 2 AuthData, protocol 3 int32",
    "KeyShared": "mode 1 int32, ranges 3 IntRange[], out_of_order 4 bool",
    "IntRange": "start 1 int32, end 2 int32",
    "Subscribe": "topic 1 string, subscription 2 string, type 3 int32, consumer 4 uint64, request 5 uint64, "
    "name 6 string, priority 7 int32, durable 8 bool, start 9 MessageIdData, metadata 10 KeyValue[], "
    "read_compacted 11 bool, schema 12 Schema, initial_position 13 int32, replicated 14 bool, create 15 bool, "
    "rollback_s 16 uint64, key_shared 17 KeyShared",
    "PartitionedMetadata": "topic 1 string, request 2 uint64",
    "PartitionedMetadataResponse": "partitions 1 uint32, request 2 uint64, response 3 int32, error 4 int32, "
    "message 5 string",
    "Lookup": "topic 1 string, request 2 uint64, authoritative 3 bool",
    "LookupResponse": "url 1 string, url_tls 2 string, response 3 int32, request 4 uint64, authoritative 5 bool, "
    "error 6 int32, message 7 string, through_service_url 8 bool",
    "Producer": "topic 1 string, producer 2 uint64, request 3 uint64, name 4 string, encrypted 5 bool, "
    "metadata 6 KeyValue[], schema 7 Schema, epoch 8 uint64, user_provided_name 9 bool, access_mode 10 int32, "
    "topic_epoch 11 uint64, transactional 12 bool, initial_subscription 13 string",
    "Send": "producer 1 uint64, sequence 2 uint64, count 3 int32, txn_low 4 uint64, txn_high 5 uint64, "
    "highest_sequence 6 uint64, is_chunk 7 bool, marker 8 bool",
    "SendReceipt": "producer 1 uint64, sequence 2 uint64, message_id 3 MessageIdData, highest_sequence 4 uint64",
    "SendError": "producer 1 uint64, sequence 2 uint64, error 3 int32, message 4 string",
    "Message": "consumer 1 uint64, message_id 2 MessageIdData, redelivered 3 uint32, ack_set 4 int64[]",
    "Ack": "consumer 1 uint64, type 2 int32, ids 3 MessageIdData[], validation_error 4 int32, txn_low 6 uint64, "
    "txn_high 7 uint64, request 8 uint64",
    "AckResponse": "consumer 1 uint64, txn_low 2 uint64, txn_high 3 uint64, error 4 int32, message 5 string, "
    "request 6 uint64",
    "ActiveConsumerChange": "consumer 1 uint64, active 2 bool",
    "Flow": "consumer 1 uint64, permits 2 uint32",
    "Unsubscribe": "consumer 1 uint64, request 2 uint64",
    "Seek": "consumer 1 uint64, request 2 uint64, message_id 3 MessageIdData, publish_time 4 uint64",
    "CloseProducer": "producer 1 uint64, request 2 uint64",
    "CloseConsumer": "consumer 1 uint64, request 2 uint64",
    "Redeliver": "consumer 1 uint64, ids 2 MessageIdData[], epoch 3 uint64",
    "Success": "request 1 uint64",
    "ProducerSuccess": "request 1 uint64, name 2 string, last_sequence 3 int64, schema_version 4 bytes, "
    "topic_epoch 5 uint64, ready 6 bool",
    "Error": "request 1 uint64, error 2 int32, message 3 string",
    "Empty": "",
    "ConsumerStats": "request 1 uint64, consumer 4 uint64",
    "ConsumerStatsResponse": "request 1 uint64, error 2 int32, message 3 string, rate_out 4 double, "
    "throughput_out 5 double, rate_redelivered 6 double, name 7 string, permits 8 uint64, unacked 9 uint64, "
    "blocked 10 bool, address 11 string, connected_since 12 string, type 13 string, rate_expired 14 double, "
    "backlog 15 uint64, ack_rate 16 double",
    "GetLastMessageId": "consumer 1 uint64, request 2 uint64",
    "GetLastMessageIdResponse": "last 1 MessageIdData, request 2 uint64, mark_delete 3 MessageIdData",
    "GetTopics": "request 1 uint64, namespace 2 string, mode 3 int32, pattern 4 string, hash 5 string",
    "GetTopicsResponse": "request 1 uint64, topics 2 string[], filtered 3 bool, hash 4 string, changed 5 bool",
    "GetSchema": "request 1 uint64, topic 2 string, version 3 bytes",
    "GetSchemaResponse": "request 1 uint64, error 2 int32, message 3 string, schema 4 Schema, version 5 bytes",
    "GetOrCreateSchema": "request 1 uint64, topic 2 string, schema 3 Schema",
    "GetOrCreateSchemaResponse": "request 1 uint64, error 2 int32, message 3 string, version 4 bytes",
    "Command": "type 1 int32, connect 2 Connect, connected 3 Connected, subscribe 4 Subscribe, producer 5 Producer, "
    "send 6 Send, send_receipt 7 SendReceipt, send_error 8 SendError, message 9 Message, ack 10 Ack, flow 11 Flow, "
    "unsubscribe 12 Unsubscribe, success 13 Success, error 14 Error, close_producer 15 CloseProducer, "
    "close_consumer 16 CloseConsumer, producer_success 17 ProducerSuccess, ping 18 Empty, pong 19 Empty, "
    "redeliver 20 Redeliver, partitioned 21 PartitionedMetadata, "
    "partitioned_response 22 PartitionedMetadataResponse, lookup 23 Lookup, lookup_response 24 LookupResponse, "
    "consumer_stats 25 ConsumerStats, consumer_stats_response 26 ConsumerStatsResponse, seek 28 Seek, "
    "get_last_message_id 29 GetLastMessageId, get_last_message_id_response 30 GetLastMessageIdResponse, "
    "active_consumer_change 31 ActiveConsumerChange, get_topics 32 GetTopics, "
    "get_topics_response 33 GetTopicsResponse, get_schema 34 GetSchema, get_schema_response 35 GetSchemaResponse, "
    "auth_response 37 AuthResponse, ack_response 38 AckResponse, get_or_create_schema 39 GetOrCreateSchema, "
    "get_or_create_schema_response 40 GetOrCreateSchemaResponse",
}  # fmt: skip

_SCALARS = {"double": 1, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13}
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3


def _field(message: Any, text: str) -> None:
    name, number, kind = text.split()
    field = message.field.add(name=name, number=int(number))
    field.label = _REPEATED if kind.endswith("[]") else _OPTIONAL
    kind = kind.removesuffix("[]")
    field.type = _SCALARS.get(kind, _MESSAGE)
    if field.type == _MESSAGE:
        field.type_name = f".{_PACKAGE}.{kind}"


def _defined() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _TABLE.items():
        message = file.message_type.add(name=name)
        for text in filter(None, fields.split(", ")):
            _field(message, text)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _TABLE}


_made = _defined()
Command: Any = _made["Command"]
MessageIdData: Any = _made["MessageIdData"]
MessageMetadata: Any = _made["MessageMetadata"]
SingleMessageMetadata: Any = _made["SingleMessageMetadata"]
Schema: Any = _made["Schema"]

# Command's number, which is also that of its field -> the field's name.
FIELDS: dict[int, str] = {field.number: field.name for field in Command.DESCRIPTOR.fields if field.number > 1}


def command(name: str, /, **fields: Any) -> bytes:
    """A Command of the field `name`, encoded."""
    number = Command.DESCRIPTOR.fields_by_name[name].number
    found: bytes = Command(type=number, **{name: fields}).SerializeToString()
    return found
