"""`run()`: gives messages to a handler, side by side but for those of one key, and acknowledges what it has finished.

A run has one task that receives, one that acknowledges, and one for each call of the handler. Which call begins next is
decided by run_schedule.py. It ends when the consumer is closed, when SIGTERM comes, and with an error: nothing more is
received then and no call begins; calls that have begun are awaited, what they finished is acknowledged, and the
consumer is closed. So what was received and not handled comes again, and cannot be acknowledged by chance.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextvars import ContextVar
from typing import Any

from engine._native.consume.batch import MessageBatch
from engine._native.consume.message import Message
from engine.aio.shielded import shielded
from engine.aio.signals import on_sigterm
from engine.client.consume.failure import Failure
from engine.client.consume.letter import LetterWriter
from engine.client.consume.run_schedule import Job, Prefix, Schedule
from engine.client.consume.run_terms import Handler, RunTerms
from engine.errors import AlreadyClosedError, EngineError, FencedError
from engine.limits import MIB
from engine.model.names import TopicName

log = logging.getLogger(__name__)

# A stream consumer receives ahead of a key that is held: at most so many messages (or batches) and bytes.
AHEAD_MESSAGES = 1_000
AHEAD_BYTES = 64 * MIB
LETTERS_MAX = 16  # being published at once
RETRY_S = 1.0  # before an acknowledgement is tried again
GOODBYE_S_MAX = 2.0  # a cancelled run has this long to acknowledge what is finished
_ALL = "all"  # the key of every batch where only one call runs at once

inside: ContextVar[Run | None] = ContextVar("inside", default=None)  # the run whose handler this is


class Run(ABC):
    """One call of run(). Loop thread only.

    `handled`, `failures`: calls of the handler that returned, and that raised. `ended`: nothing is left to wait for.
    """

    def __init__(self, consumer: Any, handler: Handler, terms: RunTerms) -> None:
        self.handled = self.failures = 0
        self._consumer = consumer
        self._handler = handler
        self._terms = terms
        self._loop = asyncio.get_running_loop()
        self._schedule = Schedule(terms.concurrency)
        self._calls: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped: asyncio.Future[None] = self._loop.create_future()  # no call begins any more
        self._changed = asyncio.Event()  # there may be room
        self._finished = asyncio.Event()  # there may be something to acknowledge
        self._cancelled = False
        self.ended: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Until it is stopped. Raises what ends it: an error of the consumer or, at last, of the handler."""
        tasks = [self._loop.create_task(self._receive()), self._loop.create_task(self._acknowledge())]
        try:
            with on_sigterm(lambda: self._loop.call_soon_threadsafe(self.stop)):
                await shielded(self._stopped)
        except asyncio.CancelledError:
            self._cancelled = True
            raise
        finally:
            await self._end(tasks)

    def stop(self, error: BaseException | None = None) -> None:
        """Receive no more, and begin no call. The first error is raised by run()."""
        if self._stopped.done():
            return
        if error is None:
            self._stopped.set_result(None)
        else:
            self._stopped.set_exception(error)

    # -- receiving -------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        terms = self._terms
        try:
            while not self._stopped.done():
                while not self._has_room:
                    self._changed.clear()
                    await self._changed.wait()
                if terms.batch:
                    self._arrived_batch(await self._consumer.receive_batch(terms.max_messages))
                elif (message := await self._consumer.receive()) is not None:
                    self._arrived(Job(message, _keys_of(message), message.size), _place_of(message))
                self._begin_calls()
        except AlreadyClosedError:
            self.stop()
        except Exception as e:
            self.stop(e)

    def _arrived_batch(self, batch: MessageBatch) -> None:
        if not len(batch):
            return
        one_by_one = self._terms.concurrency == 1
        keys = (_ALL,) if one_by_one else {(batch.topic, key) for key in batch.keys if key is not None}
        self._arrived(Job(batch, keys, batch.size), None)

    @property
    @abstractmethod
    def _has_room(self) -> bool:
        """Whether to receive more."""

    @abstractmethod
    def _arrived(self, job: Job, place: Hashable) -> None:
        """Schedule the job."""

    # -- calling ---------------------------------------------------------------------------------------------

    def _begin_calls(self) -> None:
        while not self._stopped.done() and (job := self._schedule.next()) is not None:
            call = self._loop.create_task(self._call(job))
            self._calls.add(call)
            call.add_done_callback(self._call_ended)

    async def _call(self, job: Job) -> None:
        inside.set(self)
        try:
            outcome = self._handler(job.item)
            if inspect.isawaitable(outcome):
                await outcome
        except asyncio.CancelledError as e:
            if self._cancelled:
                raise
            await self._failed(job, e)
        except Exception as e:
            await self._failed(job, e)
        else:
            self.handled += 1
            self._succeeded(job)

    def _call_ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if not call.cancelled() and (error := call.exception()) is not None:
            self.stop(error)
        self._begin_calls()
        self._changed.set()

    def _succeeded(self, job: Job) -> None:
        self._schedule.finish(job)
        self._finished.set()

    async def _failed(self, job: Job, error: BaseException) -> None:
        self.failures += 1
        failure, attempt = Failure.of(error), _attempt_of(job)
        log.warning(
            "%s: the handler failed at %s, attempt %d: %s", self._consumer.topic, _name_of(job.item), attempt,
            failure, extra={"topic": self._consumer.topic, "attempt": attempt, "reason": failure.reason},
        )  # fmt: skip
        await self._handle_failure(job, error, failure)

    @abstractmethod
    async def _handle_failure(self, job: Job, error: BaseException, failure: Failure) -> None:
        """The job's next state."""

    def _hold(self, job: Job, delay: float) -> None:
        self._schedule.hold(job, self._loop.time() + delay)
        self._release()

    def _release(self) -> None:
        """Begin held jobs that are due, and look again when the next one is."""
        if self._timer is not None:
            self._timer.cancel()
        due = self._schedule.release(self._loop.time())
        self._timer = None if due is None else self._loop.call_at(due, self._release)
        self._begin_calls()

    # -- acknowledging ---------------------------------------------------------------------------------------

    async def _acknowledge(self) -> None:
        while True:
            await self._finished.wait()
            self._finished.clear()
            if not await self._acknowledge_due():
                self._loop.call_later(RETRY_S, self._finished.set)
            self._changed.set()

    async def _acknowledge_due(self) -> bool:
        """Acknowledge what is finished now. False: not saved, for a reason that may pass."""
        try:
            await self._save()
        except FencedError as e:
            log.warning("%s: %s", self._consumer.topic, e)
        except AlreadyClosedError:
            self.stop()
        except EngineError as e:
            if not e.retryable:
                self.stop(e)
                return True
            log.warning("%s: cannot acknowledge yet: %s", self._consumer.topic, e)
            return False
        return True

    @abstractmethod
    async def _save(self) -> None:
        """Acknowledge what is finished; what fails is acknowledged by the next call."""

    # -- ending ----------------------------------------------------------------------------------------------

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        self.stop()
        goodbye = GOODBYE_S_MAX if self._cancelled else None
        try:
            await _cancel(tasks[0])
            await self._drain()
            await _cancel(tasks[1])
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._acknowledge_due(), goodbye)
            self._leave()
        finally:
            for task in (*tasks, *self._calls):
                task.cancel()
            if self._timer is not None:
                self._timer.cancel()
            self._stopped.exception()  # raised by run(), unless that was cancelled
            if not self.ended.done():
                self.ended.set_result(None)
            await self._consumer.close()

    async def _drain(self) -> None:
        """Await the calls that have begun; cancel those that last longer than `drain_timeout`."""
        if self._calls and not self._cancelled:
            _, late = await asyncio.wait(list(self._calls), timeout=self._terms.drain_timeout)
            if late:
                log.warning("%s: %d calls of the handler did not end within %g s", self._consumer.topic, len(late),
                            self._terms.drain_timeout)  # fmt: skip
        self._cancelled = True
        for call in list(self._calls):
            await _cancel(call)

    def _leave(self) -> None:  # noqa: B027 - not all need it
        """Before the consumer is closed."""


class StreamRun(Run):
    """Tries a failed message again in its place, and acknowledges cumulatively."""

    def __init__(self, consumer: Any, handler: Handler, terms: RunTerms) -> None:
        super().__init__(consumer, handler, terms)
        self._prefix = Prefix()
        self._due: Any = None  # finished up to here, and not acknowledged
        self._letters: dict[str, LetterWriter] = {}

    @property
    def _has_room(self) -> bool:
        ahead = AHEAD_MESSAGES if not self._terms.batch else 2
        return len(self._prefix) < ahead + self._terms.concurrency and self._prefix.size < AHEAD_BYTES

    def _arrived(self, job: Job, place: Hashable) -> None:
        if self._prefix.add(place, job):
            self._schedule.add(job)
        else:
            self._finished.set()  # it may be finished

    async def _handle_failure(self, job: Job, error: BaseException, failure: Failure) -> None:
        terms = self._terms
        if terms.max_attempts is None or job.attempts < terms.max_attempts:
            self._hold(job, terms.backoff.delay(job.attempts - 1))
        elif terms.dead_letter is None:
            error.add_note(f"at {_name_of(job.item)}, after {job.attempts} attempts")
            self.stop(error)
        elif await self._give_up(job, terms.dead_letter, failure):
            self._succeeded(job)

    async def _give_up(self, job: Job, target: TopicName, failure: Failure) -> bool:
        """Publish its messages as dead letters; False: they could not be, and the handler gets them once more."""
        messages = job.item if isinstance(job.item, MessageBatch) else (job.item,)
        try:
            for start in range(0, len(messages), LETTERS_MAX):
                part = messages[start : start + LETTERS_MAX]
                await asyncio.gather(*(self._writer(m.topic, target).publish(m, failure) for m in part))
        except EngineError as e:
            log.warning("%s: %s cannot go to %s yet: %s", self._consumer.topic, _name_of(job.item), target, e)
            self._hold(job, self._terms.backoff.delay(job.attempts - 1))
            return False
        log.warning("%s: %s went to %s", self._consumer.topic, _name_of(job.item), target)
        return True

    def _writer(self, topic: str, target: TopicName) -> LetterWriter:
        writer = self._letters.get(topic)
        if writer is None:
            writer = self._letters[topic] = self._consumer.letter_writer(topic, target)
        return writer

    async def _save(self) -> None:
        newer = self._prefix.advance()
        if newer is not None:
            self._due = newer
        due = self._due
        if due is None:
            return
        try:
            await self._consumer.acknowledge_cumulative(due)
        except FencedError:  # the other segments are saved
            self._due = None
            raise
        self._due = None


class QueueRun(Run):
    """Hands failed messages back with the reason, and acknowledges one by one, several at once."""

    def __init__(self, consumer: Any, handler: Handler, terms: RunTerms) -> None:
        super().__init__(consumer, handler, terms)
        self._done: list[Any] = []

    @property
    def _has_room(self) -> bool:
        """As many wait for their key as run: what is received is kept from other consumers."""
        return self._schedule.unfinished < 2 * self._terms.concurrency

    def _arrived(self, job: Job, place: Hashable) -> None:
        self._schedule.add(job)

    def _succeeded(self, job: Job) -> None:
        self._done.append(job.item)
        super()._succeeded(job)

    async def _handle_failure(self, job: Job, error: BaseException, failure: Failure) -> None:
        try:
            await self._consumer.negative_acknowledge(job.item, reason=error)
        except EngineError as e:
            self.stop(None if isinstance(e, AlreadyClosedError) else e)
        self._schedule.finish(job)

    async def _save(self) -> None:
        done, self._done = self._done, []
        parts = done if self._terms.batch else [done] if done else []
        try:
            while parts:
                await self._consumer.acknowledge(parts[0])
                parts = parts[1:]
        finally:
            self._done = [*(parts if self._terms.batch else parts[0] if parts else []), *self._done]

    def _leave(self) -> None:
        for job in self._schedule.not_begun():
            self._consumer.unsee(job.item)


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end; it handles its own errors."""
    task.cancel()
    await asyncio.wait([task])


def _keys_of(message: Message) -> tuple[Hashable, ...]:
    key = message.key
    return () if key is None else ((message.topic, key),)


def _place_of(message: Message) -> Hashable:
    """What only the same message has; a topic that is created again begins with the same offsets."""
    return message.topic, message.segment_id, message.offset, message.publish_time


def _attempt_of(job: Job) -> int:
    """Calls of a stream's handler are counted here, deliveries of a queue's message by the broker."""
    first: Message = job.item[0] if isinstance(job.item, MessageBatch) else job.item
    return job.attempts + first.redelivery_count


def _name_of(item: Message | MessageBatch) -> str:
    if isinstance(item, MessageBatch):
        return f"a batch of {len(item)} messages of {item.topic}, from {_name_of(item[0])}"
    return f"message {item.segment_id}:{item.offset} of {item.topic}, key {item.key!r:.100}"
