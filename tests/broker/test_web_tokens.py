"""JSON Web Tokens: the four algorithms, and every way to pass one off as valid."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

import engine
from engine.broker.rights.web_tokens import WebTokens
from engine.errors import AuthenticationError, InvalidConfigurationError
from engine.wire.commands import Command
from tests.kit.peer import Peer, listening, until

SECRET = "0123456789abcdef0123456789abcdef"
KEYS = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}


def pem(key) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def jwks(ident: str | None = None) -> str:
    key = {"kty": "oct", "k": b64(SECRET.encode())}
    return json.dumps({"keys": [key if ident is None else {**key, "kid": ident}]})


def token(algorithm: str = "HS256", key=SECRET, *, headers=None, **claims) -> str:
    return jwt.encode({"sub": "ann", "exp": time.time() + 600, **claims}, key, algorithm, headers=headers)


@pytest.fixture
def verifier(tmp_path):
    def make(text: str, audience: str | None = None, claim: str = "sub") -> WebTokens:
        path = tmp_path / "keys"
        path.write_text(text)
        return WebTokens(str(path), audience, claim)

    return make


@pytest.mark.parametrize("algorithm", KEYS)
def test_public_keys_in_pem_and_in_a_jwks_verify_their_algorithm(verifier, algorithm):
    key = KEYS[algorithm]
    assert verifier("".join(map(pem, KEYS.values()))).verify(token(algorithm, key)).role == "ann"
    entry = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    found = verifier(json.dumps({"keys": [{**entry, "kid": "1"}]}))
    assert found.verify(token(algorithm, key, headers={"kid": "1"})).role == "ann"
    with pytest.raises(AuthenticationError, match="the token is invalid"):
        found.verify(token(algorithm, key, headers={"kid": "2"}))


def test_a_secret_is_in_a_jwks(verifier):
    assert verifier(jwks()).verify(token()).role == "ann"
    assert verifier(jwks(), "engine", "role").verify(token(aud="engine", role="bob")).role == "bob"


def _confused(verifier, algorithm):
    """Signed by HMAC with the public key, as a verifier that takes the algorithm from the token would accept it."""
    public = pem(KEYS[algorithm])
    head = b64(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
    body = b64(json.dumps({"sub": "ann", "exp": time.time() + 600}).encode())
    signature = hmac.new(public.encode(), f"{head}.{body}".encode(), hashlib.sha256).digest()
    return verifier(public), f"{head}.{body}.{b64(signature)}"


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_public_key_is_no_secret(verifier, algorithm):
    there, forged = _confused(verifier, algorithm)
    with pytest.raises(AuthenticationError, match="the token is invalid"):
        there.verify(forged)


def test_none_is_no_algorithm(verifier):
    for name in ("none", "None", "NONE"):
        head = b64(json.dumps({"alg": name}).encode())
        body = token().split(".")[1]
        for signature in ("", token().split(".")[2]):
            with pytest.raises(AuthenticationError, match="the token is invalid"):
                verifier(jwks()).verify(f"{head}.{body}.{signature}")


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": time.time() - 10}, "has expired"),
        ({"nbf": time.time() + 86_400}, "not valid yet"),  # the claim is made when tests are collected
        ({"aud": "another"}, "not for this cluster"),
        ({"exp": None}, "invalid|not for this cluster"),
        ({"sub": "a/b"}, "must name a role"),
        ({"sub": ""}, "must name a role"),
        ({"exp": 1e400}, "invalid|role"),
    ],
)
def test_claims_that_do_not_hold_are_refused(verifier, claims, why):
    with pytest.raises(AuthenticationError, match=why):
        verifier(jwks()).verify(token(**claims))


@pytest.mark.parametrize("text", ["", ".", "..", "a.b.c", "é.é.é", "a" * 9000, "e30.e30.", "bnVsbA.bnVsbA.bnVsbA"])
def test_what_is_no_token_is_refused(verifier, text):
    with pytest.raises(AuthenticationError, match="the token is invalid"):
        verifier(jwks()).verify(text)


@pytest.mark.parametrize("header", [{"alg": "HS256", "crit": ["x"]}, {"alg": "HS256", "crit": []}])
def test_an_extension_that_is_critical_is_understood_by_nobody(verifier, monkeypatch, header):
    """Whichever release of the library is there: older ones pass over it."""
    monkeypatch.setattr(jwt, "get_unverified_header", lambda text: header)
    monkeypatch.setattr(jwt, "decode", lambda *given, **options: {"sub": "ann", "exp": time.time() + 600})
    with pytest.raises(AuthenticationError, match="the token is invalid"):
        verifier(jwks()).verify(token())
    header.pop("crit")
    assert verifier(jwks()).verify(token()).role == "ann"


@pytest.mark.parametrize("name", ["get_unverified_header", "decode"])
def test_what_is_too_deep_is_refused(verifier, monkeypatch, name):
    """Whichever release of the library is there: older ones let the interpreter's error out."""

    def too_deep(*given, **options):
        raise RecursionError

    monkeypatch.setattr(jwt, name, too_deep)
    with pytest.raises(AuthenticationError, match="the token is invalid"):
        verifier(jwks()).verify(token())


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "{}",
        '{"keys": [1]}',
        json.dumps({"keys": [{"kty": "oct", "k": b64(b"short")}]}),
        KEYS["RS256"].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        pem(ec.generate_private_key(ec.SECP384R1())),
    ],
)
def test_keys_that_are_none_are_refused_at_the_start(verifier, text):
    with pytest.raises(InvalidConfigurationError, match="jwt_keys"):
        verifier(text)


def test_a_key_that_leaves_the_file_verifies_nothing(verifier, tmp_path):
    there = verifier(jwks())
    (tmp_path / "keys").write_text(pem(KEYS["ES256"]))
    assert there.refresh()
    with pytest.raises(AuthenticationError):
        there.verify(token())


async def test_a_connection_ends_when_its_token_expires(start_broker, tmp_path, monkeypatch):
    (tmp_path / "keys").write_text(jwks())
    async with start_broker(jwt_keys=str(tmp_path / "keys"), superusers=["ann"]) as broker:
        url = await listening(broker)
        async with engine.AsyncClient(url, token=token()) as ann:
            await (await ann.producer("orders")).send(b"x")
            peer = await Peer.connect(broker, url, hello=False)
            short = token(exp=time.time() + 600)
            with monkeypatch.context() as patched:  # the broker's clock is shortly before its end
                late = int((time.time() + 599.8) * 1000)
                patched.setattr(broker.clock, "time_ms", lambda: late)
                await peer.hello(token=short)
            await peer.lost
            _, header, _ = peer.frames[-1]
            assert header["message"] == "the token has expired"
            await (await ann.producer("orders")).send(b"y")


async def test_a_client_renews_its_token_on_the_living_connection(start_broker, tmp_path, monkeypatch):
    monkeypatch.setattr("engine.client.net.connection._TOKEN_USED", 0.0)  # as early as it may
    (tmp_path / "keys").write_text(jwks())
    given = []

    def fresh() -> str:
        given.append(token(exp=time.time() + (60.0 if not given else 600.0)))
        return given[-1]

    async with start_broker(jwt_keys=str(tmp_path / "keys"), superusers=["ann"]) as broker:
        url = await listening(broker)
        async with engine.AsyncClient(url, token=fresh) as ann:
            producer = await ann.producer("orders")
            await producer.send(b"x")
            (connection,) = broker.connections
            first = connection.principal
            await until(lambda: connection.principal is not first)
            assert connection.principal.expires - time.time() > 100
            await producer.send(b"y")
            assert list(broker.connections) == [connection]
            assert len(given) >= 2


@pytest.mark.parametrize(
    ("other", "why"),
    [({"sub": "bob"}, "of the connection's role"), ({"exp": 1.0}, "expired"), ({"aud": "x"}, "not for this cluster")],
)
async def test_a_token_that_does_not_fit_changes_nothing(start_broker, tmp_path, other, why):
    (tmp_path / "keys").write_text(jwks())
    async with start_broker(jwt_keys=str(tmp_path / "keys")) as broker:
        peer = await Peer.connect(broker, await listening(broker), hello=False)
        answer = await peer.hello(token=token())
        assert 500 < answer["token_left"] < 601
        (connection,) = broker.connections
        before = connection.principal
        with pytest.raises(AuthenticationError, match=why):
            await peer.ask(Command.AUTHENTICATE, token=token(**other))
        assert connection.principal is before
        renewed = await peer.ask(Command.AUTHENTICATE, token=token(exp=time.time() + 6000))
        assert renewed["result"]["token_left"] > 5000


async def test_a_connection_with_all_rights_has_nothing_to_renew(start_broker):
    async with start_broker(auth_token="shared") as broker:
        peer = await Peer.connect(broker, await listening(broker), hello=False)
        assert (await peer.hello(token="shared"))["token_left"] is None
        assert (await peer.ask(Command.AUTHENTICATE, token="whatever"))["result"]["token_left"] is None
