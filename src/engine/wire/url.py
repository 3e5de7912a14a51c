"""Service URLs: engine://host:port, engine+unix:///path."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, urlsplit

from engine.errors import InvalidArgumentError

SCHEME = "engine"
UNIX_SCHEME = "engine+unix"
DEFAULT_PORT = 6650
_FORM = "write engine://host:port"


def parse_url(url: str) -> tuple[str, int]:
    """(host, port) of a service URL; the port may be left out. Raises InvalidArgumentError."""
    if not isinstance(url, str):
        raise InvalidArgumentError(f"service URL must be text, got {type(url).__name__}; {_FORM}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as e:
        raise InvalidArgumentError(f"service URL {_masked(url)!r} is malformed ({e}); {_FORM}") from None
    if parts.scheme != SCHEME or not host or parts.path.strip("/") or parts.query or parts.username is not None:
        raise InvalidArgumentError(f"service URL {_masked(url)!r} is malformed; {_FORM}")
    return host, DEFAULT_PORT if port is None else port


def _masked(url: str) -> str:
    """Without what stands before an @, which may be a secret."""
    return re.sub(r"(://|^)[^/]*@", r"\1…@", url)


def format_url(host: str, port: int, scheme: str = SCHEME) -> str:
    """The URL of an address; an IPv6 host gets its brackets."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def unix_path(url: str) -> str | None:
    """The path of an engine+unix:///path, which is absolute; None for other URLs. Raises InvalidArgumentError."""
    if not isinstance(url, str) or not url.startswith(f"{UNIX_SCHEME}:"):
        return None
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or parts.query or parts.fragment or not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise InvalidArgumentError(f"service URL {url!r} is malformed; write {UNIX_SCHEME}:///path/of/the/socket")
    return path


def check_url(url: str) -> str:
    """`url` itself, when it is a service URL of either form. Raises InvalidArgumentError."""
    if unix_path(url) is None:
        parse_url(url)
    return url


def normal_url(url: str) -> str:
    """A service URL of either form, with its port: one text for each address. Raises InvalidArgumentError."""
    path = unix_path(url)
    return format_url(*parse_url(url)) if path is None else format_unix_url(path)


def format_unix_url(path: str) -> str:
    """The URL of the Unix socket at an absolute path."""
    return f"{UNIX_SCHEME}://{quote(path)}"


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
    """(host, port) of "host:port", "host", "[v6]:port" or a service URL. Raises InvalidArgumentError."""
    if isinstance(text, str) and "://" not in text:
        has_port = not text.endswith("]") and ":" in text
        text = f"{SCHEME}://{text}" if has_port else f"{SCHEME}://{text}:{default_port}"
    return parse_url(text)
