"""The sockets of a server of several processes, bound by the parent before any child starts.

shared      the address that clients dial first, the admin API, and `engine.sock` for local clients: the children
            inherit the listening sockets, and each accepts what it comes to first. While one process lives, the
            address answers.
reserved    each child's own port. The parent binds it and does not listen; the child binds it too and listens
            (SO_REUSEPORT). So the port stays with the server, and while the child is dead it refuses connections at
            once: clients go on to another process instead of waiting.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from engine.errors import ConnectError
from engine.wire import tcp, unix

_ATTEMPTS_MAX = 32  # for a free port that is free on all addresses

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Reserved:
    """One port on all addresses of a host."""

    sockets: tuple[socket.socket, ...]

    @property
    def addresses(self) -> list[Address]:
        return [sock.getsockname()[:2] for sock in self.sockets]

    @property
    def descriptors(self) -> list[int]:
        return [sock.fileno() for sock in self.sockets]

    @property
    def port(self) -> int:
        return int(self.addresses[0][1])

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


def hosts_of(host: str) -> list[str]:
    """The numeric addresses of a host. Raises ConnectError."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as e:
        raise ConnectError(f"cannot listen on {host}: {e.strerror or e}") from e
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def share(hosts: Sequence[str], port: int) -> Reserved:
    """Bound sockets, for children to listen on. Port 0 takes a free one. Raises ConnectError."""
    return _bind(hosts, port, reuse_port=False)


def reserve(hosts: Sequence[str], port: int) -> Reserved:
    """Bound sockets, whose port no other user can take. Port 0 takes a free one. Raises ConnectError."""
    return _bind(hosts, port, reuse_port=True)


def bind_reserved(addresses: Sequence[Address]) -> Iterator[socket.socket]:
    """A child's own sockets at addresses that its parent has reserved. Raises ConnectError."""
    for host, port in addresses:
        yield _one(host, port, reuse_port=True)


@contextmanager
def _said_with(option: str) -> Iterator[None]:
    """Name the option that sets the address, where it cannot be had."""
    try:
        yield
    except ConnectError as e:
        raise ConnectError(f"{e}; set another address with {option}") from e


def _bind(hosts: Sequence[str], port: int, *, reuse_port: bool) -> Reserved:
    error: ConnectError | None = None
    for _ in range(1 if port else _ATTEMPTS_MAX):
        with ExitStack() as stack:
            sockets: list[socket.socket] = []
            try:
                for host in hosts:
                    chosen = sockets[0].getsockname()[1] if sockets else port
                    sockets.append(stack.enter_context(_one(host, chosen, reuse_port=reuse_port)))
            except ConnectError as e:  # the port that was free on the first address is not on another
                error = e
                continue
            stack.pop_all()
            return Reserved(tuple(sockets))
    assert error is not None
    raise error


def _one(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    sock = tcp.bind(host, port, reuse_port=reuse_port)
    if sock is None:
        raise ConnectError(f"cannot listen on {host}:{port}: it must be a numeric address")
    return sock


@dataclass(frozen=True, slots=True)
class ServerSockets:
    """All sockets of a server. `own`: by the index of the child, empty where all are reached through one address."""

    clients: Reserved
    admin: Reserved | None
    own: tuple[Reserved, ...]
    local: socket.socket
    local_path: str

    @classmethod
    def bind(cls, listen: Address, admin: Address | None, ports: Sequence[int], local_path: str) -> ServerSockets:
        """`ports`: of the children; 0 takes a free one. Raises ConnectError."""
        with ExitStack() as stack:
            with _said_with("--listen"):
                hosts = hosts_of(listen[0])
                clients = share(hosts, listen[1])
            stack.callback(clients.close)
            served = None
            if admin is not None:
                with _said_with("--admin"):
                    served = share(hosts_of(admin[0])[:1], admin[1])
                stack.callback(served.close)
            own = []
            for port in ports:
                with _said_with("--process-port"):
                    own.append(reserve(hosts, port))
                stack.callback(own[-1].close)
            found = cls(clients, served, tuple(own), unix.bind(local_path, listening=False), local_path)
            stack.pop_all()
        return found

    def shared(self, *, with_clients: bool = True) -> list[int]:
        """Descriptors that the children inherit."""
        clients = self.clients.descriptors if with_clients else []
        return [*clients, *(self.admin.descriptors if self.admin else ()), self.local.fileno()]

    def close(self) -> None:
        for reserved in (self.clients, *self.own):
            reserved.close()
        if self.admin is not None:
            self.admin.close()
        unix.unbind(self.local, self.local_path)
