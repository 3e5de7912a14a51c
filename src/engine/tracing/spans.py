"""The spans, by the conventions of OpenTelemetry for messaging (`messaging.*`), and the context in properties.

| span | kind | when | links |
|---|---|---|---|
| `send TOPIC` | producer | from a send to its receipt; a batch is one | |
| `send (temporary)` | producer | from a reply to its receipt | the span that sent the request |
| `create TOPIC` | producer | a message of send_nowait is taken; its receipt comes with those of others | |
| `receive TOPIC` | client | a receive that got something; a batch is one | the spans that sent |
| `receive (temporary)` | client | a request gets its reply | the span that sent it |
| `process TOPIC` | consumer | the body of a loop over a consumer, or a call of a handler | the spans that sent |
| `ack TOPIC`, `nack TOPIC` | client | an acknowledgement, a negative one | |

The context of a message's `send` or `create` is in its properties (`traceparent`, `tracestate` or what the propagator
of the application writes), unless the application has put one there itself. Messages of a batch have that of its one
span, but for properties that are an Arrow array. A `process` that has no span around it continues the trace of
its message, and a reply that of its request. A topic of replies is a temporary destination: there are many, so their
names are in attributes alone.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from engine.model.reply_topics import CORRELATION_ID, REPLY_TO

SYSTEM = "engine"
LINKS_MAX = 128  # of one span: what exporters keep

TEMPORARY = "messaging.destination.temporary"

Attributes = dict[str, str | int]


@functools.cache
def _version() -> str:
    return version("engine")


def _tracer() -> trace.Tracer:
    return trace.get_tracer("engine", _version())


def begin(operation: str, kind: str, topic: str, **more: Any) -> Span:
    """A span that is not the current one, and that its caller ends. `kind`: of operation, as the conventions name it.

    `more`: `attributes`; `links`: of messages; `parent`: a context.
    """
    attributes: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }
    attributes |= {key: value for key, value in more.get("attributes", {}).items() if value is not None}
    return _tracer().start_span(
        f"{operation} {'(temporary)' if TEMPORARY in attributes else topic}",
        context=more.get("parent"),
        kind={"send": SpanKind.PRODUCER, "create": SpanKind.PRODUCER, "process": SpanKind.CONSUMER}.get(
            kind, SpanKind.CLIENT
        ),
        attributes=attributes,
        links=more.get("links", ()),
    )


def fail(span: Span, error: BaseException) -> None:
    """Note what an operation has raised."""
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, str(error)))


@contextlib.contextmanager
def ended(span: Span) -> Iterator[Span]:
    """End a span with the block, and note what that raises."""
    with going_on(span):
        yield span
    span.end()


@contextlib.contextmanager
def going_on(span: Span) -> Iterator[Span]:
    """End a span if the block, which begins its work, raises; note what that is."""
    try:
        yield span
    except BaseException as e:
        fail(span, e)
        span.end()
        raise


class Current:
    """A span that is the current one until its end, which is in the same task or thread."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._token = context.attach(trace.set_span_in_context(span))

    def end(self) -> None:
        context.detach(self._token)
        self._span.end()


@contextlib.contextmanager
def current(span: Span) -> Iterator[Span]:
    """The span is the current one in the block, and ends with it."""
    entered = Current(span)
    try:
        yield span
    except BaseException as e:
        fail(span, e)
        raise
    finally:
        entered.end()


def inject(span: Span, properties: Mapping[str, str] | None) -> dict[str, str]:
    """Properties with the context of a span, unless they have one."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    return carrier | dict(properties or {})


def context_of(message: Any) -> context.Context:
    """What a message's properties carry."""
    return propagate.extract(message.properties or {})


def links(messages: Iterable[Any]) -> list[Link]:
    """Links to what has sent the messages, each once."""
    found: dict[tuple[int, int], Link] = {}
    for message in messages:
        at = trace.get_current_span(context_of(message)).get_span_context()
        if at.is_valid:
            found.setdefault((at.trace_id, at.span_id), Link(at))
            if len(found) == LINKS_MAX:
                break
    return list(found.values())


def send(topic: str, count: int | None = None, **more: Any) -> Span:
    """The span of sending a message, or a batch of `count`. `more`: `parent`, a context."""
    return begin("send", "send", topic, attributes={"messaging.batch.message_count": count}, **more)


def create(topic: str) -> Span:
    """The span of a message that goes out later, with others."""
    return begin("create", "create", topic)


def note_id(span: Span, message_id: Any) -> None:
    """What the message is called since it is stored."""
    span.set_attribute("messaging.message.id", str(message_id))


def reply(request: Any) -> Span:
    """The span of sending the reply to a request that was received."""
    alone = not trace.get_current_span().get_span_context().is_valid
    return begin(
        "send",
        "send",
        request.properties[REPLY_TO],
        attributes=_of_reply(request),
        links=links([request]),
        parent=context_of(request) if alone else None,
    )


def receive_reply(message: Any) -> Span:
    """The span of getting a reply, which has ended."""
    return begin(
        "receive", "receive", message.topic, attributes=_of_reply(message) | _of([message]), links=links([message])
    )


def _of_reply(message: Any) -> Attributes:
    """`message`: a request or its reply, which have the same id."""
    return {TEMPORARY: True, "messaging.message.conversation_id": message.properties.get(CORRELATION_ID)}


def receive(messages: list[Any], about: Attributes) -> Span:
    """The span of a receive, which has ended."""
    return begin("receive", "receive", messages[0].topic, attributes=about | _of(messages), links=links(messages))


def process(messages: list[Any], about: Attributes) -> Span:
    """The span of handling a message, or a batch."""
    alone = len(messages) == 1 and not trace.get_current_span().get_span_context().is_valid
    return begin(
        "process",
        "process",
        messages[0].topic,
        attributes=about | _of(messages),
        links=links(messages),
        parent=context_of(messages[0]) if alone else None,
    )


def _of(messages: list[Any]) -> Attributes:
    if len(messages) > 1:
        return {"messaging.batch.message_count": len(messages)}
    return {"messaging.message.id": str(messages[0].id), "messaging.message.body.size": len(messages[0].encoded_value)}
