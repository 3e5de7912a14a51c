"""A process that has a directory open and does what it is told: each line of its input is an expression.

With the option `user` it becomes a process of that user, by number, before the first of them.

It answers each by a line of JSON: [value, null], or [null, [name of the error, its text]]. `e` is the engine's handle,
`keep` a dictionary for what is to stay. Arguments: the directory, and options of engine.open() as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from typing import Any

import engine


def values(consumer: Any, count: int, timeout: float = 30.0) -> list[str]:
    """The next messages of a consumer, fewer where none came for so long."""
    found: list[str] = []
    while len(found) < count and (message := consumer.receive(timeout=timeout)) is not None:
        found.append(message.value.decode())
    return found


def until(consumer: Any, wanted: int, timeout: float = 30.0) -> list[tuple[str, str]]:
    """(producer, value) of the messages of a consumer, until so many different ones came."""
    found: dict[tuple[str, str], None] = {}
    while len(found) < wanted:
        message = consumer.receive(timeout=timeout)
        found[message.producer_name, message.value.decode()] = None
    return list(found)


def found(e: engine.Engine) -> None:
    """Ask until the directory, which was moved, is back."""
    while True:
        with contextlib.suppress(engine.DataDirectoryError):
            e.admin.list_topics()
            return


def forked() -> int:
    """A child that stays, with what it has inherited, until it is killed."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1):  # else the parent's end is not seen before that of this one
            os.dup2(nothing, standard)
        signal.pause()
    return child


def become(user: int) -> None:
    """A process of this user, who may not be able to read where Python is: what is needed is loaded before."""
    with tempfile.TemporaryDirectory() as folder, engine.open(folder) as e, e.producer("t") as producer:
        producer.send(b"x")
        with engine.open(folder) as other, other.queue_consumer("t", "s", initial_position="earliest") as consumer:
            consumer.acknowledge(consumer.receive())
        e.admin.list_topics()
        with contextlib.suppress(engine.DataDirectoryBusyError):
            engine.open(folder, shared=False)
        with contextlib.suppress(engine.ConnectError):
            engine.Client(f"{e.service_url}.missing").connect()
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def main(path: str, options: dict[str, Any]) -> None:
    """Until the input ends; then the process exits without closing anything."""
    if (user := options.pop("user", None)) is not None:
        become(user)
    answer: list[Any]
    known: dict[str, Any] = {
        "engine": engine,
        "keep": {},
        "values": values,
        "until": until,
        "forked": forked,
        "found": found,
        "os": os,
    }
    for line in sys.stdin:
        try:
            if line.strip() == "open":
                known["e"] = engine.open(path, **options)
                answer = [known["e"].service_url, None]
            else:
                answer = [eval(line, known), None]
        except Exception as error:
            answer = [None, [type(error).__name__, str(error)]]
        print(json.dumps(answer, default=str), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
