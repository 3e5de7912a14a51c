"""Service URLs: where brokers are reached, and how.

    engine://[token@]host[:port][,host2[:port]…]     over TCP
    engines://…[?ca=FILE&cert=FILE&key=FILE]         over TCP with TLS
    engine+unix://[token@]/path[?user=NAME]          over a Unix socket, which perhaps another user serves

`ServiceUrl` is what a user writes. An *address* is a URL of one broker without a token: engine://host:port, with or
without TLS, or engine+unix:///path. Brokers name themselves and each other by addresses.

A token is percent-encoded: it would end at the first `/`, `?`, `#` or `@`. No error, no repr and no log shows it, so
errors quote a URL without all that stands before its last `@`, and never what a parser of the library says of it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from engine.errors import InvalidArgumentError

SCHEME = "engine"
TLS_SCHEME = "engines"
UNIX_SCHEME = "engine+unix"
DEFAULT_PORT = 6650
WILDCARDS = ("0.0.0.0", "::", "")  # hosts that mean all interfaces of this machine
_FORM = "write engine://host:port"
_UNIX_FORM = f"write {UNIX_SCHEME}:///path/of/the/socket"
_FILES = ("ca", "cert", "key")

_PARTS = re.compile(
    r"(?P<scheme>[^:/]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?P<rest>.*)", re.S
)
_HOST = re.compile(r"[^\s\x00-\x1f\x7f\[\]:@,%\\<>\"^`{|}]+")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by what it says: `localhost`, or an address of the loopback interface."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class ServiceUrl:
    """A service URL in its parts. Made by parse(). `text`: the URL without its token.

    `addresses`: of its brokers, each engine://host:port (the port as it was written) or engine+unix:///path. `tls`:
    whether they speak TLS; then `ca`, `cert` and `key` may be paths of PEM files: the certificates to trust in place of
    the system's, and the client's own certificate and key. `user`: the name or id of another user that may serve the
    Unix socket.
    """

    text: str
    addresses: tuple[str, ...]
    token: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str | None = None

    @classmethod
    def parse(cls, url: str) -> ServiceUrl:
        """Raises InvalidArgumentError, which names what is wrong and no token."""
        parts = _split(url)
        scheme = parts["scheme"].lower()
        userinfo, at, authority = parts["authority"].rpartition("@")
        token = _token(url, userinfo) if at else None
        if scheme == UNIX_SCHEME:
            user = _user(url, parts["query"])
            address = format_unix_url(_socket_path(url, authority, {**parts, "query": None}))
            return cls(address if user is None else f"{address}?user={quote(user)}", (address,), token, user=user)
        if scheme not in (SCHEME, TLS_SCHEME) or parts["path"].strip("/") or parts["rest"]:
            hint = "; a token must be percent-encoded" if not at and "@" in url else ""
            raise _malformed(url, f"{_FORM}{hint}")
        query = parts["query"]
        if query is not None and scheme != TLS_SCHEME:
            raise _malformed(url, f"only {TLS_SCHEME}:// has options behind a question mark; {_FORM}")
        hosts = list(dict.fromkeys(authority.split(",")))
        for host in hosts:
            _host_and_port(url, host)
        text = f"{scheme}://{','.join(hosts)}{'' if query is None else f'?{query}'}"
        files = _options(url, query or "")
        return cls(text, tuple(f"{SCHEME}://{host}" for host in hosts), token, scheme == TLS_SCHEME, **files)


def check_url(url: str) -> str:
    """`url` itself, when it is a service URL. Raises InvalidArgumentError."""
    ServiceUrl.parse(url)
    return url


# -- addresses ---------------------------------------------------------------------------------------------------------


def parse_url(url: str) -> tuple[str, int]:
    """(host, port) of an address over TCP; the port may be left out. Raises InvalidArgumentError."""
    parts = _split(url)
    if parts["scheme"].lower() != SCHEME or parts["path"].strip("/") or parts["query"] is not None or parts["rest"]:
        raise _malformed(url)
    return _host_and_port(url, parts["authority"])


def format_url(host: str, port: int, scheme: str = SCHEME) -> str:
    """The URL of an address; an IPv6 host gets its brackets."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def unix_path(url: str) -> str | None:
    """The path of an address engine+unix:///path, which is absolute; None for others. Raises InvalidArgumentError."""
    if not isinstance(url, str) or not url.startswith(f"{UNIX_SCHEME}:"):
        return None
    parts = _split(url)
    return _socket_path(url, parts["authority"], parts)


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


# -- parts -------------------------------------------------------------------------------------------------------------


def _split(url: str) -> dict[str, str]:
    if not isinstance(url, str):
        raise InvalidArgumentError(f"service URL must be text, got {type(url).__name__}; {_FORM}")
    found = _PARTS.fullmatch(url)
    if found is None:
        raise _malformed(url, _UNIX_FORM if url.startswith(f"{UNIX_SCHEME}:") else _FORM)
    return found.groupdict()


def _host_and_port(url: str, text: str) -> tuple[str, int]:
    """Of host, host:port, [v6] or [v6]:port."""
    if text.startswith("["):
        host, bracket, behind = text[1:].partition("]")
        if not bracket or not _is_v6(host) or (behind and not behind.startswith(":")):
            raise _malformed(url)
        host, port = unquote(host).lower(), behind[1:]
    else:
        host, _, port = text.partition(":")
        if not _HOST.fullmatch(host):
            raise _malformed(url)
        host = host.lower()
    if not port:
        return host, DEFAULT_PORT
    if not (port.isascii() and port.isdecimal() and int(port) <= 0xFFFF):
        raise _malformed(url, f"a port must be a number up to 65535; {_FORM}")
    return host, int(port)


def _is_v6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(unquote(host))
    except ValueError:
        return False
    return True


def _socket_path(url: str, authority: str, parts: Mapping[str, str | None]) -> str:
    path = unquote(parts["path"] or "")
    if authority or parts["query"] is not None or parts["rest"] or not path.startswith("/") or path.endswith("/"):
        raise _malformed(url, _UNIX_FORM)
    if "\0" in path:
        raise _malformed(url, _UNIX_FORM)
    return path


def _token(url: str, userinfo: str) -> str:
    token = unquote(userinfo)
    if not token or not token.isprintable():
        raise _malformed(url, f"a token must be printable text, percent-encoded; {_FORM}")
    return token


def _options(url: str, query: str) -> dict[str, str]:
    """The files that a query names."""
    found: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name not in _FILES or name in found or not value:
            raise _malformed(url, f"its options must be {', '.join(_FILES)}, each once, with the path of a PEM file")
        found[name] = unquote(value)
    if "key" in found and "cert" not in found:
        raise _malformed(url, "key must be given together with cert")
    return found


def _user(url: str, query: str | None) -> str | None:
    if query is None:
        return None
    name, _, value = query.partition("=")
    user = unquote(value)
    if name != "user" or not user or not user.isprintable():
        raise _malformed(url, f"its option must be user, with the name or id of a user; {_UNIX_FORM}")
    return user


def _malformed(url: str, hint: str = _FORM) -> InvalidArgumentError:
    return InvalidArgumentError(f"service URL {_masked(url)!r} is malformed; {hint}")


def _masked(url: str) -> str:
    """Without what stands before the last @, which may be a secret."""
    return re.sub(r"((?:^[^:/@]*://)?).*@", r"\1…@", url, count=1, flags=re.S)
