"""The admin API over HTTP: the specification's REST paths, errors rebuilt from their JSON."""

from __future__ import annotations

import builtins
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from engine.errors import (
    AlreadyClosedError,
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    CorruptionError,
    EngineError,
    InvalidArgumentError,
    InvalidConfigurationError,
    NotFoundError,
    ProtocolError,
    TimeoutError,
    UnknownOutcomeError,
)
from engine.model.autoscale import AutoScalePolicyOverride
from engine.model.names import SegmentName, TopicName
from engine.wire.tcp import reason

SCALABLE = "/admin/v2/scalable"
SEGMENTS = "/admin/v2/segments"
NAMESPACES = "/admin/v2/namespaces"
TRANSACTIONS = "/admin/v2/transactions"
CONFIGURATION = "/admin/v2/brokers/configuration"

# For answers that carry no code of ours, as from a proxy in between.
_BY_STATUS: dict[int, type[EngineError]] = {401: AuthenticationError, 403: AuthorizationError, 404: NotFoundError}


class HttpAdmin:
    """An AdminBackend for one broker's admin URL. Made on the loop."""

    def __init__(self, url: str, *, token: str | None, timeout: float, tls: ssl.SSLContext | None = None) -> None:
        """Raises InvalidConfigurationError: the token would be sent in the clear although the client uses TLS."""
        self._url = URL(url.rstrip("/"))
        if token is not None and tls is not None and self._url.scheme != "https":
            raise InvalidConfigurationError(
                f"admin_url of the broker must be an https:// address where the client uses TLS, got {url!r:.200}: "
                "the token would be sent in the clear; set tls_cert of the broker, or admin_url to where TLS is served"
            )
        self._timeout = timeout
        self._closed = False
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=timeout),
            headers=headers,
            connector=aiohttp.TCPConnector(ssl=True if tls is None else tls),
        )

    async def _call(
        self,
        method: str,
        *parts: str,
        under: str = SCALABLE,
        query: list[tuple[str, str]] | None = None,
        body: Any = None,
    ) -> Any:
        """One request; each of `parts` is one part of the path, whatever characters it holds.

        Raises the API's error, ConnectError, TimeoutError; UnknownOutcomeError when the connection was lost before the
        answer to what changes something.
        """
        url = self._url.with_path("/".join((under, *(_quote(p) for p in parts))), encoded=True)
        if query:
            url = url.with_query(query)
        if self._closed:
            raise AlreadyClosedError("the client was closed")
        try:
            async with self._session.request(method, url, json=body, allow_redirects=False) as response:
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
            if method == "GET":
                raise (AlreadyClosedError if self._closed else ConnectError)(why) from e
            raise UnknownOutcomeError(f"{why}; whether the change was made is not known: look, then repeat it") from e

    async def create_topic(
        self,
        topic: str,
        *,
        segments: int | None,
        properties: Mapping[str, str] | None,
        key_hash: str | None,
        durability: str | None,
        entry_buckets: int | None,
    ) -> None:
        """PUT /{tenant}/{namespace}/{topic}"""
        body = {
            "segments": segments,
            "properties": dict(properties or {}),
            "keyHash": key_hash,
            "durability": durability,
            "entryBuckets": entry_buckets,
        }
        await self._call("PUT", *_parts(topic), body={name: value for name, value in body.items() if value is not None})

    async def delete_topic(self, topic: str) -> None:
        """DELETE /{tenant}/{namespace}/{topic}"""
        await self._call("DELETE", *_parts(topic))

    async def list_topics(self, namespace: str, properties: Mapping[str, str] | None) -> list[str]:
        """GET /{tenant}/{namespace}"""
        query = [("property", f"{name}={value}") for name, value in (properties or {}).items()]
        return _list(await self._call("GET", *namespace.split("/"), query=query))

    async def get_metadata(self, topic: str) -> dict[str, Any]:
        """GET /{tenant}/{namespace}/{topic}"""
        return _map(await self._call("GET", *_parts(topic)))

    async def get_stats(self, topic: str) -> dict[str, Any]:
        """GET /{tenant}/{namespace}/{topic}/stats"""
        return _map(await self._call("GET", *_parts(topic), "stats"))

    async def split_segment(self, topic: str, segment_id: int) -> dict[str, Any]:
        """POST /{tenant}/{namespace}/{topic}/split/{segment}"""
        return _map(await self._call("POST", *_parts(topic), "split", str(segment_id)))

    async def merge_segments(self, topic: str, segment_id: int, other_id: int) -> dict[str, Any]:
        """POST /{tenant}/{namespace}/{topic}/merge/{segment}/{other}"""
        return _map(await self._call("POST", *_parts(topic), "merge", str(segment_id), str(other_id)))

    async def rebucket_segment(self, topic: str, segment_id: int, buckets: int) -> dict[str, Any]:
        """POST /{tenant}/{namespace}/{topic}/rebucket/{segment}?buckets=N"""
        query = [("buckets", str(buckets))]
        return _map(await self._call("POST", *_parts(topic), "rebucket", str(segment_id), query=query))

    async def create_segment(self, segment: str, subscriptions: Sequence[str]) -> None:
        """PUT /admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}"""
        await self._call("PUT", *_segment_parts(segment), under=SEGMENTS, body=list(subscriptions))

    async def terminate_segment(self, segment: str) -> None:
        """POST /admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}/terminate"""
        await self._call("POST", *_segment_parts(segment), "terminate", under=SEGMENTS)

    async def delete_segment(self, segment: str, force: bool) -> None:
        """DELETE /admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}"""
        query = [("force", "true")] if force else None
        await self._call("DELETE", *_segment_parts(segment), under=SEGMENTS, query=query)

    async def create_subscription(self, topic: str, subscription: str, *, initial_position: str) -> None:
        """PUT /{tenant}/{namespace}/{topic}/subscriptions/{subscription}"""
        body = {"initialPosition": initial_position}
        await self._call("PUT", *_parts(topic), "subscriptions", subscription, body=body)

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """DELETE /{tenant}/{namespace}/{topic}/subscriptions/{subscription}"""
        await self._call("DELETE", *_parts(topic), "subscriptions", subscription)

    async def seek_subscription(self, topic: str, subscription: str, when: str | int) -> None:
        """POST …/subscriptions/{subscription}/seek"""
        await self._call("POST", *_parts(topic), "subscriptions", subscription, "seek", body={"when": when})

    async def skip_messages(self, topic: str, subscription: str, segment_id: int, first: int, last: int) -> None:
        """POST …/subscriptions/{subscription}/skip"""
        body = {"segment": segment_id, "first": first, "last": last}
        await self._call("POST", *_parts(topic), "subscriptions", subscription, "skip", body=body)

    async def clear_backlog(self, topic: str, subscription: str) -> None:
        """POST …/subscriptions/{subscription}/clear-backlog"""
        await self._call("POST", *_parts(topic), "subscriptions", subscription, "clear-backlog")

    async def list_transactions(
        self, *, open_longer_than: float | None, segment: str | None, limit: int | None
    ) -> list[dict[str, Any]]:
        """GET /admin/v2/transactions"""
        asked = {"openLongerThan": open_longer_than, "segment": segment, "limit": limit}
        query = [(name, str(value)) for name, value in asked.items() if value is not None]
        return _list(await self._call("GET", under=TRANSACTIONS, query=query))

    async def get_transaction(self, ident: str) -> dict[str, Any]:
        """GET /admin/v2/transactions/{transaction}"""
        return _map(await self._call("GET", ident, under=TRANSACTIONS))

    async def abort_transaction(self, ident: str) -> None:
        """POST /admin/v2/transactions/{transaction}/abort"""
        await self._call("POST", ident, "abort", under=TRANSACTIONS)

    async def get_namespace_policies(self, namespace: str) -> dict[str, Any]:
        """GET /admin/v2/namespaces/{tenant}/{namespace}/policies"""
        return _map(await self._call("GET", *namespace.split("/"), "policies", under=NAMESPACES))

    async def set_namespace_policies(self, namespace: str, policies: Mapping[str, Any]) -> None:
        """PUT …/policies"""
        await self._call("PUT", *namespace.split("/"), "policies", under=NAMESPACES, body=dict(policies))

    async def remove_namespace_policies(self, namespace: str) -> None:
        """DELETE …/policies"""
        await self._call("DELETE", *namespace.split("/"), "policies", under=NAMESPACES)

    async def set_auto_scale_policy(self, topic: str, policy: Mapping[str, Any]) -> None:
        """PUT /{tenant}/{namespace}/{topic}/autoScalePolicy"""
        body = AutoScalePolicyOverride.of(policy).to_json()
        await self._call("PUT", *_parts(topic), "autoScalePolicy", body=body)

    async def get_auto_scale_policy(self, topic: str) -> dict[str, Any]:
        """GET /{tenant}/{namespace}/{topic}/autoScalePolicy"""
        return _policy(await self._call("GET", *_parts(topic), "autoScalePolicy"))

    async def remove_auto_scale_policy(self, topic: str) -> None:
        """DELETE /{tenant}/{namespace}/{topic}/autoScalePolicy"""
        await self._call("DELETE", *_parts(topic), "autoScalePolicy")

    async def set_namespace_auto_scale_policy(self, namespace: str, policy: Mapping[str, Any]) -> None:
        """PUT /admin/v2/namespaces/{tenant}/{namespace}/scalableTopicAutoScalePolicy"""
        body = AutoScalePolicyOverride.of(policy).to_json()
        await self._call("PUT", *namespace.split("/"), "scalableTopicAutoScalePolicy", under=NAMESPACES, body=body)

    async def get_namespace_auto_scale_policy(self, namespace: str) -> dict[str, Any]:
        """GET …/scalableTopicAutoScalePolicy"""
        parts = (*namespace.split("/"), "scalableTopicAutoScalePolicy")
        return _policy(await self._call("GET", *parts, under=NAMESPACES))

    async def remove_namespace_auto_scale_policy(self, namespace: str) -> None:
        """DELETE …/scalableTopicAutoScalePolicy"""
        await self._call("DELETE", *namespace.split("/"), "scalableTopicAutoScalePolicy", under=NAMESPACES)

    async def get_metrics(self) -> str:
        """GET /metrics"""
        return str(await self._call("GET", under="/metrics"))

    async def get_dynamic_configuration(self) -> dict[str, Any]:
        """GET /admin/v2/brokers/configuration/values"""
        return _map(await self._call("GET", "values", under=CONFIGURATION))

    async def get_runtime_configuration(self) -> dict[str, Any]:
        """GET /admin/v2/brokers/configuration/runtime"""
        return _map(await self._call("GET", "runtime", under=CONFIGURATION))

    async def set_dynamic_configuration(self, name: str, value: str | float) -> None:
        """POST /admin/v2/brokers/configuration/{name}/{value}"""
        await self._call("POST", name, str(value), under=CONFIGURATION)

    async def remove_dynamic_configuration(self, name: str) -> None:
        """DELETE /admin/v2/brokers/configuration/{name}"""
        await self._call("DELETE", name, under=CONFIGURATION)

    async def close(self) -> None:
        """Close the HTTP session."""
        self._closed = True
        await self._session.close()


def _policy(answer: Any) -> dict[str, Any]:
    """By our names. What only a newer broker knows is left out."""
    try:
        return AutoScalePolicyOverride.of_json(_map(answer)).to_mapping()
    except (InvalidArgumentError, CorruptionError) as e:
        raise ProtocolError(f"the admin API answered with a policy that is none: {e}") from e


def _map(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise ProtocolError(f"the admin API must answer with a JSON object, got {answer!r:.80}")
    return answer


def _list(answer: Any) -> list[Any]:
    if not isinstance(answer, list):
        raise ProtocolError(f"the admin API must answer with a JSON array, got {answer!r:.80}")
    return answer


def _parts(topic: str) -> tuple[str, str, str]:
    name = TopicName.parse(topic)
    return name.tenant, name.namespace, name.local


def _segment_parts(segment: str) -> tuple[str, str, str, str]:
    name = SegmentName.parse(segment)
    return name.topic.tenant, name.topic.namespace, name.topic.local, name.descriptor


def _quote(part: str) -> str:
    return quote(part, safe="")


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
