"""The admin API over HTTP: requests as the table of operations says, errors rebuilt from their JSON."""

from __future__ import annotations

import builtins
import ssl
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import aiohttp
from yarl import URL

from engine.client.base.options import Token
from engine.errors import (
    AlreadyClosedError,
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    EngineError,
    InvalidConfigurationError,
    NotFoundError,
    TimeoutError,
    UnknownOutcomeError,
)
from engine.model.admin_methods import AdminMethods
from engine.model.admin_requests import NO_BODY, Operation, Request
from engine.wire.connector import Tls, present
from engine.wire.tcp import reason

R = TypeVar("R")

# For answers that carry no code of ours, as from a proxy in between.
_BY_STATUS: dict[int, type[EngineError]] = {401: AuthenticationError, 403: AuthorizationError, 404: NotFoundError}


class HttpAdmin(AdminMethods):
    """An AdminBackend for one broker's admin URL. Made on the loop."""

    def __init__(self, url: str, *, token: Token | None, timeout: float, tls: Tls | None = None) -> None:
        """Raises InvalidConfigurationError: the token would be sent in the clear although the client uses TLS."""
        self._url = URL(url.rstrip("/"))
        if token is not None and tls is not None and self._url.scheme != "https":
            raise InvalidConfigurationError(
                f"admin_url of the broker must be an https:// address where the client uses TLS, got {url!r:.200}: "
                "the token would be sent in the clear; set tls_cert of the broker, or admin_url to where TLS is served"
            )
        self._timeout = timeout
        self._closed = False
        self._token = token
        self._tls = tls
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout))

    async def call(self, operation: Operation[R], arguments: Mapping[str, Any]) -> R:
        """One request.

        Raises the API's error, ConnectError, TimeoutError; UnknownOutcomeError when the connection was lost before the
        answer to what changes something.
        """
        return operation.result.of_json(await self._send(operation.request(arguments)))

    async def _call(self, operation: Operation[R], arguments: Mapping[str, Any]) -> R:
        return await self.call(operation, arguments)

    async def _send(self, request: Request) -> Any:
        url = self._url.with_path(request.path, encoded=True)
        if request.query:
            url = url.with_query(request.query)
        if self._closed:
            raise AlreadyClosedError("the client was closed")
        body = None if request.body is NO_BODY else request.body
        try:
            async with self._session.request(
                request.verb, url, json=body, headers=self._headers(), allow_redirects=False, ssl=self._context()
            ) as response:
                if 300 <= response.status < 400:
                    raise ConnectError(f"the admin API at {self._url} must not redirect, got {response.status}")
                answer = await _json(response)
                if response.status >= 400:
                    raise _error(response.status, answer)
                return answer
        except builtins.TimeoutError as e:
            if isinstance(e, EngineError):
                raise
            raise TimeoutError(f"the admin API at {self._url} did not answer within {self._timeout:g} s") from e
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as e:
            why = reason(e.os_error) if isinstance(e, aiohttp.ClientConnectorError) else str(e)
            raise ConnectError(f"cannot connect to the admin API at {self._url}: {why}") from e
        except aiohttp.ClientError as e:
            why = f"the connection to the admin API at {self._url} was lost: {str(e) or type(e).__name__}"
            if self._closed:
                why = "the client was closed"
            if request.verb == "GET":
                raise (AlreadyClosedError if self._closed else ConnectError)(why) from e
            raise UnknownOutcomeError(f"{why}; whether the change was made is not known: look, then repeat it") from e

    def _headers(self) -> dict[str, str]:
        token = self._token() if callable(self._token) else self._token
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _context(self) -> ssl.SSLContext | Literal[True]:
        return present(self._tls) or True

    async def close(self) -> None:
        """Close the HTTP session."""
        self._closed = True
        await self._session.close()


def may_repeat(verb: str, error: EngineError) -> bool:
    """Whether a request that ended with this error may be repeated elsewhere: it reads, or it was never sent."""
    unsent = isinstance(error.__cause__, aiohttp.ClientConnectorError | aiohttp.InvalidURL)
    return isinstance(error, ConnectError) and (verb == "GET" or unsent)


async def _json(response: aiohttp.ClientResponse) -> Any:
    """The answer's JSON, or its text where it says that it is text; None for an empty one or one that is no JSON."""
    if response.content_type == "text/plain" and response.status == 200:
        return await response.text()
    try:
        return await response.json(content_type=None) if await response.read() else None
    except ValueError:
        return None


def _error(status: int, answer: Any) -> EngineError:
    if isinstance(answer, dict) and isinstance(answer.get("reason"), str):
        code = answer.get("code")
        if isinstance(code, int):
            return EngineError.from_code(code, answer["reason"])
        return _BY_STATUS.get(status, EngineError)(answer["reason"])
    return _BY_STATUS.get(status, EngineError)(f"the admin API answered {status}")
