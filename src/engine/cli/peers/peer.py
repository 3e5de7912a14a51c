"""`Peer`: what is measured of each broker, and how a URL finds the one that it is of."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol

from engine.errors import InvalidArgumentError, UnsupportedError

Rows = Sequence[tuple[bytes, bytes]]  # keys and values

# By the scheme of a URL: the module, and what `pip install` brings its client.
KINDS = {
    "kafka": ("engine.cli.peers.kafka", "confluent-kafka"),
    "redis": ("engine.cli.peers.redis", "redis"),
    "rediss": ("engine.cli.peers.redis", "redis"),
    "nats": ("engine.cli.peers.nats", "nats-py"),
    "tls": ("engine.cli.peers.nats", "nats-py"),
    "engine": ("engine.cli.peers.own", "engine"),
    "engines": ("engine.cli.peers.own", "engine"),
}


class Peer(Protocol):
    """A topic of its own in a broker, which goes with it. Methods raise OSError when the broker fails."""

    def publish(self, rows: Rows) -> None:
        """Send all, as fast as the client does, and wait until all are acknowledged."""

    def publish_each(self, rows: Rows) -> None:
        """Send each, and wait for its acknowledgement before the next."""

    def consume(self, count: int) -> int:
        """Read so many from the start, and acknowledge them; the bytes of their values."""

    def close(self) -> None:
        """Delete the topic, and leave."""


def scheme_of(url: str) -> str:
    """Of a broker that can be measured. Raises InvalidArgumentError."""
    scheme = url.partition("://")[0].lower()
    if "://" not in url or scheme not in KINDS:
        raise InvalidArgumentError(
            f"a URL must begin with one of {', '.join(f'{kind}://' for kind in KINDS)}, got {url!r:.200}"
        )
    return scheme


def connected(url: str, topic: str) -> Peer:
    """The broker at the URL, with a new topic. Raises InvalidArgumentError, UnsupportedError, OSError."""
    module, package = KINDS[scheme_of(url)]
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as e:
        if (e.name or "").startswith("engine"):
            raise
        raise UnsupportedError(
            f"{url.partition('://')[0]}:// needs its client: pip install {package}, or 'engine[peers]'"
        ) from e
    made: Peer = found.connected(url, topic)
    return made
