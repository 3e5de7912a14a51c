"""A client of a broker in the same process and event loop, connected by an in-memory pair of frame streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.client.client import AsyncClient
from engine.errors import InvalidArgumentError
from engine.wire.memory import MemoryConnector
from engine.wire.stream import FrameHandler, FrameStream
from engine.wire.url import parse_address

if TYPE_CHECKING:
    from engine.model.admin_requests import AdminBackend


class LocalClient(AsyncClient):
    """`accept` is the broker's; `url` is only a name. `options` are AsyncClient's."""

    def __init__(
        self, accept: Callable[[FrameStream], FrameHandler], url: str, admin: AdminBackend, **options: Any
    ) -> None:
        super().__init__(url, connector=MemoryConnector(accept), admin=admin, **options)


def address(text: str | tuple[str, int], default_port: int) -> tuple[str, int]:
    """(host, port) of "host:port", "host", a service URL, or the pair itself. Raises InvalidArgumentError."""
    if isinstance(text, tuple):
        return text
    if not isinstance(text, str) or text.isdecimal():  # a port alone would be taken for a host
        raise InvalidArgumentError(f"address {text!r} is malformed; write host:port, as in '127.0.0.1:{default_port}'")
    return parse_address(text, default_port)
