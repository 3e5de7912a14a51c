"""The blocking client: thin shells over the asynchronous one, whose event loop runs on a thread.

Every object may be used from several threads. What a shell adds: `Producer.send_nowait` is the native method on the
caller's thread, and waits for room where the pending limit is reached; receives look into the queue on the caller's
thread before they call the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.lazy import loader

if TYPE_CHECKING:
    from engine.sync.admin import Admin
    from engine.sync.client import Client
    from engine.sync.consumers import CheckpointConsumer, QueueConsumer, StreamConsumer
    from engine.sync.producer import Producer
    from engine.sync.ranges import RangeReader, TopicReader, TopicView
    from engine.sync.table_view import TableView
    from engine.sync.topic_watch import TopicWatch
    from engine.sync.transaction import Transaction
else:
    __getattr__ = loader(
        __name__,
        {
            "engine.sync.admin": "Admin",
            "engine.sync.client": "Client",
            "engine.sync.consumers": "CheckpointConsumer QueueConsumer StreamConsumer",
            "engine.sync.producer": "Producer",
            "engine.sync.ranges": "RangeReader TopicReader TopicView",
            "engine.sync.table_view": "TableView",
            "engine.sync.topic_watch": "TopicWatch",
            "engine.sync.transaction": "Transaction",
        },
    )

__all__ = [
    "Admin",
    "CheckpointConsumer",
    "Client",
    "Producer",
    "QueueConsumer",
    "RangeReader",
    "StreamConsumer",
    "TableView",
    "TopicReader",
    "TopicView",
    "TopicWatch",
    "Transaction",
]
