"""Which struct is the header of which command."""

from __future__ import annotations

from engine.wire.commands import (
    connection,
    consuming,
    layouts,
    metadata,
    producing,
    segments,
    topic_lists,
    transactions,
)
from engine.wire.commands.command import Command
from engine.wire.commands.header import Header

_TYPES: tuple[type[Header], ...] = (
    connection.Connect,
    connection.Connected,
    connection.Ping,
    connection.Pong,
    connection.Error,
    connection.Success,
    connection.Authenticate,
    layouts.ScalableTopicLookup,
    layouts.ScalableTopicUpdate,
    layouts.ScalableTopicClose,
    layouts.ScalableTopicSubscribe,
    layouts.ScalableTopicAssignment,
    layouts.ScalableTopicUnsubscribe,
    topic_lists.WatchTopicList,
    topic_lists.WatchTopicListUpdate,
    topic_lists.WatchTopicListClose,
    topic_lists.GetTopicsOfNamespace,
    producing.Producer,
    producing.ProducerSuccess,
    producing.Send,
    producing.SendReceipt,
    producing.SendError,
    producing.CloseProducer,
    producing.TopicSchema,
    producing.PublishCredit,
    consuming.Subscribe,
    consuming.SubscribeSuccess,
    consuming.Flow,
    consuming.Message,
    consuming.Ack,
    consuming.Redeliver,
    consuming.ReachedEnd,
    consuming.CloseConsumer,
    segments.SegmentOffset,
    segments.SegmentFiles,
    layouts.SeekSubscription,
    layouts.DeleteSubscription,
    segments.BrokerCall,
    transactions.NewTxn,
    transactions.EndTxn,
    transactions.TxnState,
    metadata.Metadata,
)

HEADERS: dict[Command, type[Header]] = {kind.command: kind for kind in _TYPES}
