"""JSON Web Tokens that must not be believed. Each names the role `sub`, which has all rights."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from engine.broker.rights.web_tokens import TOKEN_SIZE_MAX
from tests.kit.key_pairs import rsa_pair

AUDIENCE = "orders-cluster"
EXPIRES = 1 << 40
IDENT, IDENT_ED = "key-1", "key-2"
MARK = "m4rk-of-a-token"  # in claims and headers of each: nothing may say it again
ED = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
Key = rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey | bytes


@cache
def key_of(bits: int = 2048) -> rsa.RSAPrivateKey:
    """The cluster's is that of 2048 bits."""
    found = load_pem_private_key(rsa_pair(bits).private, None)
    assert isinstance(found, rsa.RSAPrivateKey)
    return found


def key_set() -> str:
    """What the cluster trusts, as a JWKS."""
    by_name = {"RS256": (key_of().public_key(), IDENT), "EdDSA": (ED.public_key(), IDENT_ED)}
    made = [
        {**jwt.get_algorithm_by_name(name).to_jwk(key, as_dict=True), "kid": ident}
        for name, (key, ident) in by_name.items()
    ]
    return json.dumps({"keys": made})


def right(role: str) -> str:
    """One to be believed."""
    return _signed(_claims(role))


def false_tokens(role: str) -> dict[str, str]:
    """None has a signature of the cluster's keys that covers it as those keys sign: nothing in it may be believed."""
    claims, head = _claims(role), {"typ": "JWT", "kid": IDENT, "x": MARK}
    good = right(role)
    first, second, third = good.split(".")
    other, public = key_of(2056), rsa_pair().public
    der = base64.b64decode(b"".join(public.splitlines()[1:-1]))
    own = jwt.get_algorithm_by_name("RS256").to_jwk(other.public_key(), as_dict=True)
    twice = b'{"alg": "none", "alg": "RS256"}'
    late, early = {**claims, "exp": 1}, {**claims, "nbf": EXPIRES}
    elsewhere = {**claims, "aud": "another-cluster"}
    return {
        "no algorithm": _join({**head, "alg": "none"}, claims, b""),
        "no algorithm, in capitals": _join({**head, "alg": "NONE"}, claims, b""),
        "no algorithm, with a signature": f"{_b64({**head, 'alg': 'none'})}.{second}.{third}",
        "no name of an algorithm": _join(head, claims, b"x"),
        "several algorithms": _join({**head, "alg": ["RS256", "none"]}, claims, b"x"),
        "unsigned": f"{first}.{second}.",
        "without its signature's part": f"{first}.{second}",
        "cut": good[:-20],
        "a bit of the signature": f"{first}.{second}.{'B' if third[0] == 'A' else 'A'}{third[1:]}",
        "the claims of another": f"{first}.{_b64({**claims, 'sub': role, 'jti': '1'})}.{third}",
        "HMAC with the public key": _join({**head, "alg": "HS256"}, claims, public),
        "HMAC with the public key, its line ends cut": _join({**head, "alg": "HS256"}, claims, public.strip()),
        "HMAC with the public key's DER": _join({**head, "alg": "HS256"}, claims, der),
        "HMAC with nothing": _join({**head, "alg": "HS256"}, claims, b"", signed=True),
        "HMAC of another length": _join({**head, "alg": "HS512"}, claims, public),
        "another key of the algorithm": _signed(claims, other),
        "another key, of the other one's name": _signed(claims, other, kid=IDENT_ED),
        "another key, that it names itself": _signed(claims, other, jwk=own),
        "another key, at an address": _signed(claims, other, jku="http://127.0.0.1:9/keys", x5u="file:///dev/zero"),
        "another algorithm of the key": jwt.encode(claims, key_of(), "PS256", headers=head),
        "a longer hash": jwt.encode(claims, key_of(), "RS512", headers=head),
        "a name of no key": _signed(claims, kid="../../dev/null"),
        "the name of the other key": _signed(claims, kid=IDENT_ED),
        "a name that is no text": _join({**head, "alg": "RS256", "kid": {"a": [1]}}, claims, b"x"),
        "expired, by another key": _signed(late, other),
        "too early, by another key": _signed(early, other),
        "for another cluster, by another key": _signed(elsewhere, other),
        "of another issuer, by another key": _signed({**claims, "iss": "https://issuer.invalid"}, other),
        "an extension that is critical": _signed(claims, crit=["x"]),
        "a detached body": _signed(claims, b64=False, crit=["b64"]),
        "a header that is none": f"{_b64([1])}.{second}.{third}",
        "a header that has no end": f"{_b64(b'[' * 5000)}.{second}.{third}",
        "claims that have no end": _join({**head, "alg": "RS256"}, b'{"sub":' + b"[" * 3000, b"x"),
        "a header in a header": _join({**head, "alg": "RS256", "x": _nested(900)}, claims, b"x"),
        "twice an algorithm": f"{_b64(twice)}.{second}.",
        "twice a role": _join({**head, "alg": "RS256"}, _twice(claims, role), b"x"),
        "large": _signed({**claims, "more": "x" * TOKEN_SIZE_MAX}),
        "a large header": _signed(claims, x5c=["x" * TOKEN_SIZE_MAX]),
        "three dots": f"{good}.{third}",
        "dots alone": "..",
        "not of its alphabet": f"{first}.{second}.{third[:-4]}!*()",
    }


def refused_claims(role: str) -> dict[str, tuple[str, str]]:
    """By a key of the cluster, so its holder may know: why each is refused all the same, and the token."""
    claims = _claims(role)
    without = {name: {k: v for k, v in claims.items() if k != name} for name in claims}
    expired, early = "the token has expired", "the token is not valid yet"
    other = "the token is not for this cluster: "
    return {
        "expired": (expired, _signed({**claims, "exp": 1})),
        "expired, twice": (expired, _signed_text(_twice_expired(claims))),
        "not valid yet": (early, _signed({**claims, "nbf": EXPIRES - 1})),
        "issued later": (early, _signed({**claims, "iat": EXPIRES - 1})),
        "for another cluster": (other, _signed({**claims, "aud": "another-cluster"})),
        "for no cluster": (other, _signed(without["aud"])),
        "without an end": (other, _signed(without["exp"])),
        "without a role": ("the token must name a role in its claim 'sub'", _signed(without["sub"])),
    }


def _claims(role: str) -> dict[str, Any]:
    return {"sub": role, "aud": AUDIENCE, "exp": EXPIRES, "note": MARK}


def _signed(claims: dict[str, Any], key: Key | None = None, **headers: Any) -> str:
    """With the cluster's key, or another one. Headers that no library would write are written by hand."""
    return _signed_text(json.dumps(claims).encode(), key, **headers)


def _signed_text(claims: bytes, key: Key | None = None, **headers: Any) -> str:
    head = _b64({"typ": "JWT", "alg": "RS256", "kid": IDENT, "x": MARK, **headers})
    said = f"{head}.{_b64(claims)}"
    made = jwt.get_algorithm_by_name("RS256").sign(said.encode(), key or key_of())
    return f"{said}.{_b64(made)}"


def _join(head: dict[str, Any], claims: Any, secret: bytes, *, signed: bool = False) -> str:
    """Signed by HMAC with `secret`, where there is one."""
    said = f"{_b64(head)}.{_b64(claims)}"
    digest = hashlib.sha512 if head.get("alg") == "HS512" else hashlib.sha256
    return f"{said}.{_b64(hmac.new(secret, said.encode(), digest).digest()) if secret or signed else ''}"


def _b64(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = [found]
    return found


def _twice(claims: dict[str, Any], role: str) -> bytes:
    return b'{"sub": "nobody", ' + json.dumps({**claims, "sub": role}).encode()[1:]


def _twice_expired(claims: dict[str, Any]) -> bytes:
    """The last one holds (RFC 7519, 4)."""
    return b'{"exp": 9999999999, ' + json.dumps({**claims, "exp": 1}).encode()[1:]
