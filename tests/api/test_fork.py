"""What a forked child can do with what its parent had open: handles connect anew, the rest is the parent's."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

FORKED = """
    import os, signal, sys
    import engine

    e = engine.open(sys.argv[1])
    p = e.producer("t")
    p.send_batch([b"1", b"2", b"3"])
    p.flush()
    c = e.stream_consumer("t", "s", initial_position="earliest")
    first = c.receive(timeout=10)
    t = e.transaction()

    def told(action):
        try:
            action()
        except engine.AlreadyClosedError as error:
            return "forked" in str(error)
        return False

    child = os.fork()
    if child == 0:
        signal.alarm(20)
        actions = [lambda: p.send(b"x"), lambda: p.send_nowait(b"x"), lambda: p.send_batch([b"x"]), p.flush,
                   c.receive, c.receive_batch, lambda: c.acknowledge_cumulative(first), t.commit]
        silent = [i for i, action in enumerate(actions) if not told(action)]
        with e.producer("t") as again:  # over the parent
            again.send(b"4")
        with engine.open(sys.argv[1] + "-own") as own, own.producer("t") as producer:
            producer.send(b"of the child")
        sys.exit(f"silent: {silent}" if silent else 0)  # through threading's and atexit's ends, as a process should
    assert os.waitpid(child, 0)[1] == 0
    assert [c.receive(timeout=10).value for _ in range(3)] == [b"2", b"3", b"4"]
"""

HELD = """
    import multiprocessing, sys
    import engine

    if __name__ == "__main__":
        e = engine.open(sys.argv[1])
        context = multiprocessing.get_context("fork")
        go = context.Event()
        process = context.Process(target=go.wait, args=(20,))
        process.start()
        e.close()
        engine.open(sys.argv[1]).close()  # although the child has inherited the lock's file
        go.set()
        process.join(20)
        assert process.exitcode == 0
"""

SERVED = """
    import os, signal, sys
    import engine

    e = engine.open(sys.argv[1], listen="127.0.0.1:0", admin="127.0.0.1:0")
    client = engine.Client(e.service_url)
    with client.producer("t") as p:
        p.send(b"x")
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with client.producer("t") as p:
            p.send(b"y")
        client.close()
        sys.exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
"""


def run(code: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    subprocess.run([sys.executable, str(script), str(tmp_path / "data")], check=True, timeout=60)


def test_a_forked_child_is_told_and_ends(tmp_path: Path):
    run(FORKED, tmp_path)


def test_a_forked_child_of_one_that_serves_ends(tmp_path: Path):
    run(SERVED, tmp_path)


def test_a_forked_child_does_not_hold_the_directory(tmp_path: Path):
    run(HELD, tmp_path)
