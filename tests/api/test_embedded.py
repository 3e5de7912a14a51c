"""An embedded engine that serves others at the same time, and the front door."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import engine


async def test_inside_and_outside_at_the_same_time(tmp_path: Path):
    async with engine.open_async(tmp_path / "data", listen="127.0.0.1:0", admin=("127.0.0.1", 0)) as inside:
        assert inside.service_url.startswith("engine://127.0.0.1:")
        async with engine.AsyncClient(inside.service_url) as outside:
            consumer = await inside.stream_consumer("t", "s")
            async with await outside.producer("t") as producer:
                sent = await producer.send(b"x")
            message = await consumer.receive(timeout=10)
            assert message is not None
            assert message.id == sent
            assert await outside.admin.list_topics() == await inside.admin.list_topics()


async def test_await_instead_of_with(tmp_path: Path):
    inside = await engine.open_async(str(tmp_path / "data"))
    assert inside.service_url == f"engine+unix://{tmp_path}/data/engine.sock"
    await inside.close()
    await inside.close()
    with pytest.raises(engine.AlreadyClosedError):
        await inside.producer("t")


async def test_clients_outlive_a_restart_of_the_broker(tmp_path: Path):
    """Nothing acknowledged is lost, nothing is sent twice, nobody sees an error."""
    served = await engine.open_async(tmp_path / "data", listen="127.0.0.1:0")
    port = served.service_url.rpartition(":")[2]
    async with engine.AsyncClient(served.service_url) as client:
        producer = await client.producer("t", name="p")
        consumer = await client.stream_consumer("t", "s", initial_position="earliest")
        first = await producer.send(b"0")
        await consumer.acknowledge_cumulative(first)
        await served.close()
        sends = [asyncio.ensure_future(producer.send(b"%d" % n)) for n in range(1, 20)]
        await asyncio.sleep(0.05)
        served = await engine.open_async(tmp_path / "data", listen=f"127.0.0.1:{port}")
        ids = await asyncio.gather(*sends)
        assert [i.offset for i in ids] == list(range(1, 20))
        seen: list[int] = []
        while 19 not in seen:
            batch = await consumer.receive_batch(timeout=10)
            assert len(batch)
            seen += [int(m.value) for m in batch]
        assert sorted(set(seen) | {0}) == list(range(20))
    await served.close()


async def test_an_address_that_is_taken(tmp_path: Path):
    async with engine.open_async(tmp_path / "a", listen="127.0.0.1:0") as one:
        with pytest.raises(engine.ConnectError):
            await engine.open_async(tmp_path / "b", listen=one.service_url)
        with pytest.raises(engine.InvalidArgumentError):
            await engine.open_async(tmp_path / "b", listen="nonsense:port")
        async with engine.open_async(tmp_path / "b"):
            pass  # the directory was let go


def test_the_front_door_is_lazy_and_complete():
    script = "import sys, engine; print(sorted(m for m in sys.modules if m.startswith('engine')))"
    out = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "['engine', 'engine.lazy']"
    for name in engine.__all__:
        assert getattr(engine, name) is not None
        assert name in dir(engine)
    assert issubclass(engine.TimeoutError, TimeoutError)
    assert isinstance(engine.__version__, str)
    with pytest.raises(AttributeError, match="no_such_name"):
        engine.no_such_name  # noqa: B018


def test_positions_travel():
    ident = engine.MessageId.from_bytes(engine.MessageId(3, 4, {3: 5}).to_bytes())
    assert ident == engine.MessageId(3, 4)
    assert engine.MessageId.earliest < ident < engine.MessageId.latest
    assert pickle.loads(pickle.dumps(ident)) == ident
    checkpoint = engine.Checkpoint({0: 1}, epoch=2)
    assert engine.Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint


@pytest.mark.parametrize("listen", ["6650", 6650])
def test_a_port_alone_is_no_address(tmp_path: Path, listen: object):
    with pytest.raises(engine.InvalidArgumentError, match="write host:port"):
        engine.open(tmp_path / "data", listen=listen)  # type: ignore[arg-type]


async def test_the_admin_port_is_no_service_url(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with engine.open_async(tmp_path / "data", admin="127.0.0.1:0") as e:
        url = e.broker.admin_url.replace("http", "engine")
        with pytest.raises(
            engine.ConnectError, match=f"cannot talk to {url}: this port speaks HTTP; .* admin"
        ) as refused:
            async with engine.AsyncClient(url) as client:
                await client.producer("t")
    assert not refused.value.retryable
    assert "HTTP" not in caplog.text  # it is said once


async def test_what_the_admin_api_tells_is_plain_json(tmp_path: Path):
    def plain(one: object) -> bool:
        if type(one) is dict:
            return all(type(key) is str and plain(value) for key, value in one.items())
        return all(map(plain, one)) if type(one) is list else type(one) in (str, int, float, bool, type(None))

    async with engine.open_async(tmp_path / "data", listen="127.0.0.1:0", admin="127.0.0.1:0") as inside:
        await inside.admin.create_topic("t", segments=2, properties={"a": "b"})
        await inside.admin.create_subscription("t", "unread")
        async with (
            engine.AsyncClient(inside.service_url) as outside,
            await inside.stream_consumer("t", "s"),
            await inside.queue_consumer("t", "q"),
        ):
            for ask in ("get_stats", "get_metadata"):
                embedded, served = [await getattr(client.admin, ask)("t") for client in (inside, outside)]
                assert plain(embedded)
                assert json.loads(json.dumps(embedded)) == embedded == served


async def test_without_an_admin_api_the_remedy_is_told(tmp_path: Path):
    async with engine.open_async(tmp_path, listen="127.0.0.1:0") as e, engine.AsyncClient(e.service_url) as client:
        with pytest.raises(engine.UnsupportedError, match=r"serves no admin API; engine\.open\(…, admin=.* --admin"):
            await client.admin.list_topics()


async def test_an_admin_api_that_is_gone_is_told_as_a_client_port_is(tmp_path: Path):
    async with (
        engine.open_async(tmp_path, listen="127.0.0.1:0", admin="127.0.0.1:0", shared=False) as e,
        engine.AsyncClient(e.service_url) as client,
    ):
        await client.admin.list_topics()
        url = re.escape(e.broker.admin_url)
        await e.broker.addresses.admin_server.close()
        with pytest.raises(engine.ConnectError) as refused:
            await client.admin.list_topics()
    assert re.fullmatch(rf"cannot connect to the admin API at {url}/?: connection refused; .*", str(refused.value))


async def test_a_port_that_was_not_said_is_told(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        monkeypatch.setattr("engine.wire.url.DEFAULT_PORT", port)
        with pytest.raises(
            engine.ConnectError, match=f"cannot connect to engine://127.0.0.1:{port}: connection refused"
        ):
            await engine.AsyncClient("engine://127.0.0.1").connect()
