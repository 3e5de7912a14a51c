"""Producers and consumers that make spans: subclasses of the plain classes, made when they are needed.

They have no state of their own, so that an object of the plain class can become one of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from opentelemetry import context
from opentelemetry.trace import Span

from engine.model.reply_topics import REPLY_TO
from engine.tracing import spans
from engine.tracing.spans import Attributes


def wrap(made: Any) -> None:
    """Have an object make spans from now on, if it is a producer or a consumer."""
    plain: Any = type(made)
    if hasattr(plain, "send_nowait") or hasattr(plain, "receive_batch"):
        vars(made).pop("send_nowait", None)  # the native method, for which the class has one of its own
        made.__class__ = _class(plain)


@functools.cache
def _class(plain: Any) -> type:
    awaited = inspect.iscoroutinefunction(plain.close)
    if hasattr(plain, "send_nowait"):
        made = _awaited_producer(plain) if awaited else _blocking_producer(plain)
    else:
        made = _awaited_consumer(plain) if awaited else _blocking_consumer(plain)
    made.__name__, made.__qualname__, made.__module__ = plain.__name__, plain.__qualname__, plain.__module__
    made.__doc__ = plain.__doc__
    return made


# -- producers ---------------------------------------------------------------------------------------------------------


def _blocking_producer(plain: Any) -> type:
    class Traced(plain):  # type: ignore[misc]
        __slots__ = ()

        def send(self, value: Any, *, properties: Any = None, **options: Any) -> Any:
            with spans.ended(spans.send(self.topic)) as span:
                found = super().send(value, properties=spans.inject(span, properties), **options)
                spans.note_id(span, found)
                return found

        def request(self, value: Any, **options: Any) -> Any:
            asked = type(self._producer).request(_Sending(self._producer), value, **options)
            return _replied(self._portal.run(asked))

        def submit(self, value: Any, *, properties: Any = None, **options: Any) -> Any:
            return _submitted(self, super().submit, value, properties, options)

        def send_nowait(self, value: Any, *, properties: Any = None, **options: Any) -> None:
            with spans.ended(spans.create(self.topic)) as span:
                super().send_nowait(value, properties=spans.inject(span, properties), **options)

        def send_batch(self, values: Any, keys: Any = None, *, properties: Any = None, **options: Any) -> None:
            with spans.ended(spans.send(self.topic, _count(values))) as span:
                properties = _each_with_context(span, properties, values)
                super().send_batch(values, keys, properties=properties, **options)

        def send_table(self, table: Any, **options: Any) -> None:
            with spans.ended(spans.send(self.topic, _count(table))):
                super().send_table(table, **options)

    return Traced


def _awaited_producer(plain: Any) -> type:
    class Traced(plain):  # type: ignore[misc]
        __slots__ = ()

        def send(self, value: Any, *, properties: Any = None, **options: Any) -> Any:
            with spans.going_on(spans.send(self.topic)) as span:
                sent = super().send(value, properties=spans.inject(span, properties), **options)
            return _begun(self, _until(sent, span, functools.partial(spans.note_id, span)))

        async def request(self, value: Any, **options: Any) -> Any:
            return _replied(await super().request(value, **options))  # which calls send()

        def submit(self, value: Any, *, properties: Any = None, **options: Any) -> Any:
            return _submitted(self, super().submit, value, properties, options)

        def send_nowait(self, value: Any, *, properties: Any = None, **options: Any) -> None:
            with spans.ended(spans.create(self.topic)) as span:
                super().send_nowait(value, properties=spans.inject(span, properties), **options)

        def send_batch(self, values: Any, keys: Any = None, *, properties: Any = None, **options: Any) -> Any:
            with spans.going_on(spans.send(self.topic, _count(values))) as span:
                properties = _each_with_context(span, properties, values)
                sent = super().send_batch(values, keys, properties=properties, **options)
            return _begun(self, _until(sent, span))

        def send_table(self, table: Any, **options: Any) -> Any:
            with spans.going_on(spans.send(self.topic, _count(table))) as span:
                sent = super().send_table(table, **options)
            return _begun(self, _until(sent, span))

    return Traced


class _Sending:
    """The producer behind a blocking one, for a request: its send makes a span, in the context of the request."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._context = context.get_current()  # of the caller's thread

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def send(self, value: Any, *, properties: Any, **options: Any) -> Any:
        with spans.going_on(spans.send(self._producer.topic, parent=self._context)) as span:
            sent = self._producer.send(value, properties=spans.inject(span, properties), **options)
        return _until(sent, span, functools.partial(spans.note_id, span))


def _replied(message: Any) -> Any:
    """The reply that a request got."""
    spans.receive_reply(message).end()
    return message


def _begun(made: Any, work: Any) -> Any:
    """Work that goes on whether what this gives is awaited or not, as the plain methods' does."""
    return made._starting.call(lambda: work)


async def _until(operation: Any, span: Span, note: Callable[[Any], None] = lambda _: None) -> Any:
    """What an operation that has begun gives; the span ends with it."""
    with spans.ended(span):
        found = await operation
        note(found)
        return found


def _submitted(producer: Any, submit: Callable[..., Any], value: Any, properties: Any, options: Any) -> Any:
    span = spans.send(producer.topic)
    try:
        future = submit(value, properties=spans.inject(span, properties), **options)
    except BaseException as e:
        spans.fail(span, e)
        span.end()
        raise
    future.add_done_callback(functools.partial(_end, span))
    return future


def _end(span: Span, future: Any) -> None:
    if not future.cancelled():
        error = future.exception()
        if error is None:
            spans.note_id(span, future.result())
        else:
            spans.fail(span, error)
    span.end()


def _count(values: Any) -> int | None:
    try:
        return len(values)
    except TypeError:
        return None


def _each_with_context(span: Span, properties: Any, values: Any) -> Any:
    """The properties of a batch, with the context of its span; those of an Arrow array stay as they are."""
    count = _count(values)
    if properties is None and count is not None:
        return [spans.inject(span, None)] * count
    if isinstance(properties, list):
        return [spans.inject(span, each) for each in properties]
    return properties


# -- consumers ---------------------------------------------------------------------------------------------------------


def _blocking_consumer(plain: Any) -> type:
    class Traced(plain):  # type: ignore[misc]
        __slots__ = ()

        def receive(self, timeout: float | None = None) -> Any:
            return _received(self, super().receive(timeout))

        def receive_batch(self, *args: Any, **options: Any) -> Any:
            return _received(self, super().receive_batch(*args, **options))

        def __iter__(self) -> Iterator[Any]:
            return _Loop(super().__iter__(), _subscription(self))

        def run(self, handler: Callable[[Any], Any], **options: Any) -> None:
            super().run(_handled(self, handler), **options)

        def reply(self, message: Any, value: Any, *, properties: Any = None) -> Any:
            if not _is_request(message):
                return super().reply(message, value, properties=properties)  # it raises
            with spans.ended(spans.reply(message)) as span:
                found = super().reply(message, value, properties=spans.inject(span, properties))
                spans.note_id(span, found)
                return found

        def acknowledge(self, *args: Any, **options: Any) -> None:
            with spans.ended(_settle(self, "ack")):
                super().acknowledge(*args, **options)

        def acknowledge_cumulative(self, *args: Any, **options: Any) -> None:
            with spans.ended(_settle(self, "ack")):
                super().acknowledge_cumulative(*args, **options)

        def negative_acknowledge(self, *args: Any, **options: Any) -> None:
            with spans.ended(_settle(self, "nack")):
                super().negative_acknowledge(*args, **options)

    return Traced


def _awaited_consumer(plain: Any) -> type:
    class Traced(plain):  # type: ignore[misc]
        __slots__ = ()

        async def receive(self, timeout: float | None = None) -> Any:
            return _received(self, await super().receive(timeout))

        async def receive_batch(self, *args: Any, **options: Any) -> Any:
            return _received(self, await super().receive_batch(*args, **options))

        def __aiter__(self) -> AsyncIterator[Any]:
            return _AwaitedLoop(super().__aiter__(), _subscription(self))

        async def run(self, handler: Callable[[Any], Any], **options: Any) -> None:
            await super().run(_handled(self, handler), **options)

        async def reply(self, message: Any, value: Any, *, properties: Any = None) -> Any:
            if not _is_request(message):
                return await super().reply(message, value, properties=properties)  # it raises
            with spans.ended(spans.reply(message)) as span:
                found = await super().reply(message, value, properties=spans.inject(span, properties))
                spans.note_id(span, found)
                return found

        def acknowledge(self, *args: Any, **options: Any) -> Any:
            return _begun(self, _until(super().acknowledge(*args, **options), _settle(self, "ack")))

        def acknowledge_cumulative(self, *args: Any, **options: Any) -> Any:
            return _begun(self, _until(super().acknowledge_cumulative(*args, **options), _settle(self, "ack")))

        def negative_acknowledge(self, *args: Any, **options: Any) -> Any:
            return _begun(self, _until(super().negative_acknowledge(*args, **options), _settle(self, "nack")))

    return Traced


class _Body:
    """The span of the body of a loop: it ends when the next message is asked for, and when the loop is left.

    A loop that is left drops its iterator at once, in its own context; a generator would be closed later, in another.
    """

    def __init__(self, messages: Any, about: Attributes) -> None:
        self._messages = messages
        self._about = about
        self._span: spans.Current | None = None

    def _enter(self, message: Any) -> Any:
        self._span = spans.Current(spans.process([message], self._about))
        return message

    def _leave(self) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.end()

    def __del__(self) -> None:
        self._leave()


class _Loop(_Body):
    def __iter__(self) -> _Loop:
        return self

    def __next__(self) -> Any:
        self._leave()
        return self._enter(next(self._messages))


class _AwaitedLoop(_Body):
    def __aiter__(self) -> _AwaitedLoop:
        return self

    async def __anext__(self) -> Any:
        self._leave()
        return self._enter(await anext(self._messages))


def _is_request(message: Any) -> bool:
    return REPLY_TO in getattr(message, "properties", ())


def _subscription(consumer: Any) -> Attributes:
    name = getattr(consumer, "subscription", None)
    return {} if name is None else {"messaging.destination.subscription.name": name}


def _received(consumer: Any, found: Any) -> Any:
    """What a receive gives. Only one that got something is worth a span."""
    many = hasattr(found, "__len__")
    if found is not None and (not many or len(found)):
        spans.receive(list(found) if many else [found], _subscription(consumer)).end()
    return found


def _settle(consumer: Any, operation: str) -> Span:
    return spans.begin(operation, "settle", consumer.topic, attributes=_subscription(consumer))


def _handled(consumer: Any, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A handler of run() in a span."""

    def begin(work: Any) -> Span:
        return spans.process(list(work) if hasattr(work, "__len__") else [work], _subscription(consumer))

    @functools.wraps(handler)
    async def awaited(work: Any) -> Any:
        with spans.current(begin(work)):
            return await handler(work)

    @functools.wraps(handler)
    def plain(work: Any) -> Any:
        with spans.current(begin(work)):
            return handler(work)

    return awaited if inspect.iscoroutinefunction(handler) else plain
