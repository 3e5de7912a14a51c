"""The client: sends and receives messages, for programs. `AsyncClient` is its entry point."""

from __future__ import annotations

from engine._native.consume.batch import MessageBatch
from engine._native.consume.message import Message
from engine.client.admin.admin import AsyncAdmin
from engine.client.base.options import Batching
from engine.client.base.schema import Schema
from engine.client.client import AsyncClient
from engine.client.consume.checkpoint_consumer import AsyncCheckpointConsumer
from engine.client.consume.queue_consumer import AsyncQueueConsumer, QueueConsumerStatistics
from engine.client.consume.receiving import ConsumerStatistics
from engine.client.consume.stream_consumer import AsyncStreamConsumer
from engine.client.many.consumer import MultiConsumerStatistics
from engine.client.many.multi import AsyncMultiQueueConsumer, AsyncMultiStreamConsumer, MultiQueueConsumerStatistics
from engine.client.produce.batching_quality import BucketStatistics
from engine.client.produce.in_flight import ProducerStatistics
from engine.client.produce.producer import AsyncProducer
from engine.client.ranges.range_reader import AsyncRangeReader
from engine.client.ranges.topic_reader import AsyncTopicReader
from engine.client.ranges.topic_view import AsyncTopicView, Segment, TopicSegments
from engine.client.topic.topic_list import AsyncTopicWatch, TopicsChanged
from engine.client.transact.transaction import AsyncTransaction
from engine.model.admin_dictionaries import TopicMetadata, TopicStatistics
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
    "AsyncTopicReader",
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
    "TopicMetadata",
    "TopicSegments",
    "TopicStatistics",
    "TopicsChanged",
]
