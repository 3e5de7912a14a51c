"""`WebTokens`: JSON Web Tokens (RFC 7519) by PyJWT, which is loaded where they are configured.

The algorithm follows from the key, and never from the token: an RSA key verifies RS256 alone, a P-256 key ES256, an
Ed25519 key EdDSA, and a symmetric key HS256. So the public key of one algorithm is no secret of another, and "none" is
no algorithm.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
from dataclasses import dataclass
from typing import Any

from engine.broker.rights.watched_file import WatchedFile
from engine.errors import AuthenticationError, InvalidArgumentError, InvalidConfigurationError
from engine.model.rights import check_role

log = logging.getLogger(__name__)

TOKEN_SIZE_MAX = 8192
_RSA_BITS_MIN = 2048
_SECRET_SIZE_MIN = 32
_PEM = re.compile(r"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Key:
    algorithm: str
    ident: str | None
    value: Any
    digest: bytes


@dataclass(frozen=True, slots=True)
class Claims:
    """What a verified token says. `expires`: wall-clock seconds. `key`: the digest of the key that it was signed by."""

    role: str
    expires: float
    key: bytes


class WebTokens:
    """Verifies tokens by the keys of a PEM or JWKS file, which is read again when it has changed."""

    def __init__(self, path: str, audience: str | None, claim: str) -> None:
        """`audience`: that a token must name; None: a token with an audience is refused. `claim`: holds the role.

        Raises InvalidConfigurationError.
        """
        self._file = WatchedFile("jwt_keys", path)
        self._audience = audience
        self._claim = claim
        self._keys = self._read()

    def verify(self, token: str) -> Claims:
        """Raises AuthenticationError."""
        import jwt

        invalid = AuthenticationError("the token is invalid")
        if len(token) > TOKEN_SIZE_MAX:
            raise invalid
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise invalid from None
        if "crit" in header:  # of what it names, each must be understood (RFC 7515, 4.1.11), and nothing is
            raise invalid
        ident = header.get("kid")
        for key in self._keys:
            if key.algorithm == header.get("alg") and (ident is None or key.ident is None or key.ident == ident):
                try:
                    found = jwt.decode(
                        token,
                        key.value,
                        algorithms=[key.algorithm],
                        audience=self._audience,
                        options={"require": ["exp"]},
                    )
                except jwt.InvalidSignatureError:
                    continue
                except jwt.ExpiredSignatureError:
                    raise AuthenticationError("the token has expired") from None
                except (jwt.ImmatureSignatureError, jwt.InvalidIssuedAtError):
                    raise AuthenticationError("the token is not valid yet") from None
                except (jwt.InvalidAudienceError, jwt.MissingRequiredClaimError) as e:
                    raise AuthenticationError(f"the token is not for this cluster: {e}") from None
                except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
                    raise invalid from None
                return self._claims(found, key.digest)
        raise invalid

    def _claims(self, found: dict[str, Any], key: bytes) -> Claims:
        role = found.get(self._claim)
        try:
            return Claims(check_role(role if isinstance(role, str) else ""), float(found["exp"]), key)
        except (InvalidArgumentError, ValueError, OverflowError):
            raise AuthenticationError(f"the token must name a role in its claim {self._claim!r}") from None

    def has(self, digest: bytes) -> bool:
        """Whether a key that has verified a token before is still there."""
        return any(hmac.compare_digest(key.digest, digest) for key in self._keys)

    def refresh(self) -> bool:
        """Read the keys again if the file has changed; whether it has. One that cannot be used changes nothing."""
        try:
            if not self._file.has_changed():
                return False
            self._keys = self._read()
        except InvalidConfigurationError as e:
            log.error("the keys of JSON Web Tokens stay as they were: %s", e)
            return False
        return True

    def _read(self) -> tuple[_Key, ...]:
        try:
            import jwt  # noqa: F401
        except ImportError as e:
            raise InvalidConfigurationError("jwt_keys needs the extra engine[auth]: PyJWT and cryptography") from e
        try:
            text = self._file.path.read_text()
        except (OSError, UnicodeDecodeError) as e:
            why = e.strerror if isinstance(e, OSError) else "it is not text"
            raise InvalidConfigurationError(f"{self._file.name} cannot be read: {why}") from e
        try:
            found = _of_jwks(text) if text.lstrip().startswith("{") else _of_pem(text)
        except InvalidConfigurationError as e:
            raise InvalidConfigurationError(f"{self._file.name}: {e}") from None
        if not found:
            raise InvalidConfigurationError(f"{self._file.name} must have a public key in PEM, or a JWKS, got none")
        return tuple(found)


def _of_pem(text: str) -> list[_Key]:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from cryptography.x509 import load_pem_x509_certificate

    found = []
    for match in _PEM.finditer(text):
        if "PRIVATE" in match[1]:
            raise InvalidConfigurationError("the file must have public keys alone, got a private key")
        try:
            block = match[0].encode()
            certificate = match[1] == "CERTIFICATE"
            key = load_pem_x509_certificate(block).public_key() if certificate else load_pem_public_key(block)
        except Exception as e:  # cryptography raises many kinds
            raise InvalidConfigurationError(f"a {match[1]} cannot be read: {type(e).__name__}") from None
        found.append(_Key(_algorithm(key), None, key, _digest_of(key)))
    return found


def _of_jwks(text: str) -> list[_Key]:
    import jwt

    try:
        entries = json.loads(text)["keys"]
        if not isinstance(entries, list):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise InvalidConfigurationError("it must be a JSON object with a list of keys") from None
    found = []
    for number, entry in enumerate(entries):
        try:
            kind = entry.get("kty")
            symmetric = kind == "oct"
            key = jwt.PyJWK(entry, "HS256" if symmetric else None).key
        except (jwt.PyJWTError, AttributeError, ValueError, TypeError, KeyError) as e:
            raise InvalidConfigurationError(f"key {number} cannot be used: {type(e).__name__}") from None
        if symmetric and len(key) < _SECRET_SIZE_MIN:
            raise InvalidConfigurationError(f"key {number} must have at least {_SECRET_SIZE_MIN} bytes, got {len(key)}")
        algorithm = "HS256" if symmetric else _algorithm(key)
        if entry.get("alg", algorithm) != algorithm:
            raise InvalidConfigurationError(f"key {number} must be for {algorithm}, got {entry['alg']!r:.20}")
        found.append(_Key(algorithm, entry.get("kid"), key, _digest_of(key)))
    return found


def _digest_of(key: Any) -> bytes:
    """Of the key itself, whatever file form it has."""
    if not isinstance(key, bytes):
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        key = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(key).digest()


def _algorithm(key: Any) -> str:
    """The algorithm that a public key verifies. Raises InvalidConfigurationError."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= _RSA_BITS_MIN:
        return "RS256"
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
        return "ES256"
    if isinstance(key, ed25519.Ed25519PublicKey):
        return "EdDSA"
    kinds = f"RSA of at least {_RSA_BITS_MIN} bits, P-256 or Ed25519"
    raise InvalidConfigurationError(f"a key must be a public one of {kinds}, got {type(key).__name__}")
