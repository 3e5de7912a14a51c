"""Where a broker is reached: configured addresses, or those it listens on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.broker.settings.current import CurrentConfig
from engine.wire.stream import FrameStream
from engine.wire.url import WILDCARDS, format_url, parse_url, unix_path

if TYPE_CHECKING:
    from engine.broker.admin.rest import AdminServer

IN_PROCESS_URL = "engine://embedded"  # the name of a broker without an address


class Addresses:
    """`listening` and `admin_server` are set when the ports are open."""

    def __init__(self, current: CurrentConfig) -> None:
        self._current = current
        self.listening: tuple[str, int] | None = None  # of the first listener
        self.admin_server: AdminServer | None = None

    @property
    def identity(self) -> str:
        """The name of this broker in the metadata; fixed."""
        return self._current.value.service_url or IN_PROCESS_URL

    @property
    def service_url(self) -> str:
        """Where clients reach it: configured, or where it listens."""
        if self._current.value.service_url is None and self.listening is not None:
            host, port = self.listening
            return format_url("127.0.0.1" if host in WILDCARDS else host, port)
        return self.identity

    @property
    def reachable(self) -> bool:
        """Whether other processes can connect. Their clients may be older than the broker; in-process ones cannot."""
        return self.service_url != IN_PROCESS_URL

    def url_for(self, stream: FrameStream) -> str:
        """The address for the peer of a connection: configured, or the one that the peer dialled."""
        return self._current.value.service_url or stream.local_url or self.service_url

    def dial(self, url: str, stream: FrameStream) -> str:
        """A broker's URL as the peer of a connection can use it."""
        return self.url_for(stream) if url == self.identity else url

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
