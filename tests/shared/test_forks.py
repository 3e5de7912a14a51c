"""Forked processes: what they inherit keeps neither the lock nor a connection of their parent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

import engine
from tests.kit.programs import environment
from tests.shared.conftest import Start

PARENT = """
    import os, signal, sys
    import engine

    e = engine.open(sys.argv[1], listen="127.0.0.1:0")
    p = e.producer("t", name="p")
    p.send(b"1")
    go, gone = os.pipe()
    child = os.fork()
    if child == 0:  # it stays, with what it has inherited, and uses nothing
        signal.alarm(60)
        os.close(gone)
        os.read(go, 1)
        os._exit(0)
    print(child, e.service_url, flush=True)
    sys.stdin.readline()
"""

KINDS = """
    import multiprocessing, sys
    import engine

    def work(path, number):
        with engine.open(path) as e, e.producer("t") as p:
            p.send(b"%d" % number)

    if __name__ == "__main__":
        with engine.open(sys.argv[1]) as e:
            c = e.queue_consumer("t", "s")
            context = multiprocessing.get_context(sys.argv[2])
            processes = [context.Process(target=work, args=(sys.argv[1], number)) for number in range(3)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(60)
            assert [process.exitcode for process in processes] == [0, 0, 0]
            assert sorted(c.receive(timeout=60).value for _ in range(3)) == [b"0", b"1", b"2"]
            c.close()
"""


async def started(tmp_path: Path, code: str, *arguments: object) -> asyncio.subprocess.Process:
    """A program over the directory `data` of the test."""
    script = tmp_path / "script.py"
    script.write_text("\n".join(line[4:] for line in code.splitlines()))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), str(tmp_path / "data"), *map(str, arguments)),
        env=environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def test_a_child_that_outlives_its_parent_keeps_nothing_of_it(tmp_path: Path, member: Start):
    parent = await started(tmp_path, PARENT)
    assert parent.stdout is not None
    child, url = (await asyncio.wait_for(parent.stdout.readline(), 60)).split()
    other = await member()
    async with engine.AsyncClient(url.decode()) as client:
        await client.connect()
        parent.kill()
        await parent.wait()
        os.kill(int(child), 0)  # it lives
        async with asyncio.timeout(30):
            await other.do("e.producer('t', name='p').send(b'2')")  # it has the lock, and serves
        with pytest.raises(engine.ConnectError, match="refused"):  # the child does not hold the port
            async with engine.AsyncClient(url.decode()) as late:
                await late.connect()


@pytest.mark.parametrize("kind", ["fork", "spawn", "forkserver"])
async def test_processes_of_multiprocessing_join(tmp_path: Path, kind: str):
    program = await started(tmp_path, KINDS, kind)
    async with asyncio.timeout(100):
        assert await program.wait() == 0


async def test_a_member_that_has_forked_and_is_killed_gives_its_messages_back(tmp_path: Path, member: Start):
    async with engine.open_async(tmp_path / "data") as here, await here.producer("t") as producer:
        other = await member()
        await other.do("keep.update(c=e.queue_consumer('t', 's', initial_position='earliest'))")
        await producer.send(b"1")
        assert await other.do("values(keep['c'], 1)") == ["1"]
        child = await other.do("forked()")
        async with await here.queue_consumer("t", "s") as consumer:
            await other.kill()
            message = await consumer.receive(timeout=30)
            assert message is not None
            assert message.value == b"1"
        os.kill(child, signal.SIGKILL)


ASYNCHRONOUS = """
    import asyncio, os, signal, sys
    import engine

    async def begin():
        e = await engine.open_async(sys.argv[1])
        p = await e.producer("t")
        await p.send(b"1")
        return e, p

    async def of_the_child():
        try:
            await p.send(b"x")
        except engine.AlreadyClosedError:
            async with e, e.producer("t") as own:
                await own.send(b"2")
                assert await e.admin.list_topics() == ["topic://public/default/t"]

    with asyncio.Runner() as runner:
        e, p = runner.run(begin())
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            asyncio.run(of_the_child())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert runner.run(p.send(b"3")).offset == 2
        runner.run(e.close())
"""


async def test_an_asynchronous_handle_connects_anew_in_a_forked_child(tmp_path: Path):
    program = await started(tmp_path, ASYNCHRONOUS)
    async with asyncio.timeout(100):
        assert await program.wait() == 0
