"""`Cluster`: the members of etcd, one of which is asked at a time, and what their errors mean.

Every call that is made here may be repeated: reads by nature, transactions because each demands the state that the one
before it left (numbered.py), leases because one that is granted twice expires unused. So a call goes from member to
member until one answers or its time is over. A member without a leader refuses calls at once (`hasleader`), so that one
that was cut off is left.

Where the PEM files of the URL have changed, later calls use new channels with them. The former channels are closed once
the calls on them are answered; the stream of watches, which would never end, is opened anew at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from engine.aio.backoff import RetryDelay
from engine.clock import Clock
from engine.errors import (
    AlreadyClosedError,
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    DiskFullError,
    InvalidArgumentError,
    StorageError,
    TimeoutError,
)
from engine.metadata.etcd import messages as m
from engine.metadata.etcd.credentials import Credentials
from engine.metadata.etcd.url import EtcdUrl

if TYPE_CHECKING:
    import random

LOOK_S = 0.5  # between two looks at the files of the URL
_ATTEMPT_S_MAX = 3.0
_CHANNEL = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_RETRIED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED,
            grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED}  # fmt: skip
_TOKEN_OVER = ("invalid auth token", "revision of auth store is old", "user name is empty")
_NOT_CONNECTED = ("failed to connect", "connections to all backends failing", "DNS resolution failed")


class LeaseNotFoundError(Exception):
    """A lease has ended, or was never granted."""


class CompactedError(Exception):
    """A revision is asked for that etcd has forgotten."""


class UnsureError(Exception):
    """No member has answered in time, though one may have got the call."""


class Cluster:
    """Loop thread only."""

    def __init__(self, url: EtcdUrl, *, clock: Clock, rng: random.Random, timeout: float) -> None:
        """`timeout`: seconds that a call waits. Raises InvalidConfigurationError: a file cannot be used."""
        self.url = url
        self.timeout = timeout
        self.full = 0  # calls that were refused for want of space
        self._rng = rng
        self._clock = clock
        self.renewed: Callable[[], object] = lambda: None  # called when calls go to other channels
        self._credentials = Credentials(url) if url.tls else None
        self._at = rng.randrange(len(url.endpoints))
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._retired: set[asyncio.Task[None]] = set()  # which close former channels
        self._following: asyncio.Task[None] | None = None
        self._token: str | None = None
        self._closed = False

    # -- members ---------------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """The member that is asked."""
        return self.url.endpoints[self._at]

    def leave(self, endpoint: str) -> None:
        """Ask the next member, unless that was done since."""
        if endpoint == self.endpoint:
            self._at = (self._at + 1) % len(self.url.endpoints)

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        if self._closed:
            raise AlreadyClosedError("the metadata store is closed")
        channel = self._channels.get(endpoint)
        if channel is None:
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(endpoint, options=_CHANNEL)
            else:
                channel = grpc.aio.secure_channel(endpoint, self._credentials.present, options=_CHANNEL)
            self._channels[endpoint] = channel
        return channel

    @property
    def unusable(self) -> int:
        """How often the files of the URL had changed and could not be used."""
        return 0 if self._credentials is None else self._credentials.unusable

    def follow_files(self) -> None:
        """Look at the files of the URL again and again, until close()."""
        if self._credentials is not None:
            self._following = asyncio.get_running_loop().create_task(
                self._follow(self._credentials), name="certificates for etcd"
            )

    async def _follow(self, credentials: Credentials) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if credentials.look():
                channels, self._channels = self._channels, {}
                for channel in channels.values():
                    closing = asyncio.get_running_loop().create_task(self._retire(channel))
                    self._retired.add(closing)
                    closing.add_done_callback(self._retired.discard)
                self.renewed()

    @staticmethod
    async def _retire(channel: grpc.aio.Channel) -> None:
        """Close a channel when its calls are answered. None takes longer, but the stream of watches."""
        await channel.close(_ATTEMPT_S_MAX + 1)

    async def close(self) -> None:
        """Disconnect; nothing may be under way. Idempotent."""
        self._closed = True
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        channels, self._channels = list(self._channels.values()), {}
        retired = list(self._retired)
        for channel in channels:
            await channel.close()
        for task in retired:  # the calls have ended, and so it does
            await asyncio.wait([task])

    # -- calls -----------------------------------------------------------------------------------------------------

    def overdue(self, due: float) -> bool:
        """Whether it is too late for another attempt."""
        return self._clock.monotonic() + 0.01 >= due

    async def call(
        self, method: str, request: Any, *, due: float | None = None, failures: list[str] | None = None
    ) -> Any:
        """The answer of a member. `due`: until when it is repeated, by the clock; by default for `timeout`. `failures`:
        gets why attempts failed that a member may have received; with it, UnsureError says that one may have got it.

        Raises TimeoutError, and what _raise() does.
        """
        due = self._clock.monotonic() + self.timeout if due is None else due
        delay = RetryDelay(self._rng, initial=0.01, maximum=0.25)
        sent = False
        while True:
            endpoint = self.endpoint
            left = due - self._clock.monotonic()
            try:
                return await self._attempt(method, request, endpoint, min(max(left, 0.05), _ATTEMPT_S_MAX))
            except grpc.aio.AioRpcError as e:
                details = e.details() or ""
                if any(text in details for text in _TOKEN_OVER) and self.url.user is not None and left > 0:
                    self._token = None
                else:
                    self._raise(e)
                    self.leave(endpoint)
                if not any(text in details for text in _NOT_CONNECTED):
                    sent = True
                    if failures is not None:
                        failures.append(details or str(e.code()))
                if self.overdue(due):
                    raise self._silence(e, sent=sent, told=failures is not None) from None
            await asyncio.sleep(delay.next())

    def _silence(self, e: grpc.aio.AioRpcError, *, sent: bool, told: bool) -> Exception:
        text = f"the metadata store at {self.url.text} did not answer within {self.timeout:g} s ({e.details()})"
        if sent and told:
            return UnsureError(f"{text}; the outcome is unknown")
        return TimeoutError(f"{text}; {'it was sent, and may have been done' if sent else 'nothing was done'}")

    async def ask(self, endpoint: str, method: str, request: Any, timeout: float) -> Any:
        """The answer of one member, asked once. Raises ConnectError: it does not answer, or refuses."""
        try:
            return await self._attempt(method, request, endpoint, timeout)
        except grpc.aio.AioRpcError as e:
            raise ConnectError(f"etcd at {endpoint}: {e.details() or e.code().name}") from None

    async def _attempt(self, method: str, request: Any, endpoint: str, timeout: float) -> Any:
        path, kind, answer = m.UNARY[method]
        metadata = await self._metadata(endpoint, timeout) if method != "Authenticate" else None
        send = self._channel(endpoint).unary_unary(
            path, request_serializer=kind.SerializeToString, response_deserializer=answer.FromString
        )
        return await send(request, timeout=timeout, metadata=metadata)

    async def _metadata(self, endpoint: str, timeout: float) -> tuple[tuple[str, str], ...]:
        if self.url.user is None:
            return (("hasleader", "true"),)
        if self._token is None:
            asking = m.AuthenticateRequest(name=self.url.user, password=self.url.password or "")
            try:
                self._token = (await self._attempt("Authenticate", asking, endpoint, timeout)).token
            except grpc.aio.AioRpcError as e:
                if "authentication is not enabled" not in (e.details() or ""):
                    raise
                return (("hasleader", "true"),)
        return ("hasleader", "true"), ("token", self._token)

    def _raise(self, e: grpc.aio.AioRpcError) -> None:
        """Raise what an error means where repeating is of no use."""
        code, details = e.code(), e.details() or ""
        where = f"the metadata store at {self.url.text}"
        if "database space exceeded" in details:
            self.full += 1
            raise DiskFullError(f"{where} must have space, got NOSPACE: compact it, defragment it, disarm its alarm")
        if "requested lease not found" in details:
            raise LeaseNotFoundError
        if "revision has been compacted" in details:
            raise CompactedError
        if "authentication failed" in details or "user name is empty" in details:
            raise AuthenticationError(f"{where} must know user and password of its URL: {details}")
        if code is grpc.StatusCode.PERMISSION_DENIED:
            raise AuthorizationError(f"{where} must allow its user to read and write {self.url.prefix}: {details}")
        if code is grpc.StatusCode.INVALID_ARGUMENT or "message larger than max" in details:
            raise InvalidArgumentError(f"{where} refused a request: {details}")
        if code not in _RETRIED:
            raise StorageError(f"{where} failed: {code.name}: {details}")

    # -- streams ---------------------------------------------------------------------------------------------------

    async def open_watch(self) -> Any:
        """A stream that takes WatchRequests and gives WatchResponses. Raises AioRpcError, as its use does."""
        path, kind, answer = m.WATCH
        endpoint = self.endpoint
        metadata = await self._metadata(endpoint, _ATTEMPT_S_MAX)
        opened = self._channel(endpoint).stream_stream(
            path, request_serializer=kind.SerializeToString, response_deserializer=answer.FromString
        )
        return opened(metadata=metadata)

    def forget_token(self) -> None:
        """Authenticate again at the next call."""
        self._token = None

    async def keep_alive(self, lease: int, due: float) -> tuple[int, float]:
        """Prolong a lease: (its seconds from now on, 0 when it has ended; when that was sent, by the clock)."""
        delay = RetryDelay(self._rng, initial=0.01, maximum=0.25)
        path, kind, answer = m.KEEP_ALIVE
        while True:
            endpoint, sent = self.endpoint, self._clock.monotonic()
            try:
                metadata = await self._metadata(endpoint, _ATTEMPT_S_MAX)
                send = self._channel(endpoint).stream_stream(
                    path, request_serializer=kind.SerializeToString, response_deserializer=answer.FromString
                )
                timeout = min(max(due - sent, 0.05), 1.0)
                stream = send(timeout=timeout, metadata=metadata)
                await stream.write(m.LeaseKeepAliveRequest(ID=lease))
                answered = await stream.read()
                if answered is not grpc.aio.EOF:
                    stream.cancel()
                    return answered.TTL, sent
                why = "it closed the stream"
            except grpc.aio.AioRpcError as e:
                if any(text in (e.details() or "") for text in _TOKEN_OVER):
                    self._token = None
                else:
                    self._raise(e)
                why = e.details() or ""
            self.leave(endpoint)
            if self._clock.monotonic() >= due:
                raise TimeoutError(f"the metadata store at {self.url.text} did not prolong a session: {why}")
            await asyncio.sleep(delay.next())
