"""`ProcessSet`: a server of several processes, each a broker on one data directory; and the share of each."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from engine.broker.settings.config import BrokerConfig
from engine.errors import InvalidArgumentError
from engine.limits import FRAME_SIZE_MAX, MIB

# Limits of memory, which hold for the server as a whole, and the least that a process can work with.
DIVIDED = {
    "publish_bytes_max": FRAME_SIZE_MAX,
    "read_cache_max": 0,
    "log_cache_size": MIB,
    "reads_in_flight_max": FRAME_SIZE_MAX,
    "receive_buffers_max": FRAME_SIZE_MAX,
    "topic_list_heap_max": MIB,
    "topic_list_direct_max": MIB,
}


@dataclass(frozen=True, slots=True)
class ProcessSet:
    """The processes of one server, as each of them knows them.

    `index`: of this process. `urls`: the Unix sockets of all, by index, which are their names in the metadata. `ports`:
    their TCP ports, on the addresses where the server listens; empty: clients reach all of them through one address.
    """

    index: int
    urls: tuple[str, ...]
    ports: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.index < len(self.urls):
            raise InvalidArgumentError(f"index must be from 0 to {len(self.urls) - 1}, got {self.index}")
        if self.ports and len(self.ports) != len(self.urls):
            raise InvalidArgumentError(f"ports must be {len(self.urls)}, one for each process, got {len(self.ports)}")

    @property
    def count(self) -> int:
        return len(self.urls)

    @property
    def url(self) -> str:
        """Of this process."""
        return self.urls[self.index]

    def port_of(self, url: str) -> int | None:
        """The TCP port of the process of this name; None: it has none, or is not of this server."""
        return self.ports[self.urls.index(url)] if self.ports and url in self.urls else None


def share_of(config: BrokerConfig, count: int) -> BrokerConfig:
    """The configuration of one of `count` processes: limits of memory are divided. 0 stays 0."""
    if count == 1:
        return config
    parts = {name: (getattr(config, name), least) for name, least in DIVIDED.items()}
    shares = {name: whole and max(whole // count, least) for name, (whole, least) in parts.items()}
    return dataclasses.replace(config, **shares)
