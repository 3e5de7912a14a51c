"""Several processes on one directory: one serves it, the others are its clients; when it ends, another one serves."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

import engine
from tests.shared.conftest import Start
from tests.shared.members import Told

BACK_S_MAX = 30.0  # generous: about a tenth of a second on an idle machine


async def producing(member: Any, name: str) -> None:
    await member.do(f"keep.update(p=e.producer('t', name={name!r}))")


async def test_a_second_process_joins_and_is_a_client(tmp_path: Path, member: Start):
    first, second = await member(), await member()
    await producing(first, "a")
    await producing(second, "b")
    await second.do("keep.update(c=e.stream_consumer('t', 's', initial_position='earliest'))")
    for one, text in ((first, "1"), (second, "2")):
        await one.do(f"keep['p'].send(b'{text}', key='k')")
    assert await second.do("values(keep['c'], 2)") == ["1", "2"]
    assert await first.do("e.service_url") == await second.do("e.service_url")
    with engine.open(tmp_path / "data") as here:
        assert here.admin.list_topics() == ["topic://public/default/t"]
        stats = here.admin.get_stats("t")
        assert stats["subscriptions"].keys() == {"s"}
        with pytest.raises(engine.NotFoundError):
            here.admin.get_stats("missing")


async def test_every_admin_operation_with_arguments_of_each_kind_works_from_a_joiner(tmp_path: Path, member: Start):
    await member()
    with engine.open(tmp_path / "data") as here:
        admin = here.admin
        admin.create_topic("t", segments=2, properties={"a": "b"}, auto_scale={"max_segments": 3})
        assert admin.list_topics(properties={"a": "b"}) == ["topic://public/default/t"]
        assert admin.list_topics(properties={"a": "c"}) == []
        admin.split_segment("t", 0)
        admin.create_subscription("t", "s", initial_position="earliest")
        admin.seek_subscription("t", "s", "latest")
        admin.set_auto_scale_policy("t", {"enabled": False})
        assert admin.get_auto_scale_policy("t")["enabled"] is False
        admin.remove_auto_scale_policy("t")
        assert len(admin.get_metadata("t")["segments"]) == 4
        admin.delete_topic("t")
        assert admin.list_topics() == []


ENDS = {
    "close": "e.close()",
    "exit": None,
    "kill": None,
    "os._exit": "os._exit(1)",
}


@pytest.mark.parametrize("end", ENDS)
async def test_when_the_process_that_serves_ends_another_serves(tmp_path: Path, member: Start, end: str):
    """Nothing that was acknowledged is lost, nothing of a named producer is stored twice, order is kept."""
    first, second, third = await member(), await member(), await member()
    for one, name in ((second, "b"), (third, "c")):
        await producing(one, name)
        await one.do("keep['p'].send(b'before', key='k')")
    await third.do("keep.update(c=e.stream_consumer('t', 's', initial_position='earliest'))")
    await third.do("until(keep['c'], 2)")
    for one in (second, third):  # under way while it ends
        one.say("[keep['p'].send_nowait(b'%d' % i, key='k') for i in range(300)], keep['p'].flush()")
    if end == "exit":
        assert await first.leave() == 0
    elif end == "kill":
        await first.kill()
    else:
        first.say(ENDS[end] or "")
    async with asyncio.timeout(BACK_S_MAX):
        await asyncio.gather(second.hear(), third.hear())
    await third.do("until(keep['c'], 602)")  # what it has not acknowledged comes again
    with (
        engine.open(tmp_path / "data") as here,
        here.checkpoint_consumer("t", start=engine.Checkpoint.earliest()) as reader,
    ):
        messages = [reader.receive(timeout=30) for _ in range(602)]
        assert reader.receive(timeout=0) is None
    for name in ("b", "c"):
        values = [m.value for m in messages if m is not None and m.producer_name == name]
        assert values == [b"before", *(b"%d" % i for i in range(300))]


async def test_a_member_that_was_told_no_configuration_takes_over_with_that_of_the_first(tmp_path: Path, member: Start):
    first = await member(config={"durability": "interval", "auto_create_topics": False})
    second = await member()
    with pytest.raises(Told, match="NotFoundError"):
        await second.do("e.producer('t')")
    await first.kill()
    with pytest.raises(Told, match="NotFoundError"):
        await second.do("e.producer('t')")
    with pytest.raises(engine.InvalidConfigurationError, match="auto_create_topics"):
        await asyncio.to_thread(engine.open, tmp_path / "data", config={"auto_create_topics": True})
    await asyncio.to_thread(lambda: engine.open(tmp_path / "data", config={"durability": "interval"}).close())


async def test_a_member_asks_for_an_address_and_keeps_it(tmp_path: Path, member: Start):
    first = await member()
    second = await member(listen="127.0.0.1:0", admin="127.0.0.1:0")
    url = await second.do("e.service_url")
    assert url.startswith("engine://127.0.0.1:")
    assert await second.do("e.admin_url") == await first.do("e.admin_url")
    async with engine.AsyncClient(url) as client:
        await client.admin.create_topic("t")
        producer = await client.producer("t")
        await producer.send(b"1")
        await first.kill()
        async with asyncio.timeout(BACK_S_MAX):
            await producer.send(b"2")
        assert await second.do("e.service_url") == url
        assert await client.admin.list_topics() == ["topic://public/default/t"]


async def test_a_joiner_that_is_stopped_while_others_take_over_goes_on_afterwards(tmp_path: Path, member: Start):
    """One of them is killed in the moment in which it takes over."""
    first, stopped = await member(), await member()
    await producing(stopped, "p")
    await stopped.do("keep['p'].send(b'0', key='k')")
    stopped.signal(signal.SIGSTOP)
    stopped.say("[keep['p'].send(b'%d' % i, key='k') for i in range(1, 50)] and None")
    for _ in range(3):
        successor = await member()
        await first.kill()
        successor.say("e.admin.list_topics()")
        first = successor
    assert await first.hear() == ["topic://public/default/t"]
    stopped.signal(signal.SIGCONT)
    assert await stopped.hear() is None
    with engine.open(tmp_path / "data") as here:
        with here.stream_consumer("t", "s", initial_position="earliest") as consumer:
            got = [consumer.receive(timeout=BACK_S_MAX) for _ in range(50)]
        assert [m and m.value for m in got] == [b"%d" % i for i in range(50)]


async def test_an_address_in_use_is_told_to_the_joiner_alone(tmp_path: Path, member: Start):
    first = await member()
    with (
        engine.open(tmp_path / "other", listen="127.0.0.1:0") as taken,
        pytest.raises(engine.ConnectError, match="in use"),
    ):
        await asyncio.to_thread(engine.open, tmp_path / "data", listen=taken.service_url)
    await first.do("e.admin.create_topic('t')")


async def test_while_the_process_that_serves_is_stopped_others_wait_and_are_told_its_number(
    tmp_path: Path, member: Start, monkeypatch: pytest.MonkeyPatch
):
    first = await member()
    with engine.open(tmp_path / "data") as here:
        producer = here.producer("t", name="p", send_timeout=2.0)
        producer.send(b"1")
        first.signal(signal.SIGSTOP)
        monkeypatch.setattr("engine.embedded.shared.PATIENCE_S", 1.5)
        named = f"process {first.pid}"
        with pytest.raises(engine.TimeoutError, match=named):
            await asyncio.to_thread(engine.open, tmp_path / "data")  # one more handle
        with pytest.raises(engine.TimeoutError, match=named):
            await asyncio.to_thread(here.admin.list_topics)
        with pytest.raises(engine.TimeoutError, match=named):
            await asyncio.to_thread(producer.send, b"2")
        with pytest.raises(engine.DataDirectoryBusyError, match=named):
            engine.open(tmp_path / "data", shared=False)
        first.signal(signal.SIGCONT)
        monkeypatch.undo()
        assert await asyncio.to_thread(here.admin.list_topics) == ["topic://public/default/t"]
        await asyncio.to_thread(producer.send, b"3")
        assert await first.do("e.admin.list_topics()") == ["topic://public/default/t"]


async def test_a_new_process_waits_for_one_that_is_stopped(tmp_path: Path, member: Start):
    first = await member()
    first.signal(signal.SIGSTOP)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("engine.embedded.shared.PATIENCE_S", 0.5)
        patched.setattr("engine.broker.cluster.peers.HANDSHAKE_S_MAX", 0.2)
        with pytest.raises(engine.TimeoutError, match=f"process {first.pid}"):
            await asyncio.to_thread(engine.open, tmp_path / "data")
    opening = asyncio.create_task(asyncio.to_thread(engine.open, tmp_path / "data"))
    first.signal(signal.SIGCONT)
    opened = await opening
    assert opened.admin.list_topics() == []
    opened.close()


async def test_a_member_that_is_stopped_is_a_client_that_is_silent(tmp_path: Path, member: Start):
    """What it had received goes to others, and it goes on when it runs again."""
    here = await engine.open_async(tmp_path / "data", config={"keep_alive": 0.3})
    async with here, await here.producer("t") as producer:
        stopped = await member()
        await stopped.do("keep.update(c=e.queue_consumer('t', 's', initial_position='earliest'))")
        await producer.send(b"1")
        assert await stopped.do("values(keep['c'], 1)") == ["1"]
        async with await here.queue_consumer("t", "s") as consumer:
            stopped.signal(signal.SIGSTOP)
            message = await consumer.receive(timeout=BACK_S_MAX)
            assert message is not None
            assert message.value == b"1"
            await consumer.acknowledge(message)
            stopped.signal(signal.SIGCONT)
            await stopped.do("e.producer('t').send(b'2')")


async def test_one_that_does_not_share_is_named_to_others(tmp_path: Path, member: Start):
    alone = await member(shared=False)
    for shared in (True, False):
        with pytest.raises(engine.DataDirectoryBusyError, match=f"process {alone.pid}"):
            await asyncio.to_thread(engine.open, tmp_path / "data", shared=shared)
    await alone.kill()
    engine.open(tmp_path / "data").close()


async def test_eight_processes_begin_at_once(tmp_path: Path, member: Start):
    members = await asyncio.gather(*(member() for _ in range(8)))
    await asyncio.gather(*(one.do(f"e.producer('t').send(b'{i}')") for i, one in enumerate(members)))
    with (
        engine.open(tmp_path / "data") as here,
        here.checkpoint_consumer("t", start=engine.Checkpoint.earliest()) as reader,
    ):
        assert {reader.receive(timeout=30).value for _ in range(8)} == {b"%d" % i for i in range(8)}
