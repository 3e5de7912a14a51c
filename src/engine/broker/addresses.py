"""Where a broker is reached: configured addresses, or those it listens on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.broker.settings.current import CurrentConfig
from engine.broker.settings.shares import ProcessSet
from engine.wire.stream import FrameStream
from engine.wire.url import WILDCARDS, format_url, parse_url, unix_path

if TYPE_CHECKING:
    from engine.broker.admin.rest import AdminServer

IN_PROCESS_URL = "engine://embedded"  # the name of a broker without an address


class Addresses:
    """`listening` and `admin_server` are set when the ports are open.

    One of several processes of a server is named by its Unix socket, over which the others call it. Clients that came
    over a Unix socket, or through the server's one address, are given that name of each process; clients that came over
    TCP, the host that is configured, or that they dialled, with the port of the process.
    """

    def __init__(self, current: CurrentConfig, processes: ProcessSet | None = None) -> None:
        self._current = current
        self._processes = processes
        self.listening: tuple[str, int] | None = None  # of the first listener
        self.admin_server: AdminServer | None = None

    @property
    def identity(self) -> str:
        """The name of this broker in the metadata; fixed."""
        if self._processes is not None:
            return self._processes.url
        return self._current.value.service_url or IN_PROCESS_URL

    @property
    def service_url(self) -> str:
        """Where clients reach it: configured, or where it listens."""
        configured = self._current.value.service_url
        if self.listening is None or (configured is not None and self._processes is None):
            return self.identity
        host, port = self.listening
        if configured is not None:
            host = parse_url(configured)[0]
        return format_url("127.0.0.1" if host in WILDCARDS else host, port)

    @property
    def reachable(self) -> bool:
        """Whether other processes can connect. Their clients may be older than the broker; in-process ones cannot."""
        return self.service_url != IN_PROCESS_URL

    def url_for(self, stream: FrameStream) -> str:
        """The address for the peer of a connection: configured, or the one that the peer dialled."""
        if self._processes is not None:
            return self.dial(self.identity, stream)
        return self._current.value.service_url or stream.local_url or self.service_url

    def dial(self, url: str, stream: FrameStream) -> str:
        """A broker's URL as the peer of a connection can use it."""
        if self._processes is None:
            return self.url_for(stream) if url == self.identity else url
        port, dialled = self._processes.port_of(url), stream.local_url
        if port is None or dialled is None or unix_path(dialled) is not None:
            return url
        return format_url(parse_url(self._current.value.service_url or dialled)[0], port)

    @property
    def admin_url(self) -> str | None:
        """Where the admin API is; None: it is not served."""
        configured = self._current.value.admin_url
        return configured if configured is not None or self.admin_server is None else self.admin_server.url_for()

    def admin_url_for(self, stream: FrameStream) -> str | None:
        """admin_url for the peer of a connection: an API on all interfaces has the address that the peer dialled."""
        configured = self._current.value.admin_url
        if configured is not None or self.admin_server is None:
            return configured
        url = self.url_for(stream)
        return self.admin_server.url_for("127.0.0.1" if unix_path(url) else parse_url(url)[0])
