"""The client: sends and receives messages, for programs. `AsyncClient` is its entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.lazy import loader

if TYPE_CHECKING:
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
    from engine.client.views.table_view import AsyncTableView, TableViewStatistics
    from engine.model.admin_dictionaries import TopicMetadata, TopicStatistics
    from engine.model.positions import Checkpoint, MessageId
    from engine.model.redelivery import Backoff, DeadLetter
else:
    __getattr__ = loader(
        __name__,
        {
            "engine._native.consume.batch": "MessageBatch",
            "engine._native.consume.message": "Message",
            "engine.client.admin.admin": "AsyncAdmin",
            "engine.client.base.options": "Batching",
            "engine.client.base.schema": "Schema",
            "engine.client.client": "AsyncClient",
            "engine.client.consume.checkpoint_consumer": "AsyncCheckpointConsumer",
            "engine.client.consume.queue_consumer": "AsyncQueueConsumer QueueConsumerStatistics",
            "engine.client.consume.receiving": "ConsumerStatistics",
            "engine.client.consume.stream_consumer": "AsyncStreamConsumer",
            "engine.client.many.consumer": "MultiConsumerStatistics",
            "engine.client.many.multi": """AsyncMultiQueueConsumer AsyncMultiStreamConsumer
                MultiQueueConsumerStatistics""",
            "engine.client.produce.batching_quality": "BucketStatistics",
            "engine.client.produce.in_flight": "ProducerStatistics",
            "engine.client.produce.producer": "AsyncProducer",
            "engine.client.ranges.range_reader": "AsyncRangeReader",
            "engine.client.ranges.topic_reader": "AsyncTopicReader",
            "engine.client.ranges.topic_view": "AsyncTopicView Segment TopicSegments",
            "engine.client.topic.topic_list": "AsyncTopicWatch TopicsChanged",
            "engine.client.transact.transaction": "AsyncTransaction",
            "engine.client.views.table_view": "AsyncTableView TableViewStatistics",
            "engine.model.admin_dictionaries": "TopicMetadata TopicStatistics",
            "engine.model.positions": "Checkpoint MessageId",
            "engine.model.redelivery": "Backoff DeadLetter",
        },
    )

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
    "AsyncTableView",
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
    "TableViewStatistics",
    "TopicMetadata",
    "TopicSegments",
    "TopicStatistics",
    "TopicsChanged",
]
