"""`Service` and `Connection`: a broker of Apache Pulsar, spoken to as one of its clients does.

A connection does one thing at a time: it asks and waits for the answer, or reads the messages of one consumer. What
comes in between, such as pings, is answered there.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError

from engine.errors import (
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    EngineError,
    InvalidArgumentError,
    NotFoundError,
    ProtocolError,
    TimeoutError,
    TooManyRequestsError,
)
from engine.limits import ENTRY_SIZE_MAX
from engine.pulsar import server_errors
from engine.pulsar.messages import FIELDS, Command, framed

WAIT_S = 30.0  # for an answer
_PROTOCOL = 19
_FRAME_MAX = 2 * ENTRY_SIZE_MAX
_REDIRECT, _CONNECT = 0, 1
_REDIRECTS_MAX = 20
_PORT, _TLS_PORT = 6650, 6651
_ERRORS: dict[int, type[EngineError]] = {
    server_errors.AUTHENTICATION: AuthenticationError,
    server_errors.AUTHORIZATION: AuthorizationError,
    server_errors.TOPIC_NOT_FOUND: NotFoundError,
    server_errors.NOT_READY: ConnectError,
    server_errors.PERSISTENCE: ConnectError,
    server_errors.TOO_MANY: TooManyRequestsError,
    server_errors.INVALID_TOPIC: InvalidArgumentError,
}


@dataclass(frozen=True, slots=True)
class Service:
    """How brokers are reached. `url`: pulsar://host:port or pulsar+ssl://host:port, of any broker, or several hosts
    with commas between them. `tls`: None for the system's certificates.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        scheme, mark, rest = self.url.partition("://")
        if scheme not in ("pulsar", "pulsar+ssl") or not mark or not rest.strip("/") or "/" in rest.rstrip("/"):
            raise InvalidArgumentError(f"a service URL must be pulsar://host:port, got {self.url!r:.200}")
        if "@" in rest:
            raise InvalidArgumentError("the URL of a service of Apache Pulsar must have no token in it")
        for address in self.addresses:
            _host_and_port(address)

    @property
    def secure(self) -> bool:
        return self.url.startswith("pulsar+ssl://")

    @property
    def addresses(self) -> list[str]:
        """A URL for each host."""
        scheme, _, rest = self.url.partition("://")
        return [f"{scheme}://{host}" for host in rest.rstrip("/").split(",")]

    async def connect(self) -> Connection:
        """To the first of the hosts that answers. Raises what the last of them does."""
        failure: EngineError | None = None
        for address in self.addresses:
            try:
                return await Connection.open(self, address)
            except ConnectError as e:
                failure = e
        assert failure is not None
        raise failure

    async def connect_to(self, topic: str) -> Connection:
        """To the broker that has a topic. Raises ConnectError, and what the broker refuses it with."""
        connection, authoritative = await self.connect(), False
        for _ in range(_REDIRECTS_MAX):
            try:
                found = await connection.ask("lookup", topic=topic, authoritative=authoritative)
            finally:
                await connection.close()
            url = (found.url_tls if self.secure else found.url) or ""
            if found.response not in (_REDIRECT, _CONNECT) or not url:
                raise ConnectError(f"no broker with{'' if self.secure else 'out'} TLS has {topic}: {found.message}")
            through = found.through_service_url
            connection = await Connection.open(self, self.addresses[0] if through else url, url if through else "")
            if found.response == _CONNECT:
                return connection
            authoritative = found.authoritative
        await connection.close()
        raise ConnectError(f"the lookup of {topic} is redirected more than {_REDIRECTS_MAX} times")


class Connection:
    """One socket."""

    def __init__(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._number = 0

    @classmethod
    async def open(cls, service: Service, address: str, behind: str = "") -> Connection:
        """`behind`: the URL of the broker that a proxy at `address` shall pass everything to.

        Raises ConnectError, AuthenticationError.
        """
        host, port = _host_and_port(address)
        tls = (service.tls or ssl.create_default_context()) if service.secure else None
        try:
            async with asyncio.timeout(WAIT_S):
                reader, writer = await asyncio.open_connection(host, port, ssl=tls)
        except (OSError, builtins.TimeoutError) as e:
            raise ConnectError(f"no connection to {address}: {str(e) or type(e).__name__}") from e
        made = cls(address, reader, writer)
        said: dict[str, Any] = {"client_version": "engine migrate", "protocol": _PROTOCOL}
        if service.token is not None:
            said |= {"auth_method": "token", "auth_data": service.token.encode()}
        if behind:
            said["proxy_to"] = behind.partition("://")[2]
        try:
            await made.say("connect", **said)
            await made._heard("connected")
        except BaseException:
            await made.close()
            raise
        return made

    async def say(self, name: str, /, **fields: Any) -> None:
        """Raises ConnectError."""
        try:
            self._writer.write(framed(name, **fields))
            await self._writer.drain()
        except OSError as e:
            raise self._lost(e) from e

    async def ask(self, name: str, answer: str = "", /, **fields: Any) -> Any:
        """The answer, which is of the name `answer`. Raises the error that is the answer; ConnectError."""
        self._number += 1
        await self.say(name, request=self._number, **fields)
        return await self._heard(answer or f"{name}_response")

    async def hear(self) -> tuple[str, Any, memoryview]:
        """The next command that is no ping, with what is behind it.

        Raises ConnectError, ProtocolError, TimeoutError: none comes for long.
        """
        while True:
            try:
                async with asyncio.timeout(WAIT_S):
                    size = int.from_bytes(await self._reader.readexactly(4), "big")
                    if not 4 <= size <= _FRAME_MAX:
                        raise ProtocolError(
                            f"a frame of {self.address} must have 4 to {_FRAME_MAX:,} bytes, got {size:,}"
                        )
                    frame = memoryview(await self._reader.readexactly(size))
            except builtins.TimeoutError as e:
                raise TimeoutError(f"{self.address} has said nothing for {WAIT_S:g} s") from e
            except (OSError, EOFError) as e:
                raise self._lost(e) from e
            end = 4 + int.from_bytes(frame[:4], "big")
            try:
                found = Command.FromString(bytes(frame[4:end]))
            except DecodeError as e:
                raise ProtocolError(f"{self.address} has sent what is no command of Apache Pulsar: {e}") from e
            name = FIELDS.get(found.type, "")
            if name == "ping":
                await self.say("pong")
            elif name:
                return name, getattr(found, name), frame[end:]

    async def _heard(self, wanted: str) -> Any:
        """The next command of that name. Raises the error that comes in its place."""
        while True:
            name, found, _ = await self.hear()
            if name == "error" or (name == wanted and "error" in type(found).DESCRIPTOR.fields_by_name
                                   and found.HasField("error")):  # fmt: skip
                kind = _ERRORS.get(found.error, EngineError)
                raise kind(f"{self.address} answers: {found.message or f'error {found.error}'}")
            if name == wanted:
                return found

    def _lost(self, error: Exception) -> ConnectError:
        return ConnectError(f"the connection to {self.address} is lost: {error or type(error).__name__}")

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def _host_and_port(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as e:
        raise InvalidArgumentError(f"a broker's URL must be pulsar://host:port, got {address!r:.200}") from e
    if not host:
        raise InvalidArgumentError(f"a broker's URL must be pulsar://host:port, got {address!r:.200}")
    return host, port or (_TLS_PORT if parts.scheme == "pulsar+ssl" else _PORT)
