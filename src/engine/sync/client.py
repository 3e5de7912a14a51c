"""The blocking `Client`. What a program does not use is not loaded: each method imports what it makes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from engine.aio.locks import Lock
from engine.aio.portal import CLOSED, Portal
from engine.aio.uv import new_event_loop
from engine.client.client import AsyncClient
from engine.errors import AlreadyClosedError
from engine.lazy import traced
from engine.sync.closing import close_before_exit, close_collected, run_to_close
from engine.sync.signatures import (
    makes_checkpoint_consumer,
    makes_producer,
    makes_queue_consumer,
    makes_stream_consumer,
    makes_table_view,
)

if TYPE_CHECKING:
    from engine.client.base.options import (
        CheckpointConsumerKeywords,
        ClientKeywords,
        ProducerKeywords,
        QueueConsumerKeywords,
        RangeReaderKeywords,
        StreamConsumerKeywords,
        TopicListKeywords,
    )
    from engine.client.produce.producer import AsyncProducer
    from engine.client.ranges.range_reader import Ranges
    from engine.client.ranges.topic_reader import TopicReaderKeywords
    from engine.client.topic.topic_list import Topics
    from engine.client.views.table_view import TableViewKeywords
    from engine.sync.admin import Admin
    from engine.sync.consumers import CheckpointConsumer, QueueConsumer, StreamConsumer
    from engine.sync.producer import Producer
    from engine.sync.ranges import RangeReader, TopicReader, TopicView
    from engine.sync.table_view import TableView
    from engine.sync.topic_watch import TopicWatch
    from engine.sync.transaction import Transaction

T = TypeVar("T")

_of_parents: list[tuple[Portal, AsyncClient]] = []  # kept, as what ends them would run on what the parent uses


class Client:
    """A blocking client of one service, `engine://host:port`; any number of threads may use it, preferably as `with`.

    `url`: may name several brokers, `engine://a,b`, of which any will do; None: ENGINE_URL of the environment. See
    docs/connecting.md. `token`: what the broker asks for; it overrides that of the URL. A callable returns
    the one that is valid now: it is called for each connection, and again before the one in use expires. `tls`: an
    ssl.SSLContext. `objects`: the URL of the cluster's store of objects, `s3://bucket/prefix`, from which readers read
    what is old, with this process's credentials; None: brokers send all. See docs/cluster.md.
    `memory_limit`: bytes that all its producers and consumers may hold together. `operation_timeout`: seconds for
    whatever has no time limit of its own. `connector`, `clock`, `rng` are for tests. Raises InvalidArgumentError.

    Connections open when first needed (`with` opens one at once, and raises ConnectError when no broker answers). A
    lost connection is re-established in the background. A client still open when the interpreter exits is closed then.
    """

    # There but in a forked child, until the first use there: see __getattr__.
    _portal: Portal
    _client: AsyncClient
    _given_up = False  # closed in a forked child before the first use

    def __init__(self, url: str | None = None, **options: Unpack[ClientKeywords]) -> None:
        self._made_of = url, options
        self._open()

    def _open(self) -> None:
        """Also in a forked child, anew."""
        url, options = self._made_of
        self._begin(partial(_make_client, url, options))

    def _begin(
        self,
        make: Callable[[], Coroutine[Any, Any, AsyncClient]],
        loop_factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop,
    ) -> None:
        """Start the loop's thread and make the asynchronous client there."""
        portal = Portal("engine", loop_factory=loop_factory)
        try:
            client = portal.run(make())
        except BaseException:
            portal.close()
            raise
        self._use(portal, client)

    def _use(self, portal: Portal, client: AsyncClient) -> None:
        """The asynchronous client, and the thread on whose loop it is."""
        self._portal = portal
        self._client = client
        client.traces = False  # the blocking objects do, on the thread of the program's own spans
        portal.fork_listeners.add(self)
        close_before_exit(self)

    def after_fork(self, error: AlreadyClosedError) -> None:
        """In a forked child: the thread and the connections are the parent's. Others are made at the first use."""
        if not self._client.closed:
            _of_parents.append((self._portal, self._client))
            del self._portal, self._client
            self._forked = Lock()

    def __getattr__(self, name: str) -> Any:
        """`_portal` and `_client`, in a forked child; nothing else is missing."""
        if name not in ("_portal", "_client") or "_forked" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        with self._forked:
            if self._given_up:
                raise AlreadyClosedError(CLOSED)
            if name not in self.__dict__:
                self._open()
        return self.__dict__[name]

    def __del__(self) -> None:
        client = self.__dict__.get("_client")
        if client is not None and not client.closed:
            close_collected(self._portal, repr(self), client.close, partial(self._is_last, client))

    @staticmethod
    def _is_last(client: AsyncClient) -> bool:
        """Whether the thread ends with this client, which is closed."""
        return True

    @property
    def admin(self) -> Admin:
        """What operators do."""
        from engine.sync.admin import Admin

        return self._owned(Admin(self._portal, self._client.admin))

    def _owned(self, made: T) -> T:
        """What a client has made keeps it from being collected."""
        made._owner = self  # type: ignore[attr-defined]
        return traced(made)

    @property
    def service_url(self) -> str:
        """The URL of the service."""
        return str(self._client.service_url)

    @makes_producer
    def producer(
        self, topic: str, *, block_when_full: bool = True, schema: Any = None, **options: Unpack[ProducerKeywords]
    ) -> Producer[Any]:
        """A producer for one topic, which is created where the broker allows it.

        `block_when_full`: whether send_nowait waits for room (else it raises QueueFullError). `name`: a name of your
        own makes retries exact across restarts: the broker stores each (name, sequence id) once; only one producer may
        use it at a time. `access_mode`: "shared" (default), "exclusive", "exclusive_with_fencing" or
        "wait_for_exclusive". `batching`: when a batch goes out, an engine.Batching; Batching(max_messages=1) makes each
        message one of its own. `compression`: "none" (default), "lz4" (block format) or "zstd". `send_timeout`: seconds
        until an unacknowledged message fails (30). `max_pending_bytes`: limit of bytes sent and not acknowledged.
        `initial_sequence_id`: the first message gets the next one. `on_error`: called on the client's own thread with
        the failures of messages of send_nowait and send_batch; what it raises is logged. `schema`: what values are:
        bytes (default), str, a dataclass, or an engine.Schema; recorded with the topic.

        Raises NotFoundError, ProducerBusyError, ConnectError, TimeoutError, InvalidArgumentError (SchemaError: the
        schema is incompatible with the topic's), UnsupportedError (`properties`).
        """
        from engine.sync.producer import Producer

        made: list[AsyncProducer[Any]] = []

        portal = self._portal  # the client itself is not kept by what is given to the loop

        def wait_for_room() -> None:
            while not made[0].has_room:
                portal.run(made[0].writable())

        on_full: Callable[[], None] | None = wait_for_room if block_when_full else None
        opening: Any = self._client.producer  # with an argument of the two clients' own
        made.append(portal.run(opening(topic, _on_full=on_full, schema=schema, **options)))
        return self._owned(Producer(self._portal, made[0]))

    @makes_stream_consumer
    def stream_consumer(
        self, topic: Topics, subscription: str, *, schema: Any = None, **options: Unpack[StreamConsumerKeywords]
    ) -> StreamConsumer[Any]:
        """An ordered consumer; the consumers of one subscription share the topic's segments.

        `topic`: a topic, or a list of topics; None with a `namespace` "tenant/namespace": all its topics, now and
        later, or those of them that have all of `properties`, and whose own name the RE2 `pattern` matches as a whole.
        `name`: the session's name; one that comes back under its name keeps its share. `initial_position`: "earliest"
        or "latest" (default), where a new subscription starts; topics that come later are always read from their
        beginning. `receive_queue_size`: messages fetched ahead, over all segments and topics; "auto" (default): what
        memory allows, 100,000 at most. `schema`: what values are: bytes (the default), str, a dataclass, or an
        engine.Schema; checked against the topic's, and recorded where that has none. `create`: a missing topic is
        created where the broker allows it, and a warning logged (True); False: NotFoundError. `on_corrupt`: at a bad
        entry, one receive raises CorruptionError and nothing behind it comes of its segment ("stop", the default), or
        the entry is skipped, logged and counted ("skip").

        Raises NotFoundError, ConsumerBusyError (SubscriptionKindError: queue consumers hold the subscription),
        ConnectError, TimeoutError, InvalidArgumentError.
        """
        from engine.sync.consumers import StreamConsumer

        opening: Any = self._client.stream_consumer
        return self._owned(
            StreamConsumer(self._portal, self._portal.run(opening(topic, subscription, schema=schema, **options)))
        )

    @makes_queue_consumer
    def queue_consumer(
        self, topic: Topics, subscription: str, *, schema: Any = None, **options: Unpack[QueueConsumerKeywords]
    ) -> QueueConsumer[Any]:
        """A consumer of single messages; each goes to one of the subscription's consumers and comes back unless
        acknowledged.

        `topic`, `namespace`, `properties`, `pattern`, `name`, `initial_position`, `schema`, `create` as of
        stream_consumer. `receive_queue_size`: messages that it has and has not acknowledged; "auto" (default): about
        0.2 s of its own work. `ack_timeout`: seconds after which a message
        that was received and not acknowledged is handed back. `nack_backoff`: how long one that was negatively
        acknowledged is kept back, an engine.Backoff or a number of seconds (default 1). `dead_letter`: an
        engine.DeadLetter; what came back more often goes to its topic instead. `priority`: consumers with the lowest
        number are served first. `on_corrupt`: a bad entry stays due ("stop", the default), or is acknowledged ("skip");
        what is behind it comes. Raises as stream_consumer.
        """
        from engine.sync.consumers import QueueConsumer

        opening: Any = self._client.queue_consumer
        return self._owned(
            QueueConsumer(self._portal, self._portal.run(opening(topic, subscription, schema=schema, **options)))
        )

    @makes_checkpoint_consumer
    def checkpoint_consumer(
        self, topic: str, *, schema: Any = None, **options: Unpack[CheckpointConsumerKeywords]
    ) -> CheckpointConsumer[Any]:
        """A reader that keeps its own position; the broker stores none.

        `start`: a Checkpoint, default `Checkpoint.latest()`. `group`: the consumers of one group share the topic's
        segments; none of them remembers anything, so each starts from a Checkpoint of its own. `name`: the member's
        name; one that comes back under its name within the grace period keeps its share. `receive_queue_size`
        as of stream_consumer.
        `schema`: what values are: bytes (the default), str, a dataclass, or an engine.Schema; checked against the
        topic's, and recorded where that has none. `create`, `on_corrupt` as of stream_consumer.

        Raises NotFoundError, ConsumerBusyError (SubscriptionKindError: stream consumers hold that name), ConnectError,
        TimeoutError, InvalidArgumentError.
        """
        from engine.sync.consumers import CheckpointConsumer

        opening = self._client.checkpoint_consumer(topic, schema=schema, **options)
        return self._owned(CheckpointConsumer(self._portal, self._portal.run(opening)))

    @makes_table_view
    def table_view(self, topic: str, *, schema: Any = None, **options: Unpack[TableViewKeywords]) -> TableView[Any]:
        """The latest value of each key of a topic, followed as it changes; it has read all there is when it is made.

        A message with an empty value removes its key; those without a key are left out. `schema`: what values are:
        bytes (the default), str, a dataclass, or an engine.Schema. `max_bytes`: of keys and values together, with 120
        for each; a view that holds more fails with MemoryLimitError. `create`, `on_corrupt` and `decryption_keys` as of
        checkpoint_consumer.

        Raises NotFoundError, ConnectError, TimeoutError, MemoryLimitError, InvalidArgumentError.
        """
        from engine.sync.table_view import TableView

        opening = self._client.table_view(topic, schema=schema, **options)
        return self._owned(TableView(self._portal, self._portal.run(opening)))

    def topic_view(self, topic: str) -> TopicView:
        """Follows a topic's segments, and the end offset of each. The topic is not created.

        Raises NotFoundError, ConnectError, TimeoutError, InvalidArgumentError.
        """
        from engine.sync.ranges import TopicView

        return self._owned(TopicView(self._portal, self._portal.run(self._client.topic_view(topic))))

    def range_reader(self, topic: str, ranges: Ranges, **options: Unpack[RangeReaderKeywords]) -> RangeReader:
        """Reads `ranges`, {segment id: (first offset, offset behind the last)}, and ends.

        One segment after the other, parents before children, each in the order of its offsets; messages of transactions
        that are not committed are left out. `buckets`: (first, last), only entries whose smallest bucket hash lies
        there: tasks whose `buckets` tile 0..65535 share the entries out, each to one of them, and where they are cut at
        bucket boundaries, a key is in one task. `keys`: entries that hold none of these may be left out; what comes is
        not filtered further. `skip_deleted`: leave out what retention has deleted, and say so in `deleted`, rather than
        raise NotFoundError where it is met. `receive_queue_size`: messages fetched ahead. `on_corrupt`: a bad entry
        ends the reading with CorruptionError ("stop", the default), or is skipped, logged and counted ("skip").

        Raises NotFoundError, ConnectError, TimeoutError; InvalidArgumentError, also for a range beyond a segment's end.
        """
        from engine.sync.ranges import RangeReader, handing_over

        opening = handing_over(self._client.range_reader(topic, ranges, **options))
        return self._owned(RangeReader(self._portal, self._portal.run(opening)))

    def reader(self, topic: str, **options: Unpack[TopicReaderKeywords]) -> TopicReader:
        """The messages of a topic from `start` to `end`, for whatever reads Arrow streams: Polars, DuckDB, pyarrow.

        The topic is not created; pyarrow is needed. `start` ("earliest"), `end` ("latest"): one of these words, an
        aware datetime (messages published then or later are behind it) or a Checkpoint. What is read ends where the
        topic ended when this was called, at the latest. `columns`: names of those that are read, in order; None: all.
        `schema`: what values are: bytes (the default), str, a dataclass, or an engine.Schema; the fields of records
        become columns. It is checked against the topic's, and never recorded. `on_corrupt`: a bad entry ends the
        reading with CorruptionError ("stop", the default), or is passed by, logged and counted ("skip").

        Raises NotFoundError, also where retention has deleted messages behind a Checkpoint; ConnectError, TimeoutError,
        InvalidArgumentError (SchemaError: the schema cannot read the topic's), UnsupportedError without pyarrow.
        """
        from engine.sync.ranges import TopicReader

        return self._owned(TopicReader(self._portal, self._portal.run(self._client.reader(topic, **options))))

    def table(self, topic: str, **options: Unpack[TopicReaderKeywords]) -> Any:
        """The messages of a topic as a pyarrow.Table; the options, and what is raised, are those of reader()."""
        return self.reader(topic, **options).to_table()

    def list_topics(self, namespace: str = "public/default", **options: Unpack[TopicListKeywords]) -> list[str]:
        """The topics of a "tenant/namespace", sorted, that have all of `properties`, and whose own name the RE2
        `pattern` matches as a whole. Raises ConnectError, TimeoutError, InvalidArgumentError.
        """
        return self._portal.run(self._client.list_topics(namespace, **options))

    def watch_topics(self, namespace: str = "public/default", **options: Unpack[TopicListKeywords]) -> TopicWatch:
        """Follows what list_topics() lists: iterate it for every TopicsChanged, the first of which has all there are.

        Raises as list_topics().
        """
        from engine.sync.topic_watch import TopicWatch

        return self._owned(TopicWatch(self._portal, self._portal.run(self._client.watch_topics(namespace, **options))))

    def topic_exists(self, topic: str) -> bool:
        """Whether the topic exists; it is not created. Raises ConnectError, TimeoutError, InvalidArgumentError."""
        return self._portal.run(self._client.topic_exists(topic))

    def transaction(self, timeout: float = 60.0, *, name: str | None = None) -> Transaction:
        """A new Transaction; with `with` it is committed, or aborted when the block raises.

        `timeout`: seconds after which it is aborted unless it has ended. `name`: the transaction of that name, when
        there is one that is open or committed (see `state`), so that work that is done again goes on in it, or finds
        out that it is done; one that was aborted is begun anew. Raises InvalidArgumentError, ConnectError,
        TimeoutError, UnsupportedError.
        """
        from engine.sync.transaction import Transaction

        return self._owned(Transaction(self._portal, self._portal.run(self._client.transaction(timeout, name=name))))

    def join_transaction(self, id: str, attempt: str | None = None) -> Transaction:  # noqa: A002 - what it is called
        """Takes part in a transaction begun and ended elsewhere; the end of `with` waits until everything is written.

        `attempt`: what is done with this object belongs to that attempt, and takes effect only if the commit accepts
        it. Raises TransactionNotFoundError, InvalidArgumentError, ConnectError, TimeoutError, UnsupportedError.
        """
        from engine.sync.transaction import Transaction

        return self._owned(Transaction(self._portal, self._portal.run(self._client.join_transaction(id, attempt))))

    def connect(self) -> None:
        """Connect now. Raises ConnectError, AuthenticationError, UnsupportedError."""
        self._portal.run(self._client.connect())

    def close(self) -> None:
        """Abort the transactions it has begun, close every producer (flushing it) and consumer, then the connections.

        Idempotent.
        """
        client = self.__dict__.get("_client")
        if client is None:  # in a forked child, before the first use
            self._given_up = True
            return
        try:
            run_to_close(self._portal, client.close)
        finally:
            if self._is_last(client):
                self._portal.close()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        client = self.__dict__.get("_client")
        return self._given_up if client is None else bool(client.closed)

    def __repr__(self) -> str:
        client = self.__dict__.get("_client")
        where = "of the parent of this process" if client is None else f"of {client.service_url}"
        return f"<{type(self).__name__} {where}{' (closed)' if self.closed else ''}>"

    def __enter__(self) -> Self:
        try:
            self.connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


async def _make_client(url: str | None, options: ClientKeywords) -> AsyncClient:
    return AsyncClient(url, threadsafe=True, **options)
