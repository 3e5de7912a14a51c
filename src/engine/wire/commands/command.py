"""The numbers of the commands, and what this build says of itself in a handshake."""

from __future__ import annotations

import enum

PROTOCOL_VERSION = 1
MAGIC = "engine"

# What this build can do; both sides send theirs, and use what both have. "proxy": a client reaches every broker over a
# proxy, when it is told that it talks to one. "commit-behind-sends": END_TXN has the field `sent`. "lazy-acks":
# ACK has the field `lazy`, and the type "settle". "object-reads": SEGMENT_FILES has the field `objects`.
# "joint-sends": SEND has the field `several`.
SHORT_CIRCUIT_READS = "short-circuit-reads"
OBJECT_READS = "object-reads"
LAZY_ACKS = "lazy-acks"
SUBSCRIPTION_CONTROL = "subscription-control"
PUBLISH_CREDIT = "publish-credit"
JOINT_SENDS = "joint-sends"
FEATURES = ("scalable-topics", "entry-buckets", "lz4", "zstd", "transactions", "proxy", "commit-behind-sends",
            SHORT_CIRCUIT_READS, SUBSCRIPTION_CONTROL, LAZY_ACKS, PUBLISH_CREDIT, OBJECT_READS,
            JOINT_SENDS)  # fmt: skip


class Command(enum.IntEnum):
    """The type byte of a frame. On the wire: do not change a number."""

    CONNECT = 1
    CONNECTED = 2
    PING = 3
    PONG = 4
    ERROR = 5
    SUCCESS = 6
    AUTHENTICATE = 7

    SCALABLE_TOPIC_LOOKUP = 10
    SCALABLE_TOPIC_UPDATE = 11
    SCALABLE_TOPIC_CLOSE = 12
    SCALABLE_TOPIC_SUBSCRIBE = 13
    SCALABLE_TOPIC_ASSIGNMENT = 14
    SCALABLE_TOPIC_UNSUBSCRIBE = 15
    WATCH_TOPIC_LIST = 16
    WATCH_TOPIC_LIST_UPDATE = 17
    WATCH_TOPIC_LIST_CLOSE = 18
    GET_TOPICS_OF_NAMESPACE = 19

    PRODUCER = 20
    PRODUCER_SUCCESS = 21
    SEND = 22
    SEND_RECEIPT = 23
    SEND_ERROR = 24
    CLOSE_PRODUCER = 25
    TOPIC_SCHEMA = 26
    PUBLISH_CREDIT = 27

    SUBSCRIBE = 30
    SUBSCRIBE_SUCCESS = 31
    FLOW = 32
    MESSAGE = 33
    ACK = 34
    REDELIVER = 35
    REACHED_END = 36
    CLOSE_CONSUMER = 37
    SEGMENT_OFFSET = 38
    SEGMENT_FILES = 39
    SEEK_SUBSCRIPTION = 40
    DELETE_SUBSCRIPTION = 41

    BROKER_CALL = 50

    NEW_TXN = 60
    END_TXN = 61
    TXN_STATE = 62

    METADATA = 70
