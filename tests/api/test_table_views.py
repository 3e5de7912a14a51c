"""Table views: the latest value of each key, as a dict would have it, across changes of shape and lost brokers."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import engine
from tests.chaos.server import Server

WAIT_S = 60.0


@dataclass
class Price:
    cents: int


async def test_it_is_what_a_dict_would_be(client: engine.AsyncClient):
    model: dict[bytes, bytes] = {}
    rng = random.Random(1)
    async with client.producer("t") as p:

        async def change(count: int) -> None:
            for _ in range(count):
                key, value = b"k%d" % rng.randrange(30), rng.choice([b"", b"%d" % rng.randrange(1000)])
                p.send_nowait(value, key=key)
                model.pop(key, None)
                model.update({key: value} if value else {})
            p.send_nowait(b"keyless")
            await p.flush()

        await change(200)
        async with client.table_view("t") as view:
            assert dict(view.items()) == model
            for step in range(4):
                if step == 1:
                    await client.admin.split_segment("t", 0)
                if step == 2:
                    await client.admin.merge_segments("t", 1, 2)
                await change(100)
                await view.refresh(WAIT_S)
                assert dict(zip(view.keys(), view.values(), strict=True)) == model
                assert (len(view), set(view)) == (len(model), set(model))
            found = view.statistics()
            assert (found.keys, found.messages, found.keyless) == (len(model), 605, 5)
            assert found.bytes == sum(len(k) + len(v) + 120 for k, v in model.items())
            key = next(iter(model))
            assert view[key] == view[key.decode()] == view.get(key) == model[key]
            assert key in view
            assert "nothing" not in view
            assert 7 not in view
            assert view.get("nothing") is None
            assert view.get("nothing", b"x") == b"x"
            with pytest.raises(KeyError):
                view["nothing"]
            with pytest.raises(engine.InvalidArgumentError, match="must be bytes or text"):
                view[7]  # type: ignore[index]
    with pytest.raises(engine.AlreadyClosedError):
        view.get("k")
    with pytest.raises(engine.AlreadyClosedError):
        await view.refresh()


async def test_transactions_count_when_they_are_committed(client: engine.AsyncClient):
    async with client.producer("t") as p, client.table_view("t") as view:
        await p.send(b"before", key="k")
        transaction = await client.transaction()
        await p.send(b"inside", key="k", transaction=transaction)
        await view.refresh(WAIT_S)
        assert view["k"] == b"before"
        await transaction.commit()
        assert await view.wait(lambda v: v.get("k") == b"inside", WAIT_S)
        async with client.transaction() as transaction:
            await p.send(b"aborted", key="k", transaction=transaction)
            await transaction.abort()
        await view.refresh(WAIT_S)  # what was aborted is the last of its segment
        assert view["k"] == b"inside"


async def test_listeners_hear_the_last_of_each_key(client: engine.AsyncClient, caplog: pytest.LogCaptureFixture):
    async with client.producer("t") as p, client.table_view("t", schema=str) as view:
        heard: list[Any] = []

        def fail(key: bytes, value: Any) -> None:
            raise ValueError(key)

        await p.send(b"one", key="a")
        await view.refresh(WAIT_S)
        stop = view.listen(lambda *change: heard.append(change), existing=True)
        view.listen(fail)
        assert heard == [(b"a", "one")]
        p.send_nowait(b"two", key="a")
        p.send_nowait(b"three", key="a")
        await p.send(b"", key="a")
        await view.refresh(WAIT_S)
        assert heard[-1] == (b"a", None)
        assert "a listener of the table view failed" in caplog.text
        stop()
        stop()
        before = len(heard)
        await p.send(b"\xff", key="bad")
        await view.refresh(WAIT_S)
        assert len(heard) == before
        with pytest.raises(engine.SchemaError):
            view["bad"]
        with pytest.raises(engine.InvalidArgumentError):
            view.listen(None)  # type: ignore[arg-type]
        assert not await view.wait(lambda v: "never" in v, timeout=0.01)


async def test_values_of_schemas(client: engine.AsyncClient):
    for name, schema in [("json", engine.Schema.json(Price)), ("avro", engine.Schema.avro(Price))]:
        async with client.producer(name, schema=schema) as p, client.table_view(name, schema=schema) as view:
            await p.send(Price(5), key="k")
            await view.refresh(WAIT_S)
            assert view["k"] == Price(5)


async def test_limits_and_topics_that_are_not_there(client: engine.AsyncClient):
    async with client.producer("t") as p:
        for n in range(10):
            p.send_nowait(b"x" * 100, key=f"k{n}")
        await p.flush()
    with pytest.raises(engine.MemoryLimitError, match="over its max_bytes of 1,000"):
        await client.table_view("t", max_bytes=1000)
    view = await client.table_view("t", max_bytes=10_000)
    with pytest.raises(engine.NotFoundError):
        await client.table_view("missing", create=False)
    with pytest.raises(engine.InvalidArgumentError):
        await client.table_view("t", max_bytes=0)
    assert len(await client.table_view("new")) == 0
    await client.admin.delete_topic("t")
    with pytest.raises(engine.NotFoundError):
        await view.wait(lambda v: False, WAIT_S)
    with pytest.raises(engine.NotFoundError):
        view.get("k1")


async def test_a_view_that_is_given_up_with_its_client(client: engine.AsyncClient):
    view = await client.table_view("t")
    waiting = asyncio.ensure_future(view.wait(lambda v: False))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(engine.AlreadyClosedError):
        await waiting
    assert view.closed


def test_the_blocking_form(blocking: engine.Client):
    with blocking.producer("t") as p, blocking.table_view("t") as view:
        assert isinstance(view, Mapping)
        p.send(b"v", key="k")
        view.refresh(WAIT_S)
        assert (view["k"], dict(view), list(view.values())) == (b"v", {b"k": b"v"}, [b"v"])
        assert view.keys() == {b"k"}
        assert view.items() == {(b"k", b"v")}
        came = threading.Event()
        stop = view.listen(lambda key, value: came.set())
        later = threading.Timer(0.01, lambda: p.send(b"w", key="k"))
        later.start()
        assert view.wait(lambda v: v["k"] == b"w", WAIT_S)
        assert came.wait(WAIT_S)
        stop()
        later.join()
        with pytest.raises(engine.InvalidArgumentError):
            view.refresh(-1)
        assert repr(view).startswith("<TableView of topic://public/default/t: 1 keys")
        assert (view.statistics().keys, view.topic) == (1, "topic://public/default/t")
    assert view.closed


async def test_the_broker_is_killed_while_it_is_followed(tmp_path: Path):
    server = Server(tmp_path / "data")
    await server.start()
    async with engine.AsyncClient(server.url) as client:  # noqa: SIM117
        async with client.producer("t", name="p") as p, client.table_view("t") as view:
            model = {}
            for round_ in range(2):
                for n in range(12):
                    key, value = b"k%d" % (n % 7), b"%d.%d" % (round_, n)
                    await p.send(value, key=key)
                    model[key] = value
                await view.refresh(WAIT_S)
                assert dict(view.items()) == model
                await server.kill()
                await server.start()
            await view.refresh(WAIT_S)
            assert dict(view.items()) == model
    await server.close()
