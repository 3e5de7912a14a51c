"""`EngineSubscriber`: reads a topic, calls handlers, and settles what they were called with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from typing import Any, cast

from faststream import AckPolicy
from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import SetupError
from faststream.message import StreamMessage
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

import engine
from faststream_engine.config import EngineBrokerConfig, EngineSubscriberConfig, EngineSubscriberSpecificationConfig
from faststream_engine.message import EngineMessage, Raw, Settler
from faststream_engine.parser import EngineParser
from faststream_engine.publisher import EngineFakePublisher
from faststream_engine.settling import StreamSource, open_source

LANE_MESSAGES_MAX = 100  # that wait for the worker of their keys
_RETRY = engine.Backoff(min=0.1, max=10.0)


class EngineSubscriberSpecification(SubscriberSpecification[EngineBrokerConfig, EngineSubscriberSpecificationConfig]):
    """What AsyncAPI says of a subscriber: its topic, and what its handlers take."""

    @property
    def channel_labels(self) -> list[str]:
        """One channel, named as the topic."""
        return [f"{self._outer_config.prefix}{self.config.topic}"]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Its channel."""
        payload = resolve_payloads(self.get_payloads())
        operation = Operation(message=Message(title=f"{self.name}:Message", payload=payload), bindings=None)
        address = self.channel_labels[0]
        return {
            self.name: SubscriberSpec(address=address, description=self.description, operation=operation, bindings=None)
        }


class EngineSubscriber(SubscriberUsecase[Any]):
    """Handlers of one topic. Made by `broker.subscriber`; tasks of the broker's loop.

    Queue: as many messages as there are workers are handled side by side. Stream and checkpoint: messages of one key
    go to the same worker, one after the other; one that failed is tried again before those behind it.
    """

    _outer_config: EngineBrokerConfig

    def __init__(
        self,
        config: EngineSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Any],
    ) -> None:
        self.reading = config.reading
        parser = EngineParser(self._settler)
        config.parser = parser.parse_batch if config.reading.batch else parser.parse_message
        config.decoder = parser.decode_batch if config.reading.batch else parser.decode_message
        super().__init__(config, specification, calls)
        self._source: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        if self.ack_policy is AckPolicy.MANUAL and self.reading.is_ordered and self.reading.max_workers > 1:
            raise SetupError(f"max_workers must be 1 with kind={self.reading.kind!r} and AckPolicy.MANUAL")

    @property
    def topic(self) -> str:
        """Its topic, with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self.reading.topic}"

    @property
    def consumer(self) -> Any:
        """The consumer of `engine`, for its statistics, `lag()`, `seek()` or `checkpoint()`; None while stopped."""
        return None if self._source is None else self._source.consumer

    def _settler(self) -> Settler | None:
        return cast("Settler | None", self._source)

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the consumer, and call handlers from now on. Raises EngineError."""
        await super().start()
        if self._source is None:
            await self._open()
        self._post_start()
        if self.calls:
            self._spawn(self._run())

    async def _open(self) -> None:
        self._source = await open_source(self._outer_config.client, self.reading, self.topic)
        if isinstance(self._source, StreamSource):
            self._source.all_before = self.ack_policy is AckPolicy.MANUAL or not self.calls

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Receive nothing more, wait for the handlers that run, at most `graceful_timeout`, and close the consumer."""
        self.running = False
        await super().stop()
        source, self._source = self._source, None
        if source is not None:
            with suppress(engine.EngineError):  # what was not acknowledged comes again
                await source.close()
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    # -- reading ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        if self.reading.is_ordered:
            await self._run_ordered()
        else:
            await self._run_queue()

    async def _next(self) -> Raw | None:
        """The next message or batch; None: the subscriber was stopped. Errors are logged, and the consumer reopened."""
        failures = 0
        while self.running:
            try:
                if self._source is None:
                    await self._open()
                return cast("Raw", await self._source.receive())
            except engine.CorruptionError as error:  # raised once; what is not damaged still comes
                self._log(logging.ERROR, f"Reading failed: {error}", self.get_log_context(None), error)
            except engine.EngineError as error:
                if not self.running:
                    return None
                self._log(logging.ERROR, f"Reading failed: {error}", self.get_log_context(None), error)
                source, self._source = self._source, None
                if source is not None:
                    with suppress(engine.EngineError):
                        await source.close()
            await asyncio.sleep(_RETRY.delay(failures))
            failures += 1
        return None

    async def _run_queue(self) -> None:
        if self.reading.max_workers == 1:
            while (raw := await self._next()) is not None:
                await self.consume(raw)
            return
        free = asyncio.Semaphore(self.reading.max_workers)

        async def handle(raw: Raw) -> None:
            try:
                await self.consume(raw)
            finally:
                free.release()

        while await free.acquire() and (raw := await self._next()) is not None:
            self._spawn(handle(raw))

    async def _run_ordered(self) -> None:
        if self.reading.max_workers == 1:
            while (raw := await self._next()) is not None:
                await self._handle_in_order(raw)
            return
        lanes = [asyncio.Queue[Raw](LANE_MESSAGES_MAX) for _ in range(self.reading.max_workers)]
        for lane in lanes:
            self._spawn(self._run_lane(lane))
        turn = 0
        while (raw := await self._next()) is not None:
            key = cast("engine.Message[bytes]", raw).key
            turn += key is None
            await lanes[(turn if key is None else hash(key)) % len(lanes)].put(raw)

    async def _run_lane(self, lane: asyncio.Queue[Raw]) -> None:
        while self.running:
            await self._handle_in_order(await lane.get())

    async def _handle_in_order(self, raw: Raw) -> None:
        """Call the handler until it settles the message, or the message is a dead letter."""
        policy, source = self.reading.dead_letter, self._source
        while self.running and source is self._source and source is not None:
            await self.consume(raw)
            again = source.take_again(raw)
            if again is None:
                return
            if policy is not None and source.redeliveries(raw) > policy.max_redeliveries:
                try:
                    await source.reject(raw, again.reason)
                    return
                except engine.EngineError as error:
                    self._log(logging.ERROR, f"No dead letter: {error}", self.get_log_context(None), error)
            await asyncio.sleep(again.delay)

    # -- one by one ------------------------------------------------------------------------------------------

    async def get_one(self, *, timeout: float = 5.0) -> EngineMessage | None:
        """The next message, of a subscriber without handlers; None when none came within `timeout` seconds.

        Settle it yourself. Raises EngineError.
        """
        self._check_no_calls()
        if self._source is None:
            await self._open()
        try:
            async with asyncio.timeout(timeout):
                raw = await self._source.receive()
        except TimeoutError:
            return None
        return await self._processed(raw)

    async def __aiter__(self) -> AsyncIterator[EngineMessage]:
        self._check_no_calls()
        if self._source is None:
            await self._open()
        while True:
            yield await self._processed(await self._source.receive())

    def _check_no_calls(self) -> None:
        if self.calls:
            raise SetupError("messages are received one by one only by a subscriber without handlers")

    async def _processed(self, raw: Raw) -> EngineMessage:
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        middlewares = (make(raw, context=context) for make in self._broker_middlewares)
        found = await process_msg(msg=raw, middlewares=middlewares, parser=parser, decoder=decoder)
        return cast("EngineMessage", found)

    # -- what FastStream asks --------------------------------------------------------------------------------

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        return (EngineFakePublisher(self._outer_config.producer, topic=message.reply_to),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """The columns of its log lines."""
        return {
            "topic": self.topic,
            "subscription": self.reading.subscription or "",
            "message_id": getattr(message, "message_id", ""),
        }
