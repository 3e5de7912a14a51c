"""`Endpoint`: which service a client connects to, and how: from its arguments, its URL, the environment."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import InvalidArgumentError
from engine.wire.url import DEFAULT_PORT as DEFAULT_PORT  # for the command line, too
from engine.wire.url import ServiceUrl as ServiceUrl
from engine.wire.url import format_url
from engine.wire.url import is_loopback as is_loopback
from engine.wire.url import parse_url as parse_url
from engine.wire.url import unix_path as unix_path

if TYPE_CHECKING:
    import random

    from engine.client.base.object_access import OpenStore
    from engine.storage.objects.ports import ObjectStore
    from engine.wire.connector import Tls

DEFAULT_URL = format_url("127.0.0.1", DEFAULT_PORT)

STORE_TIMEOUT_S = 10.0  # of a request to the store of objects
STORE_ATTEMPTS = 3  # to read an object; then brokers are asked


class Endpoint(NamedTuple):
    """`addresses`: of brokers; any of them will do. `tls`: None for brokers without TLS; a function, asked for each
    connection, where files may change. `user`: the id of another user that may serve the Unix socket.
    """

    url: str  # without its token
    addresses: tuple[str, ...]
    token: str | Callable[[], str] | None
    tls: Tls | None
    user: int | None = None

    @property
    def context(self) -> ssl.SSLContext | None:
        """TLS of a connection that is made now."""
        from engine.wire.connector import present

        return present(self.tls)

    @classmethod
    def of(
        cls,
        url: str | None,
        token: str | Callable[[], str] | None,
        tls: ssl.SSLContext | None,
        environment: Mapping[str, str] | None = None,
    ) -> Endpoint:
        """Of a client's arguments, which override what the URL says.

        `url` None: ENGINE_URL of the environment, and where neither it nor an argument says more, ENGINE_TOKEN_FILE,
        ENGINE_TOKEN and ENGINE_TLS_CA, as on the command line; without ENGINE_URL, the broker on this machine. Those
        belong to that URL, so with any other one the environment is not read. Raises InvalidArgumentError.
        """
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise InvalidArgumentError(f"tls must be an ssl.SSLContext, got {type(tls).__name__}")
        ca = None
        if url is None:
            environment = os.environ if environment is None else environment
            url = environment.get("ENGINE_URL") or DEFAULT_URL
            parsed = ServiceUrl.parse(url)
            token = token or parsed.token or _token_of(environment)
            ca = environment.get("ENGINE_TLS_CA") or None
        else:
            parsed = ServiceUrl.parse(url)
            token = parsed.token if token is None else token
        return cls(parsed.text, parsed.addresses, token, _context(parsed, tls, ca), _user_of(parsed.user))


def objects_of(
    objects: str | OpenStore | None, url: str | None, rng: random.Random, environment: Mapping[str, str] | None = None
) -> OpenStore | None:
    """How the store of objects is opened; None: it is not.

    `objects`: its URL, s3://bucket/prefix; None: ENGINE_OBJECTS of the environment, where the service's URL is from
    there, too (`url` is None). Credentials are always of the environment, as the store's ecosystem has them. Raises
    InvalidArgumentError.
    """
    environment = os.environ if environment is None else environment
    where = objects or (environment.get("ENGINE_OBJECTS") if objects is None and url is None else None)
    if not where or not isinstance(where, str):
        return where or None
    from engine.storage.objects.location import Location

    location = str(Location.parse(where))

    def open_store() -> ObjectStore:
        from engine.storage.objects.remote import RemoteObjectStore
        from engine.storage.objects.requests import RequestLimits

        limits = RequestLimits(timeout_s=STORE_TIMEOUT_S, attempts_max=STORE_ATTEMPTS)
        return RemoteObjectStore.open(location, environment, rng=rng, limits=limits)

    return open_store


def _token_of(environment: Mapping[str, str]) -> str | None:
    path = environment.get("ENGINE_TOKEN_FILE")
    if not path:
        return environment.get("ENGINE_TOKEN") or None
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not text"
        raise InvalidArgumentError(
            f"ENGINE_TOKEN_FILE must be the path of a file with a token, got {path}: {why}"
        ) from e


def _user_of(text: str | None) -> int | None:
    """Raises InvalidArgumentError."""
    if text is None:
        return None
    from engine.wire.users import user_id

    return user_id(text)


def _context(url: ServiceUrl, given: ssl.SSLContext | None, ca: str | None) -> Tls | None:
    """How TLS is spoken. `ca`: of the environment, where the URL names none."""
    if given is not None or not (url.tls or ca):
        return given
    from engine.client.base.certificates import Certificates

    return Certificates(url.ca or ca, url.cert, url.key)
