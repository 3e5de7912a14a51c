"""What comes to a task has the rest of it sent at once."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark_engine import DefaultSource, arrival

SCHEMA = StructType([StructField("value", BinaryType())])
OPTIONS = {"url": "engine://127.0.0.1:1", "topic": "t"}
UNACKNOWLEDGED = struct.Struct("24xI")  # of struct tcp_info, in linux/tcp.h


@pytest.fixture
def both_ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Of a TCP connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        yield one, other


def unacknowledged(sender: socket.socket) -> int:
    (count,) = UNACKNOWLEDGED.unpack(sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, UNACKNOWLEDGED.size))
    return int(count)


def test_what_has_come_is_acknowledged(both_ends: tuple[socket.socket, socket.socket]):
    """A system that is used to answers puts it off for 40 ms; of ten times, it is not always its time just now."""
    spark, worker = both_ends
    put_off = 0
    for _ in range(10):
        spark.sendall(b"a task")
        worker.recv(100)
        worker.sendall(b"its outcome")
        spark.recv(100)
        spark.sendall(b"the next one")
        worker.recv(100)
        put_off += unacknowledged(spark)
        arrival.acknowledge_now()
        assert unacknowledged(spark) == 0
        worker.sendall(b"its outcome")
        spark.recv(100)
    assert put_off


def test_what_blocks_goes_on_blocking(both_ends: tuple[socket.socket, socket.socket]):
    """Also where the program has a default timeout."""
    socket.setdefaulttimeout(60)
    try:
        arrival.acknowledge_now()
    finally:
        socket.setdefaulttimeout(None)
    assert all(os.get_blocking(end.fileno()) for end in both_ends)


def test_what_is_no_connection_is_left_alone(tmp_path: Any):
    left, right = socket.socketpair()
    with left, right, socket.socket(socket.AF_INET, socket.SOCK_DGRAM), open(tmp_path / "file", "wb"):
        arrival.acknowledge_now()
        left.sendall(b"x")
        assert right.recv(10) == b"x"


@pytest.mark.parametrize("made", ["reader", "streamReader", "writer", "streamWriter"])
def test_it_is_done_by_all_that_travels(monkeypatch: pytest.MonkeyPatch, made: str):
    done: list[str] = []
    monkeypatch.setattr(arrival, "acknowledge_now", lambda: done.append(made))
    overwrite = [False] if "riter" in made else []
    travels = getattr(DefaultSource(OPTIONS), made)(SCHEMA, *overwrite)
    arrived = pickle.loads(pickle.dumps(travels))
    assert done == [made]
    assert vars(arrived).keys() == vars(travels).keys()
