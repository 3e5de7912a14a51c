"""`EtcdUrl`: where the members of an etcd cluster are, and below which prefix Engine's keys lie.

    etcd://[user:password@]host[:port][,host2[:port]…]/prefix
    etcds://…/prefix[?ca=FILE&cert=FILE&key=FILE]              with TLS

User and password are percent-encoded. No error, no repr and no log shows them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from engine.errors import InvalidArgumentError

SCHEME = "etcd"
TLS_SCHEME = "etcds"
DEFAULT_PORT = 2379
_FORM = "write etcd://host:2379,host2:2379/prefix"
_FILES = ("ca", "cert", "key")
_PARTS = re.compile(r"(?P<scheme>etcds?)://(?P<authority>[^/?#]*)(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s\x00-\x1f\x7f\[\]:@,%\\<>\"^`{|}]+)(?::(?P<port>[0-9]{1,5}))?")


def is_etcd_url(text: str) -> bool:
    """Whether a metadata URL names etcd."""
    return text.startswith((f"{SCHEME}://", f"{TLS_SCHEME}://"))


@dataclass(frozen=True, slots=True)
class EtcdUrl:
    """A URL in its parts, made by parse(). `text`: without user and password. `endpoints`: host:port of members.

    `prefix`: begins and ends with "/"; every key of the store lies below it. `ca`, `cert`, `key`: paths of PEM files,
    the certificates to trust in place of the system's, and this client's own certificate and key.
    """

    text: str
    endpoints: tuple[str, ...]
    prefix: str
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @classmethod
    def parse(cls, url: str) -> EtcdUrl:
        """Raises InvalidArgumentError, which shows no password."""
        found = _PARTS.fullmatch(url) if isinstance(url, str) else None
        if found is None:
            raise _malformed(url)
        userinfo, at, hosts = found["authority"].rpartition("@")
        user, password = _credentials(url, userinfo) if at else (None, None)
        path = (found["path"] or "").strip("/")
        if not path:
            raise _malformed(url, "it must name a prefix, so that other applications may use the cluster, too")
        if found["query"] is not None and found["scheme"] != TLS_SCHEME:
            raise _malformed(url, f"only {TLS_SCHEME}:// has options behind a question mark")
        endpoints = tuple(dict.fromkeys(_endpoint(url, host) for host in hosts.split(",")))
        query = "" if found["query"] is None else f"?{found['query']}"
        text = f"{found['scheme']}://{','.join(endpoints)}/{path}{query}"
        files = _options(url, found["query"] or "")
        prefix = f"/{unquote(path)}/"
        return cls(text, endpoints, prefix, user, password, found["scheme"] == TLS_SCHEME, **files)


def _credentials(url: str, userinfo: str) -> tuple[str, str]:
    user, colon, password = userinfo.partition(":")
    if not user or not colon:
        raise _malformed(url, "before the @ stand user:password, percent-encoded")
    return unquote(user), unquote(password)


def _endpoint(url: str, text: str) -> str:
    found = _HOST.fullmatch(text)
    if found is None or (found["port"] and int(found["port"]) > 0xFFFF):
        raise _malformed(url)
    return text if found["port"] else f"{text}:{DEFAULT_PORT}"


def _options(url: str, query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name not in _FILES or name in found or not value:
            raise _malformed(url, f"its options must be {', '.join(_FILES)}, each once, with the path of a PEM file")
        found[name] = unquote(value)
    if ("key" in found) != ("cert" in found):
        raise _malformed(url, "cert and key must be given together")
    return found


def _malformed(url: object, hint: str = _FORM) -> InvalidArgumentError:
    masked = "…@" + url.rpartition("@")[2] if isinstance(url, str) and "@" in url else url
    return InvalidArgumentError(f"metadata URL {masked!r:.200} is malformed; {hint}")
