"""Sends and receives, on the user's side. `AsyncClient` is the door."""

from __future__ import annotations

from engine._native.batch import MessageBatch
from engine._native.message import Message
from engine.client.admin import AsyncAdmin
from engine.client.batching_quality import BucketStatistics
from engine.client.checkpoint_consumer import AsyncCheckpointConsumer
from engine.client.client import AsyncClient
from engine.client.gathered import MultiConsumerStatistics
from engine.client.ledger import ProducerStatistics
from engine.client.multi import AsyncMultiQueueConsumer, AsyncMultiStreamConsumer, MultiQueueConsumerStatistics
from engine.client.options import Batching
from engine.client.producer import AsyncProducer
from engine.client.queue_consumer import AsyncQueueConsumer, QueueConsumerStatistics
from engine.client.range_reader import AsyncRangeReader
from engine.client.receiving import ConsumerStatistics
from engine.client.schema import Schema
from engine.client.stream_consumer import AsyncStreamConsumer
from engine.client.topic_list import AsyncTopicWatch, TopicsChanged
from engine.client.topic_view import AsyncTopicView, Segment, TopicSegments
from engine.client.transaction import AsyncTransaction
from engine.model.positions import Checkpoint, MessageId
from engine.model.redelivery import Backoff, DeadLetter

__all__ = [
    "AsyncAdmin",
    "AsyncCheckpointConsumer",
    "AsyncClient",
    "AsyncMultiQueueConsumer",
    "AsyncMultiStreamConsumer",
    "AsyncProducer",
    "AsyncQueueConsumer",
    "AsyncRangeReader",
    "AsyncStreamConsumer",
    "AsyncTopicView",
    "AsyncTopicWatch",
    "AsyncTransaction",
    "Backoff",
    "Batching",
    "BucketStatistics",
    "Checkpoint",
    "ConsumerStatistics",
    "DeadLetter",
    "Message",
    "MessageBatch",
    "MessageId",
    "MultiConsumerStatistics",
    "MultiQueueConsumerStatistics",
    "ProducerStatistics",
    "QueueConsumerStatistics",
    "Schema",
    "Segment",
    "TopicSegments",
    "TopicsChanged",
]
