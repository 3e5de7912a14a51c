"""`AsyncClient`: makes producers and consumers that share connections to a broker.

What a program does not use is not loaded: each method imports what it makes.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack

from engine.aio.once import Once
from engine.client.base.endpoint import Endpoint, objects_of
from engine.client.base.entering import Entering
from engine.client.base.options import (
    Batching,
    ClientOptions,
    Keys,
    ProducerOptions,
    QueueOptions,
    Token,
    backoff_of,
    check_start,
    consumer_options,
)
from engine.client.base.owned import Owned, handle_of, warn_of
from engine.client.base.schema import Schema
from engine.client.net.children import Children
from engine.client.net.lost import add_living, close_collected, keep_of_parent
from engine.client.net.pool import Pool
from engine.client.signatures import (
    makes_checkpoint_consumer,
    makes_producer,
    makes_queue_consumer,
    makes_stream_consumer,
    makes_table_view,
)
from engine.clock import Clock, SystemClock
from engine.lazy import traced
from engine.limits import (
    CLIENT_MEMORY_MAX,
    OPERATION_TIMEOUT_S,
    PENDING_BYTES_MAX,
    SEND_TIMEOUT_S,
    TRANSACTION_TIMEOUT_S,
)
from engine.model.checks import check_properties
from engine.model.names import TopicName, check_name
from engine.model.positions import Checkpoint
from engine.model.redelivery import Backoff, DeadLetter
from engine.wire.connector import SocketConnector
from engine.wire.stream import Connector

if TYPE_CHECKING:
    from engine.client.admin.admin import AsyncAdmin
    from engine.client.base.object_access import OpenStore
    from engine.client.consume.checkpoint_consumer import AsyncCheckpointConsumer
    from engine.client.consume.queue_consumer import AsyncQueueConsumer
    from engine.client.consume.stream_consumer import AsyncStreamConsumer
    from engine.client.many.multi import AsyncMultiQueueConsumer, AsyncMultiStreamConsumer
    from engine.client.produce.producer import AsyncProducer
    from engine.client.ranges.range_reader import AsyncRangeReader, Ranges
    from engine.client.ranges.topic_reader import AsyncTopicReader, Place, TopicReaderKeywords
    from engine.client.ranges.topic_view import AsyncTopicView
    from engine.client.topic.topic_list import AsyncTopicWatch, Topics
    from engine.client.transact.transaction import AsyncTransaction, Transactions
    from engine.client.views.exchange import Exchange
    from engine.client.views.table_view import AsyncTableView, TableViewKeywords
    from engine.model.admin_requests import AdminBackend

C = TypeVar("C", bound=Owned)


class AsyncClient:
    """A client of one service, `engine://host:port`. Use it from one event loop, preferably as `async with`.

    `url`: may name several brokers, `engine://a,b`, of which any will do; None: ENGINE_URL of the environment. See
    docs/connecting.md. `token`: what the broker asks for; it overrides that of the URL. A callable returns the one that
    is valid now: it is called for each connection, and again before the one in use expires. `tls`: an ssl.SSLContext.
    `objects`: `s3://bucket/prefix`, the cluster's store, from which readers read what is old. `memory_limit`:
    bytes that all its producers and consumers may hold together. `operation_timeout`: seconds for each operation that
    has no time limit of its own. `connector`, `clock`, `rng`, `admin` are for embedding and for tests.

    Nothing is connected before it is needed (`async with` connects at once, and raises ConnectError when no broker
    answers). A lost connection is made again in the background. Raises InvalidArgumentError for a malformed URL.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: Token | None = None,
        tls: ssl.SSLContext | None = None,
        objects: str | OpenStore | None = None,
        memory_limit: int = CLIENT_MEMORY_MAX,
        operation_timeout: float = OPERATION_TIMEOUT_S,
        connector: Connector | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        admin: AdminBackend | None = None,
        threadsafe: bool = False,
    ) -> None:
        self.traces = True  # not where a blocking client does so itself
        service, rng = Endpoint.of(url, token, tls), rng or random.SystemRandom()
        self._url = service.url
        self._options = ClientOptions(
            connector=connector or SocketConnector(tls=service.tls, user=service.user),
            clock=clock or SystemClock(),
            rng=rng,
            token=service.token,
            tls=service.tls,
            memory_limit=memory_limit,
            operation_timeout=operation_timeout,
            threadsafe=threadsafe,
            open_objects=objects_of(objects, url, rng),
        )
        self._addresses = service.addresses
        self._given_backend = admin
        self._set_up()
        add_living(self)

    def _set_up(self) -> None:
        """What belongs to this process."""
        self._pool = Pool(self._addresses, self._options)
        self._children = Children()
        self._all_transactions: Transactions | None = None  # from the first transaction on
        self._exchange: Exchange | None = None  # from the first request or reply on
        self._end = Once()
        self._backend = self._given_backend
        self._admin: AsyncAdmin | None = None  # from its first use on

    def after_fork(self) -> None:
        """In a forked child: all that it has made is the parent's; it connects anew, on any loop."""
        if not self.closed:
            self._children.after_fork()
            keep_of_parent(self._pool, self._children, self._all_transactions, self._backend, self._admin)
            self._options = self._pool.options_of_child()
            self._set_up()

    def __del__(self) -> None:
        if "_admin" in self.__dict__ and not self.closed and self._pool.loop is not None:  # else nothing is open
            warn_of(self, partial(self._close_collected, self._pool.loop))

    def _close_collected(self, loop: asyncio.AbstractEventLoop) -> None:
        close_collected(self, self._pool, loop)

    @property
    def service_url(self) -> str:
        """The URL of the service."""
        return self._url

    # -- producers and consumers -----------------------------------------------------------------------------

    @makes_producer
    async def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        access_mode: str = "shared",
        batching: Batching | None = None,
        compression: str = "none",
        send_timeout: float = SEND_TIMEOUT_S,
        max_pending_bytes: int = PENDING_BYTES_MAX,
        initial_sequence_id: int | None = None,
        properties: Mapping[str, str] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        schema: object = None,
        encryption_keys: Keys | None = None,
        _on_full: Callable[[], None] | None = None,
    ) -> AsyncProducer[Any]:
        """A producer for one topic, which is created where the broker allows it.

        `name`: a name of your own makes retries exact across restarts: the broker stores each (name, sequence id) once;
        only one producer may use it at a time. `access_mode`: "shared", "exclusive", "exclusive_with_fencing" or
        "wait_for_exclusive". `batching`: when a batch goes out; Batching(max_messages=1) makes each message one of its
        own, None is Batching(). `compression`: "none", "lz4" (block format) or "zstd". `send_timeout`: seconds until an
        unacknowledged message fails. `max_pending_bytes`: limit of bytes sent and not acknowledged.
        `initial_sequence_id`: the first message gets the next one. `on_error`: called on the loop's thread with what
        befell messages of send_nowait and send_batch; what it raises is logged. `schema`: what values are: bytes (the
        default), str, a dataclass, or an engine.Schema; recorded with the topic. `properties`: what the statistics of
        the topic say of this producer, text to text. `encryption_keys`: public keys by name, as PEM or the pathlib.Path
        of a file: keys, values and properties of messages are encrypted, and only consumers with one of the private
        keys can read them; see docs/encryption.md.

        Compression works on the loop's thread, an entry at a time, and nothing else happens there meanwhile: some
        tenths of a millisecond for 128 KiB with zstd, less with lz4.

        Raises NotFoundError, ProducerBusyError, ConnectError, TimeoutError, InvalidArgumentError (SchemaError: the
        schema is incompatible with the topic's).
        """
        from engine.client.produce.producer import AsyncProducer

        check_properties(properties)
        options = ProducerOptions(
            name=name, access_mode=access_mode, batching=Batching() if batching is None else batching,
            compression=compression, send_timeout=send_timeout, max_pending_bytes=max_pending_bytes,
            initial_sequence_id=initial_sequence_id, properties=properties or {}, on_error=on_error,
            schema=Schema.of(schema), encryption_keys=encryption_keys,
        )  # fmt: skip
        producer = AsyncProducer[Any](self._pool, TopicName.parse(topic), name, options)
        return await self._started(producer, lambda: producer.start(_on_full))

    @makes_stream_consumer
    async def stream_consumer(
        self,
        topic: Topics,
        subscription: str,
        *,
        namespace: str | None = None,
        name: str | None = None,
        initial_position: str = "latest",
        properties: Mapping[str, str] | None = None,
        pattern: str | None = None,
        receive_queue_size: int | Literal["auto"] = "auto",
        schema: object = None,
        create: bool = True,
        on_corrupt: str = "stop",
        decryption_keys: Keys | None = None,
    ) -> AsyncStreamConsumer[Any] | AsyncMultiStreamConsumer[Any]:
        """An ordered consumer; the consumers of one subscription share the topic's segments.

        `topic`: a topic, or a list of topics; None with a `namespace` "tenant/namespace": all its topics, now and
        later, or those of them that have all of `properties`, and whose own name the RE2 `pattern` matches as a whole.
        `name`: the session's name; one that comes back under its name keeps its share. `initial_position`: "earliest"
        or "latest", where a new subscription starts; topics that come later are always read from their beginning.
        `receive_queue_size`: messages fetched ahead, over all segments and topics; "auto": what memory allows, 100,000
        at most.
        `schema`: what values are: bytes (the default), str, a dataclass, or an engine.Schema; checked against the
        topic's, and recorded where that has none. `create`: a missing topic is created where the broker allows it, and
        a warning logged; False: NotFoundError. `on_corrupt`: at a bad entry, one receive raises CorruptionError and
        nothing behind it comes of its segment ("stop"), or the entry is skipped, logged and counted ("skip").
        `decryption_keys`: private keys by name, as PEM or the pathlib.Path of a file, for messages that are encrypted.

        Raises NotFoundError, ConsumerBusyError (SubscriptionKindError: queue consumers hold the subscription),
        ConnectError, TimeoutError, InvalidArgumentError.
        """
        from engine.client.consume.stream_consumer import AsyncStreamConsumer
        from engine.client.topic.topic_list import chosen

        check_name(subscription, "subscription name")
        options = consumer_options(
            self._make_name, name, subscription=subscription, initial_position=initial_position, schema=schema,
            receive_queue_size=receive_queue_size, create_topic=create, on_corrupt=on_corrupt,
            decryption_keys=decryption_keys,
        )  # fmt: skip
        topics = chosen(topic, namespace, properties, pattern)
        make = partial(AsyncStreamConsumer[Any], self._pool)
        if isinstance(topics, TopicName):
            consumer = make(topics, options)
            return await self._started(consumer, consumer.start)
        from engine.client.many.multi import AsyncMultiStreamConsumer

        several = AsyncMultiStreamConsumer[Any](self._pool, topics, options, make)
        return await self._started(several, several.start)

    @makes_queue_consumer
    async def queue_consumer(
        self,
        topic: Topics,
        subscription: str,
        *,
        namespace: str | None = None,
        name: str | None = None,
        initial_position: str = "latest",
        properties: Mapping[str, str] | None = None,
        pattern: str | None = None,
        receive_queue_size: int | Literal["auto"] = "auto",
        ack_timeout: float | None = None,
        nack_backoff: Backoff | float | None = None,
        dead_letter: DeadLetter | None = None,
        priority: int = 0,
        schema: object = None,
        create: bool = True,
        on_corrupt: str = "stop",
        decryption_keys: Keys | None = None,
    ) -> AsyncQueueConsumer[Any] | AsyncMultiQueueConsumer[Any]:
        """A consumer of single messages; each goes to one of the subscription's consumers and comes back unless
        acknowledged.

        `topic`, `namespace`, `properties`, `pattern`, `schema`, `create` and the rest as of stream_consumer.

        `ack_timeout`: seconds after which a message that was received and not acknowledged is handed back; late by an
        eighth at most. `nack_backoff`: how long a message that was negatively acknowledged is kept back, an
        engine.Backoff or a number of seconds (default 1). `dead_letter`: an engine.DeadLetter; what came back more
        often goes to its topic instead. `priority`: consumers with the lowest number are served first, others get what
        those have no room for. `receive_queue_size`: messages that it has and has not acknowledged, over all segments
        and topics; "auto": about 0.2 s of its own work, so that others get the rest. `on_corrupt`: a bad entry stays
        due ("stop"), or is acknowledged ("skip"); what is behind it comes. Raises as stream_consumer.
        """
        from engine.client.consume.queue_consumer import AsyncQueueConsumer
        from engine.client.topic.topic_list import chosen

        check_name(subscription, "subscription name")
        options = consumer_options(
            self._make_name, name, subscription=subscription, initial_position=initial_position, schema=schema,
            receive_queue_size=receive_queue_size, create_topic=create, on_corrupt=on_corrupt, priority=priority,
            decryption_keys=decryption_keys,
        )  # fmt: skip
        own = None if dead_letter is None else self._transactions.own
        queue = QueueOptions(ack_timeout, backoff_of(nack_backoff), dead_letter, own)
        topics = chosen(topic, namespace, properties, pattern)
        make = partial(AsyncQueueConsumer[Any], self._pool, queue=queue)
        if isinstance(topics, TopicName):
            consumer = make(topics, options)
            return await self._started(consumer, consumer.start)
        from engine.client.many.multi import AsyncMultiQueueConsumer

        several = AsyncMultiQueueConsumer[Any](self._pool, topics, options, make, dead_letter)
        return await self._started(several, several.start)

    @makes_checkpoint_consumer
    async def checkpoint_consumer(
        self,
        topic: str,
        *,
        start: Checkpoint | None = None,
        group: str | None = None,
        name: str | None = None,
        receive_queue_size: int | Literal["auto"] = "auto",
        schema: object = None,
        create: bool = True,
        on_corrupt: str = "stop",
        decryption_keys: Keys | None = None,
    ) -> AsyncCheckpointConsumer[Any]:
        """A reader that keeps its own position; the broker stores none.

        `start`: a Checkpoint, default `Checkpoint.latest()`. `group`: the consumers of one group share the topic's
        segments; each starts from a Checkpoint of its own, as the broker stores no position. `name`: the member's
        name; one that comes back under its name within the grace period keeps its share.
        `schema`: what values are: bytes (the default), str, a dataclass, or an engine.Schema; checked against the
        topic's, and recorded where that has none. `create`, `on_corrupt` as of stream_consumer.

        Raises NotFoundError, ConsumerBusyError (SubscriptionKindError: stream consumers hold that name), ConnectError,
        TimeoutError, InvalidArgumentError.
        """
        from engine.client.consume.checkpoint_consumer import AsyncCheckpointConsumer

        check_start(start)
        options = consumer_options(
            self._make_name, name, receive_queue_size=receive_queue_size, schema=schema, create_topic=create,
            group=group, on_corrupt=on_corrupt, decryption_keys=decryption_keys,
        )  # fmt: skip
        consumer = AsyncCheckpointConsumer[Any](self._pool, TopicName.parse(topic), options)
        return await self._started(consumer, lambda: consumer.start(start or Checkpoint.latest()))

    @makes_table_view
    async def table_view(
        self, topic: str, *, schema: object = None, **options: Unpack[TableViewKeywords]
    ) -> AsyncTableView[Any]:
        """The latest value of each key of a topic, followed as it changes; it has read all there is when it is made.

        An empty value removes its key; messages without one are left out. `max_bytes`: of keys and values, with 120
        for each; a view of more fails with MemoryLimitError. The rest, and what is raised, as of checkpoint_consumer.
        """
        from engine.client.views.table_view import make_table_view

        view = make_table_view(self._pool, TopicName.parse(topic), self._make_name, schema, **options)
        return await self._started(view, view.start)

    async def list_topics(
        self,
        namespace: str = "public/default",
        *,
        pattern: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> list[str]:
        """The topics of a "tenant/namespace", sorted, that have all of `properties`, and whose own name the RE2
        `pattern` matches as a whole. Raises ConnectError, TimeoutError, InvalidArgumentError.
        """
        from engine.client.topic.topic_list import TopicQuery, list_topics

        self._children.check_open()
        return await list_topics(self._pool, TopicQuery(namespace, properties or None, pattern))

    async def watch_topics(
        self,
        namespace: str = "public/default",
        *,
        pattern: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> AsyncTopicWatch:
        """Follows what list_topics() lists: iterate it for every TopicsChanged, the first of which has all there are.

        Raises as list_topics().
        """
        from engine.client.topic.topic_list import AsyncTopicWatch, TopicQuery

        watch = AsyncTopicWatch(self._pool, TopicQuery(namespace, properties or None, pattern))
        return await self._started(watch, watch.start)

    async def topic_exists(self, topic: str) -> bool:
        """Whether the topic exists; it is not created. Raises ConnectError, TimeoutError, InvalidArgumentError."""
        from engine.client.topic.session import exists

        self._children.check_open()
        return await exists(self._pool, TopicName.parse(topic))

    def transaction(
        self, timeout: float = TRANSACTION_TIMEOUT_S, *, name: str | None = None
    ) -> Entering[AsyncTransaction]:
        """Begins an AsyncTransaction: await it, or enter it with `async with`, which commits it, or aborts it when the
        block raises.

        `timeout`: seconds after which it is aborted unless it has ended. `name`: the transaction of that name, when
        there is one that is open or committed (see `state`), so that work that is done again goes on in it, or finds
        out that it is done; one that was aborted is begun anew. Raises InvalidArgumentError, ConnectError,
        TimeoutError, UnsupportedError.
        """
        return self._transactions.begin(timeout, name)

    def join_transaction(
        self,
        id: str,  # noqa: A002 - what it is called
        attempt: str | None = None,
    ) -> Entering[AsyncTransaction]:
        """Takes part in a transaction that is begun and ended elsewhere: await it, or enter it with `async with`,
        which waits at its end until everything is written.

        `attempt`: what is done with this object belongs to that attempt, and takes effect only if the commit accepts
        it. Raises TransactionNotFoundError, InvalidArgumentError, ConnectError, TimeoutError, UnsupportedError.
        """
        return self._transactions.join(id, attempt)

    @property
    def _transactions(self) -> Transactions:
        if self._all_transactions is None:
            from engine.client.transact.transaction import Transactions

            self._all_transactions = Transactions(self._pool, self._children)
        return self._all_transactions

    def _make_name(self, kind: str) -> str:
        return f"{kind}-{self._options.rng.getrandbits(64):016x}"

    @property
    def exchange(self) -> Exchange:
        """Requests of its producers, and replies of its consumers."""
        self._children.check_open()
        if self._exchange is None:
            from engine.client.views.exchange import Exchange

            self._exchange = Exchange(self._pool, self._options.rng, self._make_name, lambda: self.admin)
        return self._exchange

    async def topic_view(self, topic: str) -> AsyncTopicView:
        """Follows a topic's segments, and the end offset of each. The topic is not created.

        Raises NotFoundError, ConnectError, TimeoutError, InvalidArgumentError.
        """
        from engine.client.ranges.topic_view import AsyncTopicView

        view = AsyncTopicView(self._pool, TopicName.parse(topic), self._make_name("view"))
        return await self._started(view, view.start)

    async def range_reader(
        self,
        topic: str,
        ranges: Ranges,
        *,
        buckets: tuple[int, int] | None = None,
        keys: Iterable[bytes | str] | None = None,
        skip_deleted: bool = False,
        receive_queue_size: int | Literal["auto"] = "auto",
        on_corrupt: str = "stop",
        decryption_keys: Keys | None = None,
    ) -> AsyncRangeReader:
        """Reads `ranges`, {segment id: (first offset, offset behind the last)}, and ends.

        One segment after the other, parents before children, each in the order of its offsets; messages of transactions
        that are not committed are left out. `buckets`: (first, last), only entries whose smallest bucket hash lies
        there: tasks whose `buckets` tile 0..65535 share the entries out, each to one of them, and where they are cut at
        bucket boundaries, a key is in one task. `keys`: entries that hold none of these may be left out; what comes is
        not filtered further. `skip_deleted`: leave out what retention has deleted, and say so in `deleted`, rather than
        raise NotFoundError where it is met. `receive_queue_size`: messages fetched ahead. `on_corrupt`: a bad entry
        ends the reading with CorruptionError ("stop"), or is skipped, logged and counted ("skip").

        Raises NotFoundError, ConnectError, TimeoutError; InvalidArgumentError, also for a range beyond a segment's end.
        """
        from engine.client.ranges.range_reader import AsyncRangeReader, ReadPlan, check_keys, check_ranges

        plan = ReadPlan(check_ranges(ranges), buckets, check_keys(keys), skip_deleted)
        options = consumer_options(
            self._make_name, None, receive_queue_size=receive_queue_size, create_topic=False, on_corrupt=on_corrupt,
            decryption_keys=decryption_keys,
        )  # fmt: skip
        reader = AsyncRangeReader(self._pool, TopicName.parse(topic), options, plan)
        return await self._started(reader, reader.start)

    async def reader(
        self,
        topic: str,
        *,
        start: Place = "earliest",
        end: Place = "latest",
        columns: Iterable[str] | None = None,
        schema: object = None,
        on_corrupt: str = "stop",
        decryption_keys: Keys | None = None,
    ) -> AsyncTopicReader:
        """The messages of a topic from `start` to `end`, for reading as a table. It is not created, and needs pyarrow.

        `start`, `end`: "earliest", "latest", an aware datetime (messages published then or later are behind it) or a
        Checkpoint. What is read ends where the topic ended when this was called, at the latest. `columns`: names of
        those that are read, in order; None: all. `schema`: what values are: bytes (the default), str, a dataclass, or
        an engine.Schema; the fields of records become columns. It is checked against the topic's, and never recorded.
        `on_corrupt`: a bad entry ends the reading with CorruptionError ("stop"), or is passed by, logged and counted
        ("skip").

        Raises NotFoundError, also where retention has deleted messages behind a Checkpoint; ConnectError, TimeoutError,
        InvalidArgumentError (SchemaError: the schema cannot read the topic's), UnsupportedError without pyarrow.
        """
        from engine.client.ranges.topic_reader import open_reader

        more = {"on_corrupt": on_corrupt, "decryption_keys": decryption_keys}
        return await open_reader(self, topic, (start, end), Schema.of(schema), columns, more)

    async def table(self, topic: str, **options: Unpack[TopicReaderKeywords]) -> Any:
        """The messages of a topic as a pyarrow.Table; the options, and what is raised, are those of reader()."""
        return await (await self.reader(topic, **options)).to_table()

    async def _started(self, made: C, start: Callable[[], Coroutine[Any, Any, None]]) -> C:
        await self._children.start(made.working, start)
        made.working._client = made._client = self
        handle = handle_of(made, self._children)
        return traced(handle) if self.traces else handle

    @property
    def pool(self) -> Pool:
        """Its connections to brokers."""
        return self._pool

    @property
    def admin(self) -> AsyncAdmin:
        """What operators do with topics, subscriptions and segments."""
        if self._admin is None:
            from engine.client.admin.admin import AsyncAdmin

            self._admin = AsyncAdmin(self._admin_backend)
        return self._admin

    async def _admin_backend(self) -> AdminBackend:
        """The one given, or HTTP to the addresses that brokers name in their handshakes."""
        self._children.check_open()
        if self._backend is None:
            from engine.client.admin.admin_brokers import BrokersAdmin  # an HTTP client is slow to load, seldom needed

            self._backend = BrokersAdmin(self._pool, self.service_url, self._options.tls)
        return self._backend

    async def connect(self) -> None:
        """Connect now. Raises ConnectError, AuthenticationError, UnsupportedError."""
        self._children.check_open()
        await self._pool.get()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._children.ending

    async def close(self) -> None:
        """Abort the transactions it has begun, close every producer (flushing it) and consumer, then the connections.

        Idempotent. Raises the first producer's failure.
        """
        await self._end.run(self._close)

    async def _close(self) -> None:
        if self._exchange is not None and not self._pool.loop_ended:
            await self._exchange.close()  # it deletes topics by the admin API, which ends with the children
        self._children.end()
        if self._pool.loop_ended:  # and with the loop all that it has made
            self._pool.sever()
            return
        try:
            if self._all_transactions is not None:
                await self._all_transactions.close()
            await self._children.close()
        finally:
            if self._admin is not None:
                await self._admin.close()
            await self._pool.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.service_url}{' (closed)' if self._pool.closed else ''}>"

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
