"""Where a broker is reached: what it was told, or what it listens on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.aio.semaphore import PoolStatistics
from engine.broker.admin.http import WILDCARDS
from engine.broker.settings.config import BrokerConfig
from engine.wire.stream import FrameStream
from engine.wire.url import format_url, parse_url

if TYPE_CHECKING:
    from engine.broker.admin.rest import AdminServer

IN_PROCESS_URL = "engine://embedded"  # what a broker without an address calls itself


class Addresses:
    """What a broker knows of its own. Loop thread only."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config  # in effect now
        self._address: tuple[str, int] | None = None  # of the first listener
        self._admin_server: AdminServer | None = None

    @property
    def identity(self) -> str:
        """What this broker calls itself in the metadata; fixed."""
        return self.config.service_url or IN_PROCESS_URL

    @property
    def service_url(self) -> str:
        """Where clients reach it: configured, or where it listens."""
        if self.config.service_url is None and self._address is not None:
            host, port = self._address
            return format_url("127.0.0.1" if host in WILDCARDS else host, port)
        return self.identity

    @property
    def reachable(self) -> bool:
        """Whether other processes reach it. Their clients may be older than it is; those of its own cannot."""
        return self.service_url != IN_PROCESS_URL

    def url_for(self, stream: FrameStream) -> str:
        """What the peer of a connection should dial: configured, or what it has dialled."""
        return self.config.service_url or stream.local_url or self.service_url

    def dial(self, url: str, stream: FrameStream) -> str:
        """A broker's URL as the peer of a connection can use it."""
        return self.url_for(stream) if url == self.identity else url

    @property
    def admin_url(self) -> str | None:
        """Where the admin API is."""
        if self.config.admin_url is not None or self._admin_server is None:
            return self.config.admin_url
        return self._admin_server.url_for()

    def http_connections(self) -> PoolStatistics | None:
        """Those to the admin API, if it is served."""
        return None if self._admin_server is None else self._admin_server.statistics()

    def admin_url_for(self, stream: FrameStream) -> str | None:
        """The same for the peer of a connection: an API on all interfaces is on the one it came in by."""
        if self.config.admin_url is not None or self._admin_server is None:
            return self.config.admin_url
        return self._admin_server.url_for(parse_url(self.url_for(stream))[0])
