"""JSON Web Tokens and files of the keys that verify them, in each form and for each algorithm."""

from __future__ import annotations

import base64
import contextlib
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from engine.broker.rights.web_tokens import Claims, WebTokens
from engine.errors import AuthenticationError
from tests.fuzz import certificate_seeds

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_SECRET = b"0123456789abcdef0123456789abcdef"
_EXPIRES = 2.0**33
# Primes of a key of tests, so that its signatures are the same in each run.
_P = int(
    "cfe0e58d17de75a36bff2d1fd1400defd9f7f90dd2b2fd528cd7228a043c71c10428cb8412ed4d0d85d22adc032586337c47"
    "0a4462a55d08b0018f3db335d02e2c3929aa0ab32ee4789ee7d96b13f9c6e93eb60ad62310add98689a62a5eccb14962aded"
    "681f0a038b6c51a6c860375dd140dff31ef35cd9419bc199c6acf7c5",
    16,
)
_Q = int(
    "ee30f90906ce3cafc6217703a1af7aa35e6626b9d41777786c19f7609e9e9836cc8498cc33a21b62f21f41718ed4322cd472"
    "539b0cd72c101a439b7da20ce57eb1d3c4e7cc23574ad399bd6bcfb0a2cf4d3bb6c62fe7346560c993af0d68be12cebce381"
    "ec7a732f3fe1c166cb3f2ed1477be617fa5bceab2d00b92136cc843b",
    16,
)


@cache
def private_keys() -> dict[str, Key]:
    """By algorithm; none is a secret of anything."""
    public = rsa.RSAPublicNumbers(65537, _P * _Q)
    d = pow(65537, -1, (_P - 1) * (_Q - 1))
    parts = rsa.rsa_crt_dmp1(d, _P), rsa.rsa_crt_dmq1(d, _Q), rsa.rsa_crt_iqmp(_P, _Q)
    return {
        "RS256": rsa.RSAPrivateNumbers(_P, _Q, d, *parts, public).private_key(),
        "ES256": ec.derive_private_key(7, ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))),
    }


@cache
def key_set() -> str:
    """A JWKS of the public keys and a symmetric one: what signs for one must not pass for another."""
    entries = [
        jwt.get_algorithm_by_name(name).to_jwk(key.public_key(), as_dict=True) for name, key in private_keys().items()
    ]
    entries.append({"kty": "oct", "k": base64.urlsafe_b64encode(_SECRET).decode().rstrip("=")})
    return json.dumps({"keys": entries})


@cache
def pem() -> str:
    """The public keys as PEM, the last one in a certificate."""
    form, encoding = serialization.PublicFormat.SubjectPublicKeyInfo, serialization.Encoding.PEM
    keys = [private_keys()[name].public_key().public_bytes(encoding, form) for name in ("RS256", "ES256")]
    [certificate, *_] = certificate_seeds.seeds()
    keys.append(x509.load_der_x509_certificate(certificate).public_bytes(encoding))
    return "\n".join(["# keys of the cluster", *(key.decode() for key in keys)])


def _tokens(text: str | bytes) -> WebTokens:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return WebTokens(str(path), "engine", "sub")


_of_set, _of_pem = cache(lambda: _tokens(key_set())), cache(lambda: _tokens(pem()))


def _verified(tokens: WebTokens, data: bytes) -> Claims:
    """Whatever is believed says what one of the seeds says: no mutant has a signature of its own."""
    claims = tokens.verify(data.decode(errors="replace"))
    assert (claims.role, claims.expires) == ("ann", _EXPIRES)
    return claims


def by_set(data: bytes) -> object:
    return _verified(_of_set(), data)


def by_pem(data: bytes) -> object:
    return _verified(_of_pem(), data)


def keys(data: bytes) -> object:
    """A file of keys, whole or not: of what it has, nothing lets a token pass that nothing has signed."""
    tokens = _tokens(data)
    for seed in seeds():
        with contextlib.suppress(AuthenticationError):
            _verified(tokens, seed)
    return tokens


def key_files() -> list[bytes]:
    return [key_set().encode(), pem().encode(), json.dumps({"keys": json.loads(key_set())["keys"][:1]}).encode()]


@cache
def seeds() -> list[bytes]:
    """Signed with each key; expired, too early, for another audience; and by no algorithm or with a public key."""
    claims = {"sub": "ann", "aud": "engine", "exp": int(_EXPIRES)}
    signers: dict[str, Any] = {"HS256": _SECRET, **private_keys()}
    found = [jwt.encode(claims, key, name) for name, key in signers.items()]
    changes: list[dict[str, Any]] = [{"exp": 1}, {"nbf": 2**34}, {"aud": "other"}, {"sub": "a/b"}, {"exp": None}]
    for name in ("HS256", "RS256"):
        found += [jwt.encode({**claims, "sub": "eve", **more}, signers[name], name) for more in changes]
    found.append(jwt.encode({**claims, "sub": "eve"}, "", "none"))
    found.append(jwt.encode({**claims, "sub": "eve"}, b"x" * 32, "HS256"))
    found.append(jwt.encode({**claims, "sub": "eve"}, private_keys()["RS256"], "RS512"))
    return [text.encode() for text in found]
