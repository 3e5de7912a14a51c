"""Which service a client connects to: its arguments, its URL, the environment; and that it shows no token."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import pytest

import engine
from engine.client.base.endpoint import DEFAULT_URL, Endpoint
from engine.errors import ConnectError, InvalidArgumentError
from tests.kit.fake_broker import FakeBroker

PEM = Path(__file__).parent.parent / "broker" / "tls"
CA, KEY = str(PEM / "cert.pem"), str(PEM / "key.pem")


def test_without_a_url_the_environment_says_all() -> None:
    said = {"ENGINE_URL": "engine://a,b", "ENGINE_TOKEN": "t"}
    assert Endpoint.of(None, None, None, said) == ("engine://a,b", ("engine://a", "engine://b"), "t", None, None)
    assert Endpoint.of(None, "mine", None, said).token == "mine"
    assert Endpoint.of(None, None, None, {**said, "ENGINE_URL": "engine://its@a"}).token == "its"
    assert Endpoint.of(None, None, None, {"ENGINE_TLS_CA": CA}).tls is not None
    assert Endpoint.of(None, None, None, {}) == (DEFAULT_URL, (DEFAULT_URL,), None, None, None)


def test_with_a_url_the_environment_says_nothing() -> None:
    said = {"ENGINE_URL": "engine://a", "ENGINE_TOKEN": "t", "ENGINE_TLS_CA": "missing"}
    assert Endpoint.of("engine://b", None, None, said) == ("engine://b", ("engine://b",), None, None, None)


def test_a_token_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n")
    said = {"ENGINE_TOKEN_FILE": str(tmp_path / "token"), "ENGINE_TOKEN": "t"}
    assert Endpoint.of(None, None, None, said).token == "from a file"
    with pytest.raises(InvalidArgumentError, match="ENGINE_TOKEN_FILE must be"):
        Endpoint.of(None, None, None, {"ENGINE_TOKEN_FILE": str(tmp_path / "none")})


def test_arguments_override_the_url() -> None:
    own = ssl.create_default_context()
    assert Endpoint.of("engines://its@a?ca=/missing", "mine", own)[2:] == ("mine", own, None)
    assert Endpoint.of("engine://a", None, own).tls is own


def test_tls_as_the_url_says(tmp_path: Path) -> None:
    assert Endpoint.of("engines://a", None, None).tls is not None
    trusting = Endpoint.of(f"engines://a?ca={CA}&cert={CA}&key={KEY}", None, None).context
    assert trusting is not None
    assert trusting.verify_mode is ssl.CERT_REQUIRED
    assert len(trusting.get_ca_certs()) == 1
    (tmp_path / "junk").write_text("junk")
    with pytest.raises(InvalidArgumentError, match=r"ca must be a PEM file of certificates, got .*junk"):
        Endpoint.of(f"engines://a?ca={tmp_path}/junk", None, None)
    with pytest.raises(InvalidArgumentError, match=r"cert and key must be PEM files that match, got .*junk"):
        Endpoint.of(f"engines://a?cert={CA}&key={tmp_path}/junk", None, None)


async def test_a_client_takes_its_url_from_the_environment_and_shows_no_token(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ENGINE_URL", "engine://s3cret@one,two")
    shown: list[Any] = []
    async with engine.AsyncClient(connector=broker) as client:
        assert client.service_url == "engine://one,two"
        assert client._options.token == "s3cret"
        shown += [repr(client), repr(client._options), repr(client._pool.home.addresses)]
        broker.reachable = False
        broker.cut()
        await broker.settle()
        with pytest.raises(ConnectError) as refused:
            await client._pool.get()
        shown.append(refused.value)
    assert "s3cret" not in f"{shown} {caplog.text}"


def test_a_blocking_client_does_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_URL", "engine://s3cret@one,two")
    client = engine.Client()
    try:
        assert (client.service_url, repr(client)) == ("engine://one,two", "<Client of engine://one,two>")
    finally:
        client.close()
