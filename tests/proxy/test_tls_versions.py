"""TLS at the ports of brokers and proxies: 1.2 and 1.3, and what is older or weak is refused."""

from __future__ import annotations

import asyncio
import ssl
import warnings
from pathlib import Path
from urllib.parse import urlsplit

import pytest

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
