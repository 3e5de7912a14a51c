"""Service URLs: what they say, what is refused, and that no error shows a token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidArgumentError
from engine.wire.url import ServiceUrl, is_loopback, parse_url

A, B = "engine://a:1", "engine://b"


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("engine://a:1", ServiceUrl("engine://a:1", (A,))),
        ("engine://a:1/", ServiceUrl("engine://a:1", (A,))),
        ("engine://a:1,b,a:1", ServiceUrl("engine://a:1,b", (A, B))),
        ("engine://[::1]:7,[fe80::1%25eth0]",
         ServiceUrl("engine://[::1]:7,[fe80::1%25eth0]", ("engine://[::1]:7", "engine://[fe80::1%25eth0]"))),
        ("engine://s3%2Fcr%40t@a:1,b", ServiceUrl("engine://a:1,b", (A, B), "s3/cr@t")),
        ("engine://a+b=@b", ServiceUrl("engine://b", (B,), "a+b=")),
        ("engine://user:pass@b", ServiceUrl("engine://b", (B,), "user:pass")),
        ("engines://b", ServiceUrl("engines://b", (B,), tls=True)),
        ("engines://t@a:1,b?ca=/x%20y.pem&cert=c.pem&key=k.pem",
         ServiceUrl("engines://a:1,b?ca=/x%20y.pem&cert=c.pem&key=k.pem", (A, B), "t", True, "/x y.pem", "c.pem",
                    "k.pem")),
        ("engine+unix:///run/a%20b", ServiceUrl("engine+unix:///run/a%20b", ("engine+unix:///run/a%20b",))),
        ("engine+unix://t@/run/e@f", ServiceUrl("engine+unix:///run/e%40f", ("engine+unix:///run/e%40f",), "t")),
    ],
)  # fmt: skip
def test_what_a_url_says(url: str, meant: ServiceUrl) -> None:
    assert ServiceUrl.parse(url) == meant


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://a", "write engine://host:port"),
        ("a:1", "write engine://host:port"),
        ("", "write engine://host:port"),
        (None, "must be text, got NoneType"),
        ("engine://", "malformed"),
        ("engine://a,,b", "malformed"),
        ("engine://a,", "malformed"),
        ("engine://a b", "malformed"),
        ("engine://a:b", "a port must be a number up to 65535"),
        ("engine://a:65536", "a port must be a number up to 65535"),
        ("engine://a:٣", "a port must be a number up to 65535"),
        ("engine://::1", "malformed"),
        ("engine://[::1", "malformed"),
        ("engine://[::1]7", "malformed"),
        ("engine://[::x]", "malformed"),
        ("engine://a/topic", "malformed"),
        ("engine://a#b", "malformed"),
        ("engine://a?ca=x", "only engines:// has options"),
        ("engines://a?verify=no", "ca, cert, key"),
        ("engines://a?ca=", "ca, cert, key"),
        ("engines://a?ca=x&ca=y", "each once"),
        ("engines://a?key=x", "together with cert"),
        ("engine://@a", "a token must be"),
        ("engine://%0a@a", "a token must be"),
        ("engine+unix://host/x", "write engine.unix:///path"),
        ("engine+unix:///x/", "write engine.unix:///path"),
        ("engine+unix:///x?ca=y", "write engine.unix:///path"),
    ],
)
def test_what_is_malformed_is_refused(url: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        ServiceUrl.parse(url)


@pytest.mark.parametrize("url", ["engine://a,b", "engines://a", "engine://t@a", "engine+unix:///x", "engine://a?ca=x"])
def test_the_address_of_one_broker_is_no_more_than_that(url: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    ["engine://s3cret@h:x", "engine://s3/s3cret@h", "engine://s3?s3cret@h", "engine://s3#s3cret@h", "s3cret@h",
     "engine://s3cret@h,,i", "engine://s3\ns3cret@h b", "engine://a@s3cret@[h", "engine+unix://s3cret@h/x"],
)  # fmt: skip
def test_no_error_shows_a_token(url: str) -> None:
    for parse in (ServiceUrl.parse, parse_url):
        with pytest.raises(InvalidArgumentError) as refused:
            parse(url)
        assert "s3cret" not in str(refused.value)
        assert refused.value.__cause__ is None
        assert refused.value.__context__ is None
    assert "s3cret" not in repr(ServiceUrl.parse("engine://s3cret@h"))


def test_a_token_that_is_not_encoded_is_explained() -> None:
    with pytest.raises(InvalidArgumentError, match="percent-encoded"):
        ServiceUrl.parse("engine://a/b@h")


@given(st.text())
def test_any_text_is_a_url_or_refused(text: str) -> None:
    for url in (text, f"engine://{text}", f"engines://{text}", f"engine+unix://{text}"):
        try:
            found = ServiceUrl.parse(url)
        except InvalidArgumentError:
            continue
        assert found.addresses
        again = ServiceUrl.parse(found.text)
        assert (again.addresses, again.token) == (found.addresses, None)


@pytest.mark.parametrize(
    ("host", "is_so"),
    [("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::1%lo", True), ("0.0.0.0", False),
     ("", False), ("::", False), ("192.0.2.1", False), ("fe80::1%eth0", False), ("localhost.example.org", False)],
)  # fmt: skip
def test_what_a_loopback_address_is_is_said_once(host: str, is_so: bool) -> None:
    assert is_loopback(host) is is_so
