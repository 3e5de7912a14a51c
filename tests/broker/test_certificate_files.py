"""Files of certificates that are replaced under a running broker or proxy: read again, once they are whole."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.broker.settings import certificate_files
from engine.broker.settings.certificate_files import CertificateFiles
from engine.errors import InvalidConfigurationError
from engine.proxy.config import ProxyConfig
from engine.proxy.server import Proxy
from tests.kit.certificates import Authority

END_S = 30.0


class Watched:
    """Two files, and how often they were read."""

    def __init__(self, directory: Path) -> None:
        self.cert, self.key = directory / "cert", directory / "key"
        self.cert.write_text("one")
        self.key.write_text("one")
        self.reads: list[tuple[str, str]] = []
        self.error: InvalidConfigurationError | None = None
        named = SimpleNamespace(tls_cert=str(self.cert), tls_key=str(self.key), tls_client_ca=None)
        self.files = CertificateFiles(lambda: named, self._read)

    def _read(self, named: SimpleNamespace) -> None:
        self.reads.append((Path(named.tls_cert).read_text(), Path(named.tls_key).read_text()))
        if self.error is not None:
            raise self.error

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.files.look()


def test_files_that_stay_as_they_are_are_not_read(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.look(5)
    assert not watched.reads


def test_files_are_read_once_they_stand_still(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.cert.write_text("second")
    watched.look()
    watched.key.write_text("second")
    watched.look()
    assert not watched.reads
    watched.look(5)
    assert watched.reads == [("second", "second")]


def test_a_file_that_is_away_for_a_while_is_waited_for(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.cert.unlink()
    watched.look()
    watched.cert.write_text("second")
    watched.look(2)
    assert watched.reads == [("second", "one")]


def test_files_that_cannot_be_used_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(tmp_path)
    watched.error = InvalidConfigurationError("tls_cert must be PEM")
    watched.cert.write_text("second")
    watched.look(5)
    assert [r.getMessage() for r in caplog.records] == ["the certificates stay as they were: tls_cert must be PEM"]
    watched.error = None
    watched.key.write_text("second")
    watched.look(5)
    assert len(watched.reads) == 2


async def shown(host: str, port: int) -> bytes:
    """The certificate that a port shows."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found
    finally:
        writer.close()


async def until_another_is_shown(address: tuple[str, int], before: bytes) -> None:
    async with asyncio.timeout(END_S):
        while await shown(*address) == before:
            pass


@pytest.mark.parametrize("port", ["clients", "admin"])
async def test_a_broker_shows_the_new_certificate(start_broker, tmp_path: Path, monkeypatch, port: str) -> None:
    monkeypatch.setattr(certificate_files, "LOOK_S", 0.01)
    authority = Authority(tmp_path)
    cert, key = authority.certify("127.0.0.1")
    async with start_broker(tls_cert=cert, tls_key=key) as broker:
        ports = {"clients": await broker.serve("127.0.0.1", 0), "admin": await broker.serve_admin("127.0.0.1", 0)}
        before = await shown(*ports[port])
        authority.certify("127.0.0.1")
        await until_another_is_shown(ports[port], before)


@pytest.mark.parametrize("port", ["clients", "admin"])
async def test_a_proxy_shows_the_new_certificate(tmp_path: Path, monkeypatch, port: str) -> None:
    monkeypatch.setattr(certificate_files, "LOOK_S", 0.01)
    authority = Authority(tmp_path)
    cert, key = authority.certify("127.0.0.1")
    proxy = Proxy(ProxyConfig(brokers=("engine://127.0.0.1:1",), tls_cert=cert, tls_key=key))
    try:
        ports = {"clients": await proxy.serve("127.0.0.1", 0), "admin": await proxy.serve_admin("127.0.0.1", 0)}
        before = await shown(*ports[port])
        authority.certify("127.0.0.1")
        await until_another_is_shown(ports[port], before)
    finally:
        await proxy.close()
