"""Checks of a server: its addresses, its certificate, its clock, other brokers, and what its metrics say of it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from engine.cli.doctor.certificates import REMEDIES, expiry, unverified
from engine.cli.doctor.finding import Finding, State, good, graded, problem, warning
from engine.cli.output import plural
from engine.client.admin.exposition import Metrics
from engine.client.base.endpoint import DEFAULT_PORT, ServiceUrl, parse_url, unix_path
from engine.client.base.options import Token
from engine.client.client import AsyncClient
from engine.errors import AuthenticationError, EngineError, UnsupportedError
from engine.model.units import size_text

BROKERS_MAX = 32  # of which each is asked
SKEW_S, SKEW_FAULTY_S = 2.0, 30.0  # beyond what cannot be told
POOL_SHARE_MAX = 0.8
START = "Start engine serve there, or correct the address."
OPEN = "Let the port through firewalls and security groups, or correct the address."


@dataclass(frozen=True, slots=True)
class Server:
    """How it is reached. `context`: TLS as clients use it, None for none."""

    url: ServiceUrl
    token: Token | None = field(repr=False)  # besides that of the URL, which it overrides
    context: ssl.SSLContext | None
    timeout: float  # seconds of each step

    def client(self, addresses: Sequence[str]) -> AsyncClient:
        """Of these addresses alone. Made on the loop."""
        if unix_path(addresses[0]) is not None:
            url = addresses[0]
        else:
            hosts = ",".join(address.partition("://")[2] for address in addresses)
            url = f"{'engine' if self.context is None else 'engines'}://{hosts}"
        token = self.url.token if self.token is None else self.token
        return AsyncClient(url, token=token, tls=self.context, operation_timeout=self.timeout)


@dataclass(frozen=True, slots=True)
class Answered:
    """What a broker says of itself and of others. `brokers`: client and admin URLs; None: it serves no admin API."""

    brokers: dict[str, str | None]
    metrics: Metrics


def address_checks(server: Server, name: str) -> dict[str, Callable[[], Iterator[Finding]]]:
    """One for each address, which run side by side. `name`: what it is the address of, "server" or "proxy"."""

    def of(address: str) -> Callable[[], Iterator[Finding]]:
        return lambda: reach(server, name, address)

    return {f"{name} {address}": of(address) for address in server.url.addresses}


def reach(server: Server, name: str, address: str) -> Iterator[Finding]:
    """The port of one address, its certificate, and the handshake of the protocol."""
    check = f"{name}.address"
    fault = dialled(check, address, server.timeout)
    yield fault or good(check, f"{address} answers")
    if fault:
        return
    if server.context is not None:
        verified, shown = shown_certificate(f"{name}.certificate", address, server.context, server.timeout)
        yield shown
        if not verified:
            return
    try:
        asyncio.run(_connect(server, address))
    except EngineError as e:
        yield _refused(f"{name}.handshake", address, e)
    else:
        yield good(f"{name}.handshake", f"{address} takes clients")


async def _connect(server: Server, address: str) -> None:
    async with server.client([address]) as client:
        await client.connect()


def dialled(check: str, address: str, timeout: float) -> Finding | None:
    """Connect and close; None: it answers."""
    try:
        _dial(address, timeout).close()
    except socket.gaierror as e:
        return problem(check, f"{address}: the name cannot be resolved: {e.strerror}", "Correct the name, or the DNS.")
    except TimeoutError:
        return problem(check, f"{address} does not answer within {timeout:g} s", OPEN)
    except OSError as e:
        return problem(check, f"{address}: {e.strerror or e}", START)
    return None


def _dial(address: str, timeout: float) -> socket.socket:
    path = unix_path(address)
    if path is None:
        host, port = parse_url(address)
        return socket.create_connection((host, port or DEFAULT_PORT), timeout)
    found = socket.socket(socket.AF_UNIX)
    found.settimeout(timeout)
    try:
        found.connect(path)
    except OSError:
        found.close()
        raise
    return found


def shown_certificate(check: str, address: str, context: ssl.SSLContext, timeout: float) -> tuple[bool, Finding]:
    """Whether a client trusts what the port shows, and the finding."""
    try:
        with _dial(address, timeout) as plain, context.wrap_socket(plain, server_hostname=parse_url(address)[0]) as tls:
            return True, expiry(check, address, tls.getpeercert() or {})
    except ssl.SSLCertVerificationError as e:
        return False, unverified(check, address, e)
    except OSError as e:
        text = f"{address} does not speak TLS: {e.strerror or e}"
        return False, problem(check, text, "Set tls_cert and tls_key of the server, or connect by engine://.")


def _refused(check: str, address: str, error: EngineError) -> Finding:
    remedy = "Look at the server's log."
    if isinstance(error, AuthenticationError):
        remedy = "Give the server's token: --token-file FILE, or ENGINE_TOKEN."
    return problem(check, f"{address}: {' '.join(str(error).split())}", remedy)


def service(server: Server) -> Iterator[Finding]:
    """The admin API, every broker that it lists, their clocks, and the metrics of the one that answers."""
    check = "server.admin"
    try:
        answered = asyncio.run(_ask(server))
    except UnsupportedError as e:
        yield warning(check, str(e), "Serve the admin API: engine serve --admin 127.0.0.1:8080.")
        return
    except EngineError as e:
        text = " ".join(str(e).split())
        yield problem(check, f"the admin API does not answer: {text}", f"Mend what is said of its addresses. {OPEN}")
        return
    yield good(check, f"answers for {plural(len(answered.brokers), 'broker')}")
    yield from conditions(answered.metrics)
    yield from _brokers(server, list(answered.brokers.items())[:BROKERS_MAX])


async def _ask(server: Server) -> Answered:
    """Of the broker that answers, whose addresses are those of its handshake, and of those that it lists."""
    async with server.client(server.url.addresses) as client:
        listed = await client.admin.list_brokers()
        metrics = Metrics(await client.admin.get_metrics())
        own = await client.pool.get()
        brokers = {own.broker_url: own.admin_url}
        if len(listed) > 1:  # a single one may list itself by a name that is no address
            brokers |= {str(one["url"]): one["adminUrl"] for one in listed}
        return Answered(brokers, metrics)


def conditions(metrics: Metrics) -> Iterator[Finding]:
    """What a broker's metrics say of its state."""
    if metrics.of("proxy_connections"):
        return
    for name, text, remedy in (
        ("storage_damaged_segments", "segments with damaged or missing files", "Restore their files from a copy."),
        (
            "storage_sync_failures_total",
            "syncs of files have failed",
            "Look at the disk and the kernel's log, and replace it.",
        ),
        ("storage_gaps_total", "logs go on above offsets that are lost", "Restore from a copy, and look at the disk."),
    ):
        if count := metrics.one(name):
            yield problem(f"server.{name.removesuffix('_total')}", f"{count:,.0f} {text}", remedy)
    for used_name, limit_name in (("memory_pool_used_bytes", "memory_pool_limit_bytes"), ("pool_used", "pool_limit")):
        for (pool,), used in metrics.by(used_name, "pool").items():
            limit = metrics.one(limit_name, pool=pool)
            if limit and used > limit * POOL_SHARE_MAX and pool != "read_cache":
                text = f"{pool}: {used:,.0f} of {limit:,.0f}"
                yield warning("server.pools", text, "Raise the pool's limit, or find the client that fills it.")
    yield good(
        "server.memory", f"{size_text(metrics.resident())} resident, {metrics.one('connections'):,.0f} connections"
    )


def _brokers(server: Server, brokers: list[tuple[str, str | None]]) -> Iterator[Finding]:
    """Each broker's own address, to which clients are redirected, whether it is ready, and its clock."""
    offsets: dict[str, float] = {}
    for url, admin in brokers:
        fault = dialled("server.broker", url, server.timeout)
        yield fault or good("server.broker", f"{url}, to which it sends clients, answers")
        if admin is None:
            continue
        try:
            offset, unsure, reasons = asked(admin, server.context, server.timeout)
        except ssl.SSLCertVerificationError as e:
            remedy = REMEDIES.get(e.verify_code, "Have the certificate issued again.")
            yield problem("server.ready", f"{admin}: {e.verify_message}", remedy)
        except (OSError, http.client.HTTPException, ValueError) as e:
            yield problem("server.ready", f"{admin} does not answer: {e}", OPEN)
        else:
            found = f"{url} is not ready: {', '.join(reasons)}" if reasons else f"{url} is ready"
            state = State.PROBLEM if reasons else State.GOOD
            yield graded("server.ready", state, found, "Mend what it names; the server's log has more.")
            yield skew("clock.server", f"{url} beside this machine", offset, unsure)
            offsets[url] = offset
    if len(offsets) > 1:
        yield skew("clock.brokers", "the brokers among themselves", max(offsets.values()) - min(offsets.values()), 1.0)


def asked(admin: str, context: ssl.SSLContext | None, timeout: float) -> tuple[float, float, list[str]]:
    """(seconds by which its clock is ahead of ours, by how much that may be wrong, why it is not ready)."""
    where = urlsplit(admin)
    host, port = where.hostname or "", where.port
    connection = (
        http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        if where.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=timeout)
    )
    try:
        connection.connect()
        began, from_start = time.time(), time.monotonic()
        connection.request("GET", "/ready")
        answer = connection.getresponse()
        took = time.monotonic() - from_start
        body = answer.read(65_536)
    finally:
        connection.close()
    date = parsedate_to_datetime(answer.getheader("Date", "")).timestamp() + 0.5  # in whole seconds
    return date - (began + took / 2), 0.5 + took / 2, [] if answer.status == 200 else _reasons(body, answer.status)


def _reasons(body: bytes, status: int) -> list[str]:
    """Of the answer to GET /ready; the HTTP status where it is not a broker's."""
    try:
        reasons = [f"{reason['what']}: {reason['why']}" for reason in json.loads(body)["reasons"]]
        return reasons or ["it does not say why"]  # where there are roles
    except (ValueError, KeyError, TypeError):
        return [f"HTTP status {status}"]


def skew(check: str, what: str, offset: float, unsure: float) -> Finding:
    """`unsure`: by how much the offset may be wrong."""
    sure = max(abs(offset) - unsure, 0.0)
    state = State.PROBLEM if sure > SKEW_FAULTY_S else State(sure > SKEW_S)
    found = f"{what}: {abs(offset):.1f} s {'ahead' if offset > 0 else 'behind'}, give or take {unsure:.1f} s"
    return graded(check, state, found, "Keep both clocks by the same time servers (chrony).")
