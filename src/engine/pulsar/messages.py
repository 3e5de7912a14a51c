"""The messages of Apache Pulsar's protocol, by the numbers of their fields, made when this module is imported.

They are in a pool of their own (wire/protobuf.py): Apache Pulsar's own client in the same process has the same messages
in the default pool.
"""

from __future__ import annotations

from typing import Any

from engine.wire.protobuf import messages

# Message -> its fields.
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
    "FeatureFlags": "auth_refresh 1 bool, broker_entry_metadata 2 bool, partial_producer 3 bool, "
    "topic_watchers 4 bool, scalable_topics 8 bool, tc_discovery 9 bool",
    "Connect": "client_version 1 string, auth_data 3 bytes, protocol 4 int32, auth_method 5 string, proxy_to 6 string, "
    "original_principal 7 string, original_auth_data 8 string, original_auth_method 9 string, "
    "features 10 FeatureFlags",
    "Connected": "server_version 1 string, protocol 2 int32, max_message_size 3 int32, features 4 FeatureFlags",
    "AuthData": "auth_method 1 string, auth_data 2 bytes",
    "AuthChallenge": "server_version 1 string, challenge 2 AuthData, protocol 3 int32",
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
    "ReachedEnd": "consumer 1 uint64",
    "ScalableLookup": "session 1 uint64, topic 2 string",
    "ScalableUpdate": "session 1 uint64, dag 2 Dag, error 3 int32, message 4 string, resolved 5 string",
    "ScalableClose": "session 1 uint64",
    "Dag": "epoch 1 uint64, segments 2 DagSegment[], brokers 3 SegmentBroker[], controller 4 string, "
    "controller_tls 5 string",
    "DagSegment": "id 1 uint64, start 2 uint32, end 3 uint32, state 4 int32, parents 5 uint64[], children 6 uint64[], "
    "created_epoch 7 uint64, sealed_epoch 8 uint64, created_ms 9 uint64, sealed_ms 10 uint64",
    "SegmentBroker": "id 1 uint64, url 2 string, url_tls 3 string",
    "ScalableSubscribe": "request 1 uint64, topic 2 string, subscription 3 string, name 4 string, consumer 5 uint64, "
    "type 6 int32",
    "ScalableSubscribeResponse": "request 1 uint64, error 2 int32, message 3 string, assignment 4 Assignment",
    "AssignmentUpdate": "consumer 1 uint64, assignment 2 Assignment",
    "Assignment": "epoch 1 uint64, segments 2 AssignedSegment[]",
    "AssignedSegment": "id 1 uint64, start 2 uint32, end 3 uint32, topic 4 string",
    "WatchTopics": "watch 1 uint64, namespace 2 string, filters 3 KeyValue[], hash 4 string",
    "WatchTopicsUpdate": "watch 1 uint64, snapshot 2 Topics, diff 3 TopicsDiff, error 4 int32, message 5 string",
    "WatchTopicsClose": "watch 1 uint64",
    "Topics": "topics 1 string[]",
    "TopicsDiff": "added 1 string[], removed 2 string[]",
    "WatchTopicList": "request 1 uint64, watcher 2 uint64, namespace 3 string, pattern 4 string, hash 5 string",
    "WatchTopicListSuccess": "request 1 uint64, watcher 2 uint64, topics 3 string[], hash 4 string",
    "WatchTopicUpdate": "watcher 1 uint64, added 2 string[], removed 3 string[], hash 4 string",
    "WatchTopicListClose": "request 1 uint64, watcher 2 uint64",
    "TcConnect": "request 1 uint64, tc 2 uint64, scalable 3 bool",
    "TcConnectResponse": "request 1 uint64, error 2 int32, message 3 string",
    "NewTxn": "request 1 uint64, ttl_ms 2 uint64, tc 3 uint64",
    "TxnResponse": "request 1 uint64, txn_low 2 uint64, txn_high 3 uint64, error 4 int32, message 5 string",
    "AddPartition": "request 1 uint64, txn_low 2 uint64, txn_high 3 uint64, partitions 4 string[]",
    "AddSubscription": "request 1 uint64, txn_low 2 uint64, txn_high 3 uint64, subscriptions 4 TxnSubscription[]",
    "TxnSubscription": "topic 1 string, subscription 2 string",
    "EndTxn": "request 1 uint64, txn_low 2 uint64, txn_high 3 uint64, action 4 int32",
    "WatchTcs": "watch 1 uint64",
    "WatchTcsUpdate": "watch 1 uint64, snapshot 2 Tcs, error 3 int32, message 4 string",
    "Tcs": "parallelism 1 uint32, assignments 2 Tc[]",
    "Tc": "tc 1 uint64, url 2 string, url_tls 3 string",
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
    "auth_challenge 36 AuthChallenge, auth_response 37 AuthResponse, ack_response 38 AckResponse, "
    "get_or_create_schema 39 GetOrCreateSchema, get_or_create_schema_response 40 GetOrCreateSchemaResponse, "
    "reached_end 27 ReachedEnd, "
    "new_txn 50 NewTxn, new_txn_response 51 TxnResponse, add_partition 52 AddPartition, "
    "add_partition_response 53 TxnResponse, add_subscription 54 AddSubscription, "
    "add_subscription_response 55 TxnResponse, end_txn 56 EndTxn, end_txn_response 57 TxnResponse, "
    "tc_connect 62 TcConnect, tc_connect_response 63 TcConnectResponse, "
    "watch_topic_list 64 WatchTopicList, watch_topic_list_success 65 WatchTopicListSuccess, "
    "watch_topic_update 66 WatchTopicUpdate, watch_topic_list_close 67 WatchTopicListClose, "
    "scalable_lookup 70 ScalableLookup, scalable_update 71 ScalableUpdate, scalable_close 72 ScalableClose, "
    "scalable_subscribe 73 ScalableSubscribe, scalable_subscribe_response 74 ScalableSubscribeResponse, "
    "assignment_update 75 AssignmentUpdate, watch_topics 76 WatchTopics, watch_topics_update 77 WatchTopicsUpdate, "
    "watch_topics_close 78 WatchTopicsClose, watch_tcs 79 WatchTcs, watch_tcs_update 80 WatchTcsUpdate, "
    "watch_tcs_close 81 WatchTcs",
}  # fmt: skip

_made = messages("engine.pulsar", _TABLE, "proto2")
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


def framed(name: str, /, **fields: Any) -> bytes:
    """The frame of a command without a payload."""
    body = command(name, **fields)
    return b"".join(((len(body) + 4).to_bytes(4, "big"), len(body).to_bytes(4, "big"), body))
