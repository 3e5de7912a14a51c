"""The programs of docs/processes.md as they are run: under gunicorn, and in a notebook."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import nbclient
import nbformat

import engine
from engine.metadata.lockfile import holder_of
from tests.chaos.server import free_port
from tests.kit.programs import ROOT, environment

PAGE = ROOT / "docs" / "processes.md"
WORKERS = 4
START_S_MAX = 60.0


def example(mark: str) -> str:
    """The example of the page that has a text."""
    (found,) = [code for code in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.S | re.M) if mark in code]
    return str(found)


async def listening(process: asyncio.subprocess.Process, log: Callable[[], str], workers: int) -> None:
    """Wait until so many workers have begun to listen."""
    async with asyncio.timeout(START_S_MAX):
        while log().count("ASGI server listening") < workers:
            assert process.returncode is None, log()
            await asyncio.sleep(0.05)


def post(url: str) -> int:
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30) as answer:
        return int(answer.status)


async def test_gunicorn_with_four_workers_of_fastapi(tmp_path: Path):
    """Also when the worker that serves the directory is killed."""
    (tmp_path / "app.py").write_text(example("FastAPI"))
    port = free_port()
    log = tmp_path / "log"
    command = ["-m", "gunicorn", "app:app", "--workers", str(WORKERS), "--worker-class", "asgi", "--no-control-socket"]
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *command, "--bind", f"127.0.0.1:{port}"), cwd=tmp_path, env=environment(), stderr=out
        )
    try:
        await listening(process, log.read_text, WORKERS)
        url = f"http://127.0.0.1:{port}/orders"
        codes = await asyncio.gather(*(asyncio.to_thread(post, f"{url}/table-{i}?what={i}") for i in range(20)))
        assert codes == [200] * 20
        holder = holder_of(tmp_path / "data" / "metadata.db.lock")
        assert holder is not None
        os.kill(holder.process, signal.SIGKILL)
        async with engine.open_async(tmp_path / "data") as e, e.queue_consumer("orders", "s") as consumer:
            assert await asyncio.to_thread(posts_again, f"{url}/table-1?what=last") == 200
            message = await consumer.receive(timeout=30)
            assert message is not None
            assert message.value == b"last"
        # gunicorn waits 30 s for a worker that is told to end while it starts.
        await listening(process, log.read_text, WORKERS + 1)
    finally:
        process.terminate()
        await process.wait()
    with (
        engine.open(tmp_path / "data") as e,
        e.checkpoint_consumer("orders", start=engine.Checkpoint.earliest()) as reader,
    ):
        values = {reader.receive(timeout=30).value for _ in range(21)}
    assert values == {b"last", *(b"%d" % i for i in range(20))}


def posts_again(url: str) -> int:
    """A request that the killed worker had taken is lost with it, as with any web server."""
    for _ in range(20):
        try:
            return post(url)
        except OSError:
            continue
    return post(url)


def test_a_notebook_that_runs_twice(tmp_path: Path, monkeypatch):
    with engine.open(tmp_path / "data") as e, e.producer("orders") as producer:
        producer.send(b"x")
        for name, value in environment().items():
            monkeypatch.setenv(name, value)
        cell = nbformat.v4.new_code_cell
        receive = "m = orders.receive(timeout=30); print(m.value)"
        cells = [example("notebook"), receive, example("notebook"), receive, "orders.acknowledge(m)", ASYNCHRONOUS]
        notebook = nbformat.v4.new_notebook(cells=[cell(code) for code in cells])
        nbclient.NotebookClient(
            notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
        printed = ["".join(o.get("text", "") for o in c.outputs if o.get("name") == "stdout") for c in notebook.cells]
        assert printed == ["", "b'x'\n", "", "b'x'\n", "", "True\n"]


ASYNCHRONOUS = """
async with engine.open_async("./data") as other:
    print(await other.topic_exists("orders") and e.topic_exists("orders"))
"""
