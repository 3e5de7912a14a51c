"""Ports that stay with a server while its processes come and go."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from engine.errors import ConnectError
from engine.processes.sockets import ServerSockets, bind_reserved, hosts_of, reserve, share


def connected(port: int) -> bool:
    """Whether a connection is accepted."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def test_a_reserved_port_refuses_connections_until_its_process_listens():
    reserved = reserve(["127.0.0.1"], 0)
    with contextlib.closing(reserved):
        for _ in range(2):  # a process that died, and the next one
            assert not connected(reserved.port)
            (own,) = bind_reserved(reserved.addresses)
            with own:
                own.listen()
                assert own.getsockname()[1] == reserved.port
                assert connected(reserved.port)
        with pytest.raises(ConnectError, match="in use"):
            share(["127.0.0.1"], reserved.port)


def test_the_shared_address_answers_while_one_process_listens():
    shared = share(["127.0.0.1"], 0)
    with contextlib.closing(shared):
        assert not connected(shared.port)
        inherited = shared.sockets[0].dup()
        inherited.listen()
        assert connected(shared.port)
        inherited.close()
        assert connected(shared.port)  # it waits for the next process


def test_one_port_on_all_addresses():
    reserved = reserve(["127.0.0.1", "127.0.0.2"], 0)
    with contextlib.closing(reserved):
        assert {port for _, port in reserved.addresses} == {reserved.port}
        assert [host for host, _ in reserved.addresses] == ["127.0.0.1", "127.0.0.2"]


def test_hosts():
    assert hosts_of("127.0.0.1") == ["127.0.0.1"]
    assert "127.0.0.1" in hosts_of("localhost")
    assert hosts_of("0.0.0.0") == ["0.0.0.0"]
    with pytest.raises(ConnectError, match=r"cannot listen on no-such-host\.invalid"):
        hosts_of("no-such-host.invalid")


def test_all_or_none(tmp_path: Path):
    path = str(tmp_path / "engine.sock")
    with contextlib.closing(share(["127.0.0.1"], 0)) as taken:
        with pytest.raises(ConnectError, match=f"127.0.0.1:{taken.port}"):
            ServerSockets.bind(("127.0.0.1", 0), None, [0, taken.port], path)
        assert not (tmp_path / "engine.sock").exists()
        sockets = ServerSockets.bind(("127.0.0.1", 0), ("127.0.0.1", 0), [0, 0], path)
        assert len({sockets.clients.port, *(own.port for own in sockets.own)}) == 3
        assert len(sockets.shared()) == 3
        assert len(sockets.shared(with_clients=False)) == 2
        sockets.close()
    assert not (tmp_path / "engine.sock").exists()
