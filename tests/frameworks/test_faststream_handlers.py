"""Handlers without a broker: FastStream's own idioms on TestEngineBroker, and what AsyncAPI says of them."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import pytest
from faststream import AckPolicy, BaseMiddleware, Context, Depends, FastStream, TestApp
from faststream.exceptions import NackMessage, RejectMessage, SetupError
from faststream.specification.asyncapi import AsyncAPI
from faststream_engine import (
    EngineBroker,
    EngineMessage,
    EnginePublisher,
    EngineResponse,
    EngineRoute,
    EngineRouter,
    TestEngineBroker,
)
from faststream_engine.testing import TestMessage
from pydantic import BaseModel, ValidationError

import engine


class Order(BaseModel):
    table: int
    dish: str


class Bill(BaseModel):
    table: int
    euros: float


async def test_a_handler_gets_a_model_and_its_publisher_what_it_returns():
    broker = EngineBroker()

    @broker.subscriber("orders", subscription="kitchen")
    @broker.publisher("bills", key="till")
    async def cook(order: Order) -> Bill:
        return Bill(table=order.table, euros=2.5)

    @broker.subscriber("bills", subscription="till")
    async def pay(bill: Bill, message: EngineMessage) -> None:
        assert (message.key, message.topic, message.redelivery_count) == (b"till", "bills", 0)

    async with TestEngineBroker(broker) as test:
        await test.publish(Order(table=7, dish="espresso"), "orders", headers={"waiter": "Anna"})
        cook.mock.assert_called_once_with({"table": 7, "dish": "espresso"})
        pay.mock.assert_called_once_with({"table": 7, "euros": 2.5})


async def test_what_a_handler_raises_reaches_the_test():
    broker = EngineBroker()

    @broker.subscriber("orders", subscription="kitchen")
    async def cook(order: Order) -> None:
        raise LookupError(order.dish)

    async with TestEngineBroker(broker) as test:
        with pytest.raises(LookupError, match="tea"):
            await test.publish(Order(table=7, dish="tea"), "orders")
        with pytest.raises(ValidationError):
            await test.publish("no order", "orders")


@pytest.mark.parametrize(
    ("policy", "raised", "committed"),
    [
        (AckPolicy.NACK_ON_ERROR, None, "ACKED"),
        (AckPolicy.NACK_ON_ERROR, ValueError, "NACKED"),
        (AckPolicy.REJECT_ON_ERROR, ValueError, "REJECTED"),
        (AckPolicy.ACK, ValueError, "ACKED"),
        (AckPolicy.ACK_FIRST, ValueError, "ACKED"),
        (AckPolicy.ACK, NackMessage, "NACKED"),
        (AckPolicy.ACK, RejectMessage, "REJECTED"),
        (AckPolicy.MANUAL, None, None),
    ],
)
async def test_each_policy_settles_as_faststream_says(policy: AckPolicy, raised: Any, committed: str | None):
    broker, seen = EngineBroker(), []

    @broker.subscriber("jobs", subscription="workers", ack_policy=policy)
    async def work(message: EngineMessage) -> None:
        seen.append(message)
        if raised is not None:
            raise raised

    async with TestEngineBroker(broker) as test:
        try:
            await test.publish(b"job", "jobs")
        except ValueError:
            assert raised is ValueError
    assert [message.committed and message.committed.value for message in seen] == [committed]


async def test_batches_middlewares_dependencies_context_and_filters():
    seen: list[Any] = []

    class Noting(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            seen.append("consume")
            return await call_next(msg)

        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.headers["noted"] = "yes"
            return await call_next(cmd)

    broker = EngineBroker(middlewares=[Noting])
    broker.context.set_global("shop", "bar")

    def doubled(numbers: list[int]) -> list[int]:
        return [2 * n for n in numbers]

    @broker.subscriber("numbers", subscription="sum", kind="stream", batch=True)
    @broker.publisher("each", batch=True)
    async def total(
        numbers: list[int], twice: Annotated[list[int], Depends(doubled)], shop: Annotated[str, Context()]
    ) -> list[int]:
        seen.append((numbers, twice, shop))
        return numbers

    subscriber = broker.subscriber("each", kind="checkpoint")

    @subscriber(filter=lambda message: message.body == b"2")
    async def two(message: EngineMessage) -> None:
        seen.append(("two", message.headers["noted"]))

    @subscriber
    async def other(number: int) -> None:
        seen.append(("other", number))

    async with TestEngineBroker(broker) as test:
        await test.publish_batch(1, EngineResponse(2, key="k"), topic="numbers")
    assert seen == ["consume", ([1, 2], [2, 4], "bar"), "consume", ("other", 1), "consume", ("two", "yes")]


async def test_one_subscription_is_called_once_and_a_request_is_answered():
    broker = EngineBroker()
    calls = []

    @broker.subscriber("jobs", subscription="workers")
    async def first(n: int) -> int:
        calls.append("first")
        return n + 1

    @broker.subscriber("jobs", subscription="workers")
    async def second(n: int) -> int:
        calls.append("first")
        return n + 1

    @broker.subscriber("jobs", subscription="audit", kind="stream", no_reply=True)
    async def third(n: int) -> None:
        calls.append("third")

    async with TestEngineBroker(broker) as test:
        await test.publish(1, "jobs")
        assert sorted(calls) == ["first", "third"]
        answer = await test.request(41, "jobs")
        assert await answer.decode() == 42


async def test_routers_put_their_prefix_before_topics():
    async def cook(order: Order) -> str:
        return order.dish

    router = EngineRouter(
        "bar-",
        handlers=[EngineRoute(cook, "orders", subscription="kitchen", publishers=[EnginePublisher("done")])],
    )

    @router.subscriber("done", subscription="waiter")
    async def serve(dish: str) -> None: ...

    broker = EngineBroker(routers=[router])
    assert sorted(subscriber.topic for subscriber in broker.subscribers) == ["bar-done", "bar-orders"]
    async with TestEngineBroker(broker) as test, TestApp(FastStream(broker)):
        await test.publish(Order(table=1, dish="tea"), "bar-orders")
        serve.mock.assert_called_once_with("tea")
    with pytest.raises(TypeError, match="router must be an EngineRouter, got int"):
        broker.include_router(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "subscription must be a name"),
        ({"kind": "heap", "subscription": "s"}, "kind must be one of queue, stream, checkpoint, got 'heap'"),
        ({"kind": "checkpoint", "subscription": "s"}, "subscription must be left out"),
        ({"kind": "stream", "subscription": "s", "ack_timeout": 1.0}, "ack_timeout must be left out"),
        ({"subscription": "s", "initial_position": engine.Checkpoint.earliest()}, "initial_position must be"),
        ({"subscription": "s", "max_workers": 0}, "max_workers must be an int >= 1, got 0"),
        ({"subscription": "s", "kind": "stream", "batch": True, "max_workers": 2}, "max_workers must be 1 for batches"),
        (
            {"subscription": "s", "kind": "stream", "max_workers": 2, "ack_policy": AckPolicy.MANUAL},
            "max_workers must be 1 with kind='stream' and AckPolicy.MANUAL",
        ),
    ],
)
def test_a_wrong_declaration_is_refused_where_it_stands(options: dict[str, Any], message: str):
    with pytest.raises(SetupError, match=message):
        EngineBroker().subscriber("topic", **options)


def test_a_broker_is_either_served_or_embedded():
    with pytest.raises(SetupError, match="url must be left out"):
        EngineBroker("engine://127.0.0.1", data="./data")
    with pytest.raises(SetupError, match="token must be left out: it is for an engine that is served"):
        EngineBroker(data="./data", token="secret")
    with pytest.raises(SetupError, match="listen must be left out: it is for an embedded engine"):
        EngineBroker("engine://127.0.0.1", listen="127.0.0.1:0")


def official_schema(version: str) -> Any:
    """What AsyncAPI itself says that documents are. `make test` gets it from npm."""
    archives = sorted(Path(sys.prefix, "asyncapi").glob("asyncapi-specs-*.tgz"))
    if not archives:
        pytest.skip("left out for want of the schemas of AsyncAPI, which npm brings")
    with tarfile.open(archives[-1]) as archive:
        file = archive.extractfile(f"package/schemas/{version}-without-$id.json")
        assert file is not None
        return jsonschema.Draft7Validator(json.load(file))


@pytest.mark.parametrize("version", ["2.6.0", "3.0.0"])
def test_the_official_schema_of_asyncapi_refuses_a_document_that_is_none(version: Any):
    document = {"asyncapi": version, "info": {"title": "Bar", "version": 1}, "channels": {}}
    assert ["info", "version"] in [list(e.path) for e in official_schema(version).iter_errors(document)]


@pytest.mark.parametrize("version", ["2.6.0", "3.0.0"])
def test_asyncapi_names_channels_payloads_and_the_server_without_its_token(version: Any):
    broker = EngineBroker("engine://secret-token@broker:6650", description="The bar", tags=[{"name": "bar"}])

    @broker.subscriber("orders", subscription="kitchen", description="What guests want")
    @broker.publisher("bills", title="Bills")
    async def cook(order: Order) -> Bill:
        return Bill(table=order.table, euros=1)

    made = AsyncAPI(broker, title="Bar", schema_version=version).to_specification()
    document = json.loads(made.to_json())
    assert not [f"{list(e.path)}: {e.message}" for e in official_schema(version).iter_errors(document)]
    assert "secret-token" not in made.to_json()
    assert document["asyncapi"] == version
    server = document["servers"]["development"]
    assert (server["protocol"], server["protocolVersion"]) == ("engine", "1")
    assert "broker:6650" in server["url" if version == "2.6.0" else "host"]
    channels = document["channels"]
    assert sorted(channels) == ["Bills", "orders:Cook"]
    assert sorted(document["components"]["schemas"]) == ["Bill", "Order"]
    assert document["components"]["schemas"]["Order"]["properties"]["table"] == {"title": "Table", "type": "integer"}
    if version == "3.0.0":
        assert channels["orders:Cook"]["address"] == "orders"
        assert {each["action"] for each in document["operations"].values()} == {"receive", "send"}
    else:
        assert channels["orders:Cook"]["publish"]["message"]
        assert channels["Bills"]["subscribe"]["message"]


async def test_a_message_of_a_test_says_what_one_of_a_broker_says():
    """Every property that a handler may look at is there."""
    async with (
        engine.open_async(":memory:") as e,
        e.producer("t") as p,
        e.queue_consumer("t", "s", initial_position="earliest") as c,
    ):
        await p.send(b"value", key=b"key", properties={"a": "b"})
        real = await c.receive(timeout=30)
    assert real is not None
    fake = TestMessage(b"value", "t", b"key", {"a": "b"})
    left_out = {"encoded_value", "event_time_ms"}
    names = {name for name in dir(type(real)) if not name.startswith("_")} - left_out
    assert [name for name in sorted(names) if not hasattr(fake, name)] == []
    assert (fake.value, fake.key, fake.properties, fake.size) == (real.value, real.key, real.properties, real.size)
