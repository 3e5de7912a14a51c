"""The `run()` of stream and queue consumers, of one topic and of several."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from engine.aio.shielded import shielded
from engine.client.consume.letter import LetterWriter
from engine.client.consume.receiving import BATCH_MESSAGES, Receiving, V
from engine.client.consume.run import QueueRun, Run, StreamRun, inside
from engine.client.consume.run_terms import ATTEMPTS_MAX, DRAIN_TIMEOUT_S, Handler, RunTerms
from engine.errors import InvalidArgumentError
from engine.model.names import TopicName
from engine.model.redelivery import Backoff


class Runs(Receiving[V]):
    """A consumer that can be run. Loop thread only."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._run: Run | None = None

    async def _run_through(self, kind: type[Run], handler: Handler, terms: RunTerms) -> None:
        self._check_open()
        if self._run is not None:
            raise InvalidArgumentError(f"run() must be called once, got a second call on {self!r}")
        # This call holds the program's consumer until it ends.
        self._run = kind(self.working, handler, terms)
        await self._run.run()

    def stop_run(self) -> None:
        """Let run() finish what it has begun, and return."""
        if self._run is not None:
            self._run.stop()

    @property
    def handled(self) -> int:
        """Calls of the handler that returned."""
        return 0 if self._run is None else self._run.handled

    @property
    def handler_failures(self) -> int:
        """Calls of the handler that raised."""
        return 0 if self._run is None else self._run.failures

    async def close(self) -> None:
        """Leave. Acknowledges nothing (semantics 13) but what run() has finished, whose calls it awaits; receives that
        wait raise AlreadyClosedError. Idempotent.

        In a handler of run(), it only ends the run, which then closes the consumer.
        """
        if self._run is not None and not self._run.ended.done():
            self._run.stop()
            if inside.get() is self._run:
                return
            await shielded(self._run.ended)
        await super().close()  # type: ignore[safe-super]  # a Receiver is behind this class


class StreamRuns(Runs[V]):
    """What stream consumers share."""

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        batch: bool | None = None,
        max_messages: int = BATCH_MESSAGES,
        max_attempts: int | None = ATTEMPTS_MAX,
        backoff: Backoff | float | None = None,
        dead_letter: str | None = None,
        drain_timeout: float = DRAIN_TIMEOUT_S,
    ) -> None:
        """Call `handler` with each message, and acknowledge what it has returned from. Ends by closing the consumer.

        At most `concurrency` calls run at once, those of one key one after the other. A message whose call raises is
        tried again after `backoff` seconds (an engine.Backoff, or a number; default: 1 s, twice as long each time, at
        most 60 s); meanwhile its key waits, others go on, and what lies before it is acknowledged. After `max_attempts`
        calls (None: without end) it is published to the topic `dead_letter`, or run() raises what the handler raised.

        `handler`: async, or plain, which then blocks the loop. `batch`: it gets a MessageBatch of at most
        `max_messages`, which is tried again as a whole; default: as its first parameter is annotated.

        It returns when the consumer is closed, and on SIGTERM where it runs on the main thread: no call begins any
        more, those that have begun get `drain_timeout` seconds, and what they have finished is acknowledged. Raises as
        receive() and acknowledge_cumulative(); InvalidArgumentError.
        """
        terms = RunTerms.of(
            handler, concurrency=concurrency, batch=batch, max_messages=max_messages, max_attempts=max_attempts,
            backoff=backoff, dead_letter=dead_letter, drain_timeout=drain_timeout,
        )  # fmt: skip
        if terms.dead_letter is not None:
            self._check_dead_letter(terms.dead_letter)
        await self._run_through(StreamRun, handler, terms)

    @abstractmethod
    def letter_writer(self, topic: str, target: TopicName) -> LetterWriter:
        """Publishes dead letters of one of its topics."""

    @abstractmethod
    def _check_dead_letter(self, target: TopicName) -> None:
        """Raise InvalidArgumentError when this consumer receives from that topic."""


class QueueRuns(Runs[V]):
    """What queue consumers share."""

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        batch: bool | None = None,
        max_messages: int = BATCH_MESSAGES,
        drain_timeout: float = DRAIN_TIMEOUT_S,
    ) -> None:
        """Call `handler` with each message, and acknowledge what it has returned from. Ends by closing the consumer.

        At most `concurrency` calls run at once, those of one key one after the other. A message whose call raises is
        handed back, with the exception as the reason: `nack_backoff` and `dead_letter` of the consumer say what becomes
        of it. So the order of a key ends with a redelivery, and holds among the messages of this consumer alone.

        `handler`, `batch`, `max_messages`, `drain_timeout`, and when it returns: as of stream consumers. Raises as
        receive() and acknowledge(); InvalidArgumentError.
        """
        terms = RunTerms.of(
            handler, concurrency=concurrency, batch=batch, max_messages=max_messages, drain_timeout=drain_timeout
        )
        await self._run_through(QueueRun, handler, terms)

    @abstractmethod
    def unsee(self, x: Any) -> None:
        """The program has not seen these: closing does not count them as delivered."""
