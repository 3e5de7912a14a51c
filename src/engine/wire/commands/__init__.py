"""Every command two peers exchange: a struct for the header of each, and their bytes.

The names are those of the specification (PIP-468) where it has one. docs/formats/wire.md lists all commands and fields.
A command that expects an answer is a `Request`. All ids are chosen by the client and are unique within its connection.
"""

from __future__ import annotations

from engine.wire.commands.codec import answer_to, decode, encode
from engine.wire.commands.command import (
    FEATURES,
    MAGIC,
    PROTOCOL_VERSION,
    SHORT_CIRCUIT_READS,
    SUBSCRIPTION_CONTROL,
    Command,
)
from engine.wire.commands.connection import Connect, Connected, Error, Ping, Pong, Success
from engine.wire.commands.consuming import (
    Ack,
    CloseConsumer,
    Flow,
    Message,
    ReachedEnd,
    Redeliver,
    Subscribe,
    SubscribeSuccess,
)
from engine.wire.commands.header import Answer, Answerable, Closing, Header, Part, Range, Ranges, Request
from engine.wire.commands.layouts import (
    AssignedSegment,
    Dag,
    DeleteSubscription,
    Ring,
    ScalableTopicAssignment,
    ScalableTopicClose,
    ScalableTopicLookup,
    ScalableTopicSubscribe,
    ScalableTopicUnsubscribe,
    ScalableTopicUpdate,
    SeekSubscription,
    Segment,
)
from engine.wire.commands.metadata import Metadata
from engine.wire.commands.producing import (
    CloseProducer,
    Producer,
    ProducerSuccess,
    Receipt,
    Schemas,
    SchemaVersion,
    Send,
    SendError,
    SendReceipt,
    TopicSchema,
)
from engine.wire.commands.segments import BrokerCall, Files, Place, SegmentFiles, SegmentOffset
from engine.wire.commands.table import HEADERS
from engine.wire.commands.topic_lists import (
    GetTopicsOfNamespace,
    TopicNames,
    WatchTopicList,
    WatchTopicListClose,
    WatchTopicListUpdate,
)
from engine.wire.commands.transactions import Begun, Ended, EndTxn, NewTxn, Standing, State, TxnState

__all__ = [
    "FEATURES",
    "HEADERS",
    "MAGIC",
    "PROTOCOL_VERSION",
    "SHORT_CIRCUIT_READS",
    "SUBSCRIPTION_CONTROL",
    "Ack",
    "Answer",
    "Answerable",
    "AssignedSegment",
    "Begun",
    "BrokerCall",
    "CloseConsumer",
    "CloseProducer",
    "Closing",
    "Command",
    "Connect",
    "Connected",
    "Dag",
    "DeleteSubscription",
    "EndTxn",
    "Ended",
    "Error",
    "Files",
    "Flow",
    "GetTopicsOfNamespace",
    "Header",
    "Message",
    "Metadata",
    "NewTxn",
    "Part",
    "Ping",
    "Place",
    "Pong",
    "Producer",
    "ProducerSuccess",
    "Range",
    "Ranges",
    "ReachedEnd",
    "Receipt",
    "Redeliver",
    "Request",
    "Ring",
    "ScalableTopicAssignment",
    "ScalableTopicClose",
    "ScalableTopicLookup",
    "ScalableTopicSubscribe",
    "ScalableTopicUnsubscribe",
    "ScalableTopicUpdate",
    "SchemaVersion",
    "Schemas",
    "SeekSubscription",
    "Segment",
    "SegmentFiles",
    "SegmentOffset",
    "Send",
    "SendError",
    "SendReceipt",
    "Standing",
    "State",
    "Subscribe",
    "SubscribeSuccess",
    "Success",
    "TopicNames",
    "TopicSchema",
    "TxnState",
    "WatchTopicList",
    "WatchTopicListClose",
    "WatchTopicListUpdate",
    "answer_to",
    "decode",
    "encode",
]
