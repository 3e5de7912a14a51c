"""TLS at the ports of brokers and proxies: 1.2 and 1.3, and what is older or weak is refused."""

from __future__ import annotations

import asyncio
import ssl
import warnings
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.tls import context_to_brokers
from engine.client.base.endpoint import Endpoint
from engine.proxy.config import ProxyConfig
from engine.proxy.server import _to_brokers

TLS = Path(__file__).parent.parent / "broker" / "tls"  # self-signed, for 127.0.0.1
CERTIFICATE = {"tls_cert": str(TLS / "cert.pem"), "tls_key": str(TLS / "key.pem")}
V = ssl.TLSVersion
REFUSED = (ssl.SSLError, ConnectionResetError)  # the latter where the end came before the alert was read


def offering(least: V, most: V, ciphers: str) -> ssl.SSLContext:
    """A client that offers just these, whatever the machine's policy is."""
    context = ssl.create_default_context(cafile=CERTIFICATE["tls_cert"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the old versions
        context.minimum_version, context.maximum_version = least, most
    context.set_ciphers(ciphers + ":@SECLEVEL=0")
    return context


async def agreed(url: str, context: ssl.SSLContext) -> str | None:
    """The version that the port at `url` has agreed to."""
    at = urlsplit(url)
    _, writer = await asyncio.open_connection(at.hostname, at.port, ssl=context)
    version: str | None = writer.get_extra_info("ssl_object").version()
    writer.transport.abort()
    return version


async def test_every_port_takes_tls_1_2_and_1_3_with_strong_ciphers_alone(serve) -> None:
    async with serve(CERTIFICATE, broker_tls_ca=CERTIFICATE["tls_cert"], **CERTIFICATE) as front:
        broker = front.broker
        for url in (front.url, front.admin_url, broker.service_url, broker.admin_url):
            assert await agreed(url, offering(V.TLSv1_2, V.TLSv1_2, "DEFAULT")) == "TLSv1.2"
            assert await agreed(url, offering(V.TLSv1_3, V.TLSv1_3, "DEFAULT")) == "TLSv1.3"
            for least, most, ciphers in (
                (V.TLSv1, V.TLSv1, "ALL"),
                (V.TLSv1_1, V.TLSv1_1, "ALL"),
                (V.TLSv1_2, V.TLSv1_2, "aNULL:eNULL"),
                (V.TLSv1_2, V.TLSv1_2, "kRSA"),  # without forward secrecy
            ):
                offered = offering(least, most, ciphers)
                with pytest.raises(REFUSED, match=r"(?i)alert|^$|reset"):  # by the port, not by the client itself
                    await agreed(url, offered)


def to_brokers() -> ssl.SSLContext | None:
    return context_to_brokers(BrokerConfig(cluster_tls_ca=CERTIFICATE["tls_cert"], **CERTIFICATE))


def of_a_proxy() -> ssl.SSLContext | None:
    brokers = ("engine://127.0.0.1:1",)
    return _to_brokers(ProxyConfig(brokers=brokers, broker_tls_ca=CERTIFICATE["tls_cert"], **CERTIFICATE))


def of_a_client() -> ssl.SSLContext | None:
    return Endpoint.of(f"engines://127.0.0.1:1?ca={CERTIFICATE['tls_cert']}", None, None).context


@pytest.mark.parametrize("made", [to_brokers, of_a_proxy, of_a_client])
async def test_nobody_speaks_to_a_port_with_less(made) -> None:
    context = made()
    assert context is not None
    for most, fine in ((V.TLSv1_1, False), (V.TLSv1_2, True), (V.TLSv1_3, True)):
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(CERTIFICATE["tls_cert"], CERTIFICATE["tls_key"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            server.minimum_version, server.maximum_version = V.TLSv1, most
        server.set_ciphers("ALL:@SECLEVEL=0")
        listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=server)
        async with listener:
            url = "engines://{}:{}".format(*listener.sockets[0].getsockname())
            if fine:
                assert await agreed(url, context) == ("TLSv1.2" if most is V.TLSv1_2 else "TLSv1.3")
            else:
                with pytest.raises(REFUSED):
                    await agreed(url, context)
