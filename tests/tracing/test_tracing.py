"""Tracing with the real OpenTelemetry: which spans there are, what links them, and what a collector receives."""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import engine
from engine.tracing import TraceIds

TOPIC = "topic://public/default/orders"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    """The program's provider of traces, for one test."""
    made = TracerProvider()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", made)
    return made


@pytest.fixture
def spans(provider: TracerProvider) -> Iterator[InMemorySpanExporter]:
    """Finished spans."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield exporter
    assert not trace.get_current_span().get_span_context().is_valid, "no span is left behind as the current one"


def named(exporter: InMemorySpanExporter, operation: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == f"{operation} {TOPIC}"]


def ids(found: list[ReadableSpan]) -> list[int]:
    return [span.context.span_id for span in found]


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def attribute(span: ReadableSpan, name: str) -> Any:
    assert span.attributes is not None
    return span.attributes.get(f"messaging.{name}")


def test_a_trace_goes_on_from_send_to_the_body_of_the_loop_that_reads(tmp_path: Path, spans: InMemorySpanExporter):
    tracer = trace.get_tracer("program")
    with engine.open(tmp_path) as e:
        with e.producer("orders") as producer, tracer.start_as_current_span("order"):
            producer.send(b"espresso", key="table-7")
        with e.stream_consumer("orders", "kitchen", initial_position="earliest") as kitchen:
            for message in kitchen:
                with tracer.start_as_current_span("make"):
                    kitchen.acknowledge_cumulative(message)
                break
    by_name = {span.name: span for span in spans.get_finished_spans()}
    (sent,), (received,), (process,), (ack,) = (named(spans, name) for name in ("send", "receive", "process", "ack"))
    parents = {span.name: span.parent.span_id for span in by_name.values() if span.parent is not None}
    assert parents == {
        sent.name: by_name["order"].context.span_id,
        process.name: sent.context.span_id,
        "make": process.context.span_id,
        ack.name: by_name["make"].context.span_id,
    }
    assert len({span.context.trace_id for span in by_name.values()} - {received.context.trace_id}) == 1
    assert linked(received) == linked(process) == [sent.context.span_id]
    kinds = [span.kind.name for span in (sent, received, process, ack)]
    assert kinds == ["PRODUCER", "CLIENT", "CONSUMER", "CLIENT"]
    assert [attribute(span, "operation.type") for span in (sent, received, process, ack)] == [
        "send", "receive", "process", "settle",
    ]  # fmt: skip
    assert {attribute(span, "system") for span in (sent, received, process, ack)} == {"engine"}
    assert attribute(process, "destination.subscription.name") == "kitchen"
    assert attribute(sent, "message.id") == attribute(process, "message.id")
    assert attribute(process, "message.body.size") == len(b"espresso")


def test_what_is_sent_together_is_one_span(tmp_path: Path, spans: InMemorySpanExporter):
    with engine.open(tmp_path) as e:
        with e.producer("orders") as producer:
            producer.send_batch([b"1", b"2", b"3"], properties=[{"n": "1"}, None, {}])
            producer.send_nowait(b"4")
            producer.submit(b"5").result()
            producer.flush()
        with e.queue_consumer("orders", "waiters", initial_position="earliest") as waiters:
            batches = []
            while sum(map(len, batches)) < 5:
                batches.append(waiters.receive_batch(timeout=30))
                waiters.acknowledge(batches[-1])
            assert batches[0][0].properties["n"] == "1"
    batch_span, alone = named(spans, "send")
    (created,), received = named(spans, "create"), named(spans, "receive")
    assert attribute(batch_span, "batch.message_count") == 3
    assert [attribute(span, "batch.message_count") or 1 for span in received] == [len(batch) for batch in batches]
    assert {link for span in received for link in linked(span)} == set(ids([batch_span, created, alone]))


def test_what_fails_is_in_its_span(tmp_path: Path, spans: InMemorySpanExporter):
    with engine.open(tmp_path) as e, e.producer("orders") as producer:
        for fails in (lambda: producer.send(bytes(10_000_000)), lambda: producer.submit(bytes(10_000_000))):
            with pytest.raises(engine.MessageTooLargeError):
                fails()
    failed = named(spans, "send")
    assert len(failed) == 2
    assert {span.status.status_code.name for span in failed} == {"ERROR"}
    assert {span.attributes["error.type"] for span in failed if span.attributes} == {"MessageTooLargeError"}


def test_a_context_that_the_program_has_set_stays(tmp_path: Path, spans: InMemorySpanExporter):
    mine = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with engine.open(tmp_path) as e:
        with e.producer("orders") as producer:
            producer.send(b"x", properties={"traceparent": mine})
        with e.stream_consumer("orders", "kitchen", initial_position="earliest") as kitchen:
            assert kitchen.receive().properties["traceparent"] == mine
    assert linked(named(spans, "receive")[0]) == [0xB7AD6B7169203331]


def test_nothing_else_is_changed(tmp_path: Path, spans: InMemorySpanExporter):
    with engine.open(tmp_path) as e:
        with e.producer("orders") as producer, e.transaction() as transaction:
            producer.send(b"x", transaction=transaction)
        assert type(transaction) is engine.Transaction
        assert type(e.admin) is engine.Admin
        assert e.table("orders").num_rows == 1
    assert [span.name for span in spans.get_finished_spans()] == [f"send {TOPIC}"]


def check_request(exporter: InMemorySpanExporter, asked: int) -> None:
    """One request and its reply are one trace, `asked` the span around the request."""
    by_name = {span.name: span for span in exporter.get_finished_spans()}
    sent, process = by_name[f"send {TOPIC}"], by_name[f"process {TOPIC}"]
    replied, received = by_name["send (temporary)"], by_name["receive (temporary)"]
    assert {span.name: span.parent.span_id for span in by_name.values() if span.parent is not None} == {
        sent.name: asked,
        process.name: sent.context.span_id,
        replied.name: process.context.span_id,
        received.name: asked,
    } | {name: process.context.span_id for name in by_name if name.startswith("ack ")}
    assert (linked(process), linked(replied)) == ([sent.context.span_id], [sent.context.span_id])
    assert linked(received) == [replied.context.span_id]
    assert [span.kind.name for span in (sent, replied, received)] == ["PRODUCER", "PRODUCER", "CLIENT"]
    assert [attribute(span, "operation.type") for span in (sent, replied, received)] == ["send", "send", "receive"]
    assert attribute(sent, "message.id") == attribute(process, "message.id")
    assert attribute(replied, "message.id") == attribute(received, "message.id")
    assert attribute(replied, "destination.name") == attribute(received, "destination.name")
    assert attribute(replied, "destination.name").startswith("topic://public/default/replies-")
    assert attribute(replied, "destination.temporary") is attribute(received, "destination.temporary") is True
    assert attribute(replied, "message.conversation_id") == attribute(received, "message.conversation_id") == "7"


def test_a_request_and_its_reply(tmp_path: Path, spans: InMemorySpanExporter):
    with engine.open(tmp_path) as e, e.queue_consumer("orders", "waiters") as waiters, e.producer("orders") as producer:

        def serve() -> None:
            for message in waiters:
                waiters.reply(message, message.value + b"!")
                waiters.acknowledge(message)
                break

        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            serving = threads.submit(serve)
            with trace.get_tracer("program").start_as_current_span("order") as order:
                assert producer.request(b"espresso", properties={"correlation_id": "7"}).value == b"espresso!"
            serving.result()
    check_request(spans, order.get_span_context().span_id)


async def test_a_request_and_its_reply_asynchronously(tmp_path: Path, spans: InMemorySpanExporter):
    async with (
        engine.open_async(tmp_path) as e,
        e.queue_consumer("orders", "waiters") as waiters,
        e.producer("orders") as producer,
    ):

        async def serve() -> None:
            async for message in waiters:
                await waiters.reply(message, message.value + b"!")
                await waiters.acknowledge(message)
                break

        serving = asyncio.create_task(serve())
        with trace.get_tracer("program").start_as_current_span("order") as order:
            reply = await producer.request(b"espresso", properties={"correlation_id": "7"})
            assert reply.value == b"espresso!"
        await serving
    check_request(spans, order.get_span_context().span_id)


def test_a_reply_with_no_span_around_it_continues_the_trace_of_its_request(tmp_path: Path, spans: InMemorySpanExporter):
    with engine.open(tmp_path) as e, e.queue_consumer("orders", "waiters") as waiters, e.producer("orders") as producer:

        def serve() -> None:
            request = waiters.receive()
            waiters.reply(request, b"!")
            for wrong in ("no message", None):
                with pytest.raises(engine.InvalidArgumentError, match=r"must be an engine\.Message"):
                    waiters.reply(wrong, b"!")  # type: ignore[arg-type]

        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            serving = threads.submit(serve)
            producer.request(b"espresso")
            serving.result()
    (sent,) = named(spans, "send")
    (replied,) = (span for span in spans.get_finished_spans() if span.name == "send (temporary)")
    assert replied.parent is not None
    assert replied.parent.span_id == sent.context.span_id


def test_a_request_that_fails_is_in_its_span(tmp_path: Path, spans: InMemorySpanExporter):
    with engine.open(tmp_path) as e, e.producer("orders") as producer, pytest.raises(engine.MessageTooLargeError):
        producer.request(bytes(10_000_000))
    (failed,) = spans.get_finished_spans()
    assert (failed.name, failed.status.status_code.name) == (f"send {TOPIC}", "ERROR")


async def test_asynchronous_programs(tmp_path: Path, spans: InMemorySpanExporter):
    tracer = trace.get_tracer("program")
    async with engine.open_async(tmp_path) as e:
        async with e.producer("orders") as producer:
            await asyncio.gather(*(producer.send(b"%d" % n) for n in range(3)))
            await producer.send_batch([b"3"])
            producer.send_nowait(b"4")
            await producer.submit(b"5")
            await producer.flush()
        async with e.queue_consumer("orders", "waiters", initial_position="earliest") as waiters:
            async for message in waiters:
                with tracer.start_as_current_span("serve"):
                    await waiters.acknowledge(message)
                break
            assert not trace.get_current_span().get_span_context().is_valid, "the loop was left"
            await waiters.negative_acknowledge(await waiters.receive())
        seen: list[Any] = []
        async with e.queue_consumer("orders", "others", initial_position="earliest") as others:

            async def handle(message: engine.Message[bytes]) -> None:
                seen.append(trace.get_current_span().get_span_context().span_id)
                if len(seen) == 6:
                    await others.close()

            await others.run(handle)
    assert len(named(spans, "send")) == 5
    assert len(named(spans, "nack")) == 1
    handled = [s for s in named(spans, "process") if attribute(s, "destination.subscription.name") == "others"]
    assert ids(handled) == seen
    assert {tuple(linked(span)) for span in handled} == {
        (span,) for span in ids(named(spans, "send") + named(spans, "create"))
    }


async def test_a_send_that_is_refused_before_it_begins_ends_its_span(tmp_path: Path, spans: InMemorySpanExporter):
    wrong: Any = 5
    async with engine.open_async(tmp_path) as e, e.producer("orders") as producer:
        for send in (producer.send, producer.send_batch):
            with pytest.raises((TypeError, engine.InvalidArgumentError)):
                await send([b"x"] if send == producer.send_batch else b"x", properties=wrong)
    found = named(spans, "send")
    assert [span.status.status_code.name for span in found] == ["ERROR"] * 2


async def test_a_send_that_the_program_gives_up_ends_its_span(tmp_path: Path, spans: InMemorySpanExporter):
    async with engine.open_async(tmp_path) as e, e.producer("orders") as producer:
        producer.submit(b"1").cancel()
        await producer.flush()
    (given_up,) = named(spans, "send")
    assert given_up.status.status_code.name == "UNSET"
    assert attribute(given_up, "message.id") is None


def test_handlers_on_threads(tmp_path: Path, spans: InMemorySpanExporter):
    with engine.open(tmp_path) as e:
        with e.producer("orders") as producer:
            producer.send_batch([b"%d" % n for n in range(8)], keys=[f"k{n}" for n in range(8)])
            producer.flush()
        with e.stream_consumer("orders", "kitchen", initial_position="earliest") as kitchen:
            seen: list[int] = []

            def handle(message: engine.Message[bytes]) -> None:
                seen.append(trace.get_current_span().get_span_context().span_id)
                if len(seen) == 8:
                    kitchen.close()

            kitchen.run(handle, concurrency=2)
    assert sorted(ids(named(spans, "process"))) == sorted(seen)


def test_a_collector_receives_the_spans(tmp_path: Path, provider: TracerProvider):
    received: list[Any] = []

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
            received.extend(s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        exporter = OTLPSpanExporter(endpoint=f"127.0.0.1:{port}", insecure=True)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        with engine.open(tmp_path) as e, e.producer("orders") as producer:
            producer.send(b"x")
        provider.shutdown()
    finally:
        server.stop(None).wait()
    assert [span.name for span in received] == [f"send {TOPIC}"]


def test_lines_of_a_log_carry_their_trace(tmp_path: Path, spans: InMemorySpanExporter):
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.addFilter(TraceIds())
    handler.setFormatter(logging.Formatter("%(trace_id)s %(span_id)s %(message)s"))
    log = logging.getLogger("tests.tracing")
    log.addHandler(handler)
    try:
        with trace.get_tracer("program").start_as_current_span("work") as span:
            log.warning("inside")
        log.warning("outside")
    finally:
        log.removeHandler(handler)
    at = span.get_span_context()
    assert out.getvalue() == f"{at.trace_id:032x} {at.span_id:016x} inside\n  outside\n"


def test_without_a_provider_nothing_is_loaded_and_the_classes_are_the_plain_ones(tmp_path: Path):
    """Also where the API is loaded: only a provider that the program has set makes spans."""
    program = f"""
import sys, engine
with engine.open({str(tmp_path)!r}) as e:
    assert type(e.producer("t")) is engine.Producer
    assert not [m for m in sys.modules if m.startswith(("opentelemetry", "engine.tracing"))]
    import opentelemetry.trace
    assert type(e.producer("t")) is engine.Producer
    assert "engine.tracing.spans" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
