"""Engine: an elastic, durable message broker.

Embed it (`engine.open`), serve it (`engine serve`), or connect to one (`engine.Client`).

This is the public API, and nothing else is. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.lazy import loader

if TYPE_CHECKING:
    from engine.backups import (
        BackedUp,
        BackupGeneration,
        Restored,
        VerifiedBackup,
        backup,
        backup_async,
        list_backups,
        prune_backups,
        restore,
        verify_backup,
    )
    from engine.client import (
        AsyncAdmin,
        AsyncCheckpointConsumer,
        AsyncClient,
        AsyncMultiQueueConsumer,
        AsyncMultiStreamConsumer,
        AsyncProducer,
        AsyncQueueConsumer,
        AsyncRangeReader,
        AsyncStreamConsumer,
        AsyncTableView,
        AsyncTopicReader,
        AsyncTopicView,
        AsyncTopicWatch,
        AsyncTransaction,
        Backoff,
        Batching,
        BucketStatistics,
        Checkpoint,
        ConsumerStatistics,
        DeadLetter,
        Message,
        MessageBatch,
        MessageId,
        MultiConsumerStatistics,
        MultiQueueConsumerStatistics,
        ProducerStatistics,
        QueueConsumerStatistics,
        Schema,
        Segment,
        TableViewStatistics,
        TopicMetadata,
        TopicsChanged,
        TopicSegments,
        TopicStatistics,
    )
    from engine.embedded import AsyncEngine, Engine, open, open_async
    from engine.errors import (
        AlreadyClosedError,
        AlreadyExistsError,
        AuthenticationError,
        AuthorizationError,
        ConnectError,
        ConsumerBusyError,
        CorruptionError,
        DataDirectoryBusyError,
        DataDirectoryError,
        DecryptionError,
        DiskFullError,
        EncryptionRequiredError,
        EngineError,
        FencedError,
        InvalidArgumentError,
        InvalidConfigurationError,
        LimitExceededError,
        MemoryLimitError,
        MessageTooLargeError,
        MissingKeyError,
        NoResponderError,
        NotAwaitedError,
        NotFoundError,
        PermitQueueFullError,
        PermitTimeoutError,
        ProducerBusyError,
        ProtocolError,
        QueueFullError,
        SchemaError,
        StorageError,
        SubscriptionKindError,
        TimeoutError,
        TooManyRequestsError,
        TransactionConflictError,
        TransactionNotFoundError,
        UnknownOutcomeError,
        UnsupportedError,
        WrongKeyError,
    )
    from engine.migration import (
        Migrated,
        migrate,
        migrate_async,
        migrate_from_pulsar,
        migrate_from_pulsar_async,
    )
    from engine.sync import (
        Admin,
        CheckpointConsumer,
        Client,
        Producer,
        QueueConsumer,
        RangeReader,
        StreamConsumer,
        TableView,
        TopicReader,
        TopicView,
        TopicWatch,
        Transaction,
    )

    __version__: str

_HOMES = {
    "engine.backups": """BackedUp BackupGeneration Restored VerifiedBackup backup backup_async list_backups
        prune_backups restore verify_backup""",
    "engine.client": """AsyncAdmin AsyncCheckpointConsumer AsyncClient AsyncMultiQueueConsumer AsyncMultiStreamConsumer
        AsyncProducer AsyncQueueConsumer AsyncRangeReader AsyncStreamConsumer AsyncTableView AsyncTopicReader
        AsyncTopicView AsyncTopicWatch AsyncTransaction Backoff Batching BucketStatistics Checkpoint ConsumerStatistics
        DeadLetter Message MessageBatch MessageId MultiConsumerStatistics MultiQueueConsumerStatistics
        ProducerStatistics QueueConsumerStatistics Schema Segment TableViewStatistics TopicMetadata TopicSegments
        TopicStatistics TopicsChanged""",
    "engine.embedded": "AsyncEngine Engine open open_async",
    "engine.errors": """AlreadyClosedError AlreadyExistsError AuthenticationError AuthorizationError ConnectError
        ConsumerBusyError CorruptionError DataDirectoryBusyError DataDirectoryError DecryptionError DiskFullError
        EncryptionRequiredError EngineError FencedError InvalidArgumentError InvalidConfigurationError
        LimitExceededError MemoryLimitError MessageTooLargeError MissingKeyError NoResponderError NotAwaitedError
        NotFoundError PermitQueueFullError PermitTimeoutError ProducerBusyError ProtocolError QueueFullError SchemaError
        StorageError SubscriptionKindError TimeoutError TooManyRequestsError TransactionConflictError
        TransactionNotFoundError UnknownOutcomeError UnsupportedError WrongKeyError""",
    "engine.migration": "Migrated migrate migrate_async migrate_from_pulsar migrate_from_pulsar_async",
    "engine.sync": """Admin CheckpointConsumer Client Producer QueueConsumer RangeReader StreamConsumer TableView
        TopicReader TopicView TopicWatch Transaction""",
}
__all__ = [
    "Admin",
    "AlreadyClosedError",
    "AlreadyExistsError",
    "AsyncAdmin",
    "AsyncCheckpointConsumer",
    "AsyncClient",
    "AsyncEngine",
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
    "AuthenticationError",
    "AuthorizationError",
    "BackedUp",
    "Backoff",
    "BackupGeneration",
    "Batching",
    "BucketStatistics",
    "Checkpoint",
    "CheckpointConsumer",
    "Client",
    "ConnectError",
    "ConsumerBusyError",
    "ConsumerStatistics",
    "CorruptionError",
    "DataDirectoryBusyError",
    "DataDirectoryError",
    "DeadLetter",
    "DecryptionError",
    "DiskFullError",
    "EncryptionRequiredError",
    "Engine",
    "EngineError",
    "FencedError",
    "InvalidArgumentError",
    "InvalidConfigurationError",
    "LimitExceededError",
    "MemoryLimitError",
    "Message",
    "MessageBatch",
    "MessageId",
    "MessageTooLargeError",
    "Migrated",
    "MissingKeyError",
    "MultiConsumerStatistics",
    "MultiQueueConsumerStatistics",
    "NoResponderError",
    "NotAwaitedError",
    "NotFoundError",
    "PermitQueueFullError",
    "PermitTimeoutError",
    "Producer",
    "ProducerBusyError",
    "ProducerStatistics",
    "ProtocolError",
    "QueueConsumer",
    "QueueConsumerStatistics",
    "QueueFullError",
    "RangeReader",
    "Restored",
    "Schema",
    "SchemaError",
    "Segment",
    "StorageError",
    "StreamConsumer",
    "SubscriptionKindError",
    "TableView",
    "TableViewStatistics",
    "TimeoutError",
    "TooManyRequestsError",
    "TopicMetadata",
    "TopicReader",
    "TopicSegments",
    "TopicStatistics",
    "TopicView",
    "TopicWatch",
    "TopicsChanged",
    "Transaction",
    "TransactionConflictError",
    "TransactionNotFoundError",
    "UnknownOutcomeError",
    "UnsupportedError",
    "VerifiedBackup",
    "WrongKeyError",
    "backup",
    "backup_async",
    "list_backups",
    "migrate",
    "migrate_async",
    "migrate_from_pulsar",
    "migrate_from_pulsar_async",
    "open",
    "open_async",
    "prune_backups",
    "restore",
    "verify_backup",
]


if not TYPE_CHECKING:
    _load = loader(__name__, _HOMES)

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("engine")
        return _load(name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
