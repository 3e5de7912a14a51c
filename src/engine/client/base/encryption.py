"""Encryption from end to end: producers encrypt the bodies of entries, consumers decrypt them, brokers can do neither.

    public keys by name ──wrap──┐
    data key, one per producer and hour ──> AES-256-GCM over each entry's body, its header authenticated with it
    private keys by name ─unwrap┘

*Data keys.* A producer makes one at random, wraps it for each of its public keys, and writes the wrapped keys into each
entry, so that each can be read alone, wherever splits, retention and readers have cut. After an hour, or in a forked
process, it makes another one, and looks its public keys up again.

*Nonces.* The counter of the data key, which lives in one producer of one process. An entry that is encrypted again, as
after a split, gets the next one; an entry that is sent again as it is has the same bytes.

*Wrapping.* X25519: a key pair for each data key and recipient, HKDF-SHA256 of the shared secret bound to both public
keys, AES-256-GCM under the zero nonce, since that key is used once. RSA: OAEP with SHA-256. Both bind the data key's
id. The first bytes of the public key's SHA-256 go with it, so that a wrong key is told from damage.

This module needs `cryptography`, and is loaded by what is given keys. How the bytes lie: `_native/format/envelope.pxd`.
"""

from __future__ import annotations

import base64
import itertools
import logging
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from engine._native.format.envelope import enclose, enclosed
from engine.aio.forked import after_fork
from engine.client.base.options import Keys
from engine.clock import Clock
from engine.errors import CorruptionError, InvalidArgumentError, MissingKeyError, UnsupportedError, WrongKeyError
from engine.limits import RECIPIENT_NAME_SIZE_MAX, RECIPIENTS_MAX, WRAPPED_KEY_SIZE_MAX
from engine.model.compression import ENCRYPTED, decompressor

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as e:
    raise UnsupportedError("encryption needs the package cryptography: pip install 'engine[encryption]'") from e

log = logging.getLogger("engine.client")

KEY_S_MAX = 3600.0  # that one data key is used
ENTRIES_MAX = 2**32  # under one data key
RSA_BITS_MIN = 2048
_OWN_KEPT = 1000  # data keys of a producer that may have to encrypt their entries again
_OPENED_KEPT = 1000  # data keys that a consumer has unwrapped
# How a data key is wrapped, in each entry: do not change.
X25519, RSA_OAEP = 1, 2
_INFO = b"engine data key 1"
_ZERO = bytes(12)
_REPLY = "reply"  # the name of the key that a reply is encrypted for
_PUBLIC_SIZE = 32
_OAEP = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)

Pem = str | bytes | PathLike[str]
Recipient = tuple[bytes, int, bytes, bytes]  # name, how it is wrapped, fingerprint, wrapped data key
Open = Callable[[int, Any, int], bytes]

_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


after_fork(_forked)


class _DataKey:
    """A random key, wrapped for each recipient."""

    def __init__(self, public: Mapping[str, X25519PublicKey | RSAPublicKey], now: float) -> None:
        secret = AESGCM.generate_key(256)
        self.ident = AESGCM.generate_key(128)  # 16 random bytes
        self.cipher = AESGCM(secret)
        self._recipients: list[Recipient] = []
        for name, key in public.items():
            way, wrapped = _wrap(key, secret, self.ident)
            self._recipients.append((name.encode(), way, fingerprint_of(key), wrapped))
        self.made_at = now
        self.forks = _forks
        self._counter = itertools.count()
        self.used = 0

    def encrypt(self, data: bytes) -> bytes:
        """The entry, encrypted under the next nonce."""
        self.used = next(self._counter)
        return enclose(data, self.used.to_bytes(12, "big"), self.ident, self._recipients, self.cipher.encrypt)


class Encryptor:
    """A producer's side. Loop thread only. `keys`: public keys by name, looked up for each data key.

    Raises InvalidArgumentError for keys that are none. Later, where new keys cannot be read, those of before serve.
    """

    def __init__(self, keys: Keys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._public = read_public(keys)
        self._current = self._new_key()
        self._own: dict[bytes, AESGCM] = {self._current.ident: self._current.cipher}
        self._decompress = decompressor()

    def _new_key(self) -> _DataKey:
        return _DataKey(self._public, self._clock.monotonic())

    def encrypt(self, data: bytes) -> bytes:
        """An entry, compressed or not, with its body encrypted."""
        key = self._current
        age = self._clock.monotonic() - key.made_at
        if age >= KEY_S_MAX or key.used + 1 >= ENTRIES_MAX or key.forks != _forks:
            key = self._rotate()
        return key.encrypt(data)

    def _rotate(self) -> _DataKey:
        try:
            self._public = read_public(self._keys)
        except Exception as e:  # also of a Mapping of the program's own
            log.warning("the public keys could not be read again, and the former ones stay in use: %s", e)
        key = self._current = self._new_key()
        self._own[key.ident] = key.cipher
        if len(self._own) > _OWN_KEPT:
            del self._own[next(iter(self._own))]
        return key

    def open(self, codec: int, body: Any, raw_size: int) -> bytes:
        """The body of an entry of its own, to be cut anew; see Entry.messages()."""
        if codec & ENCRYPTED:
            nonce, ident, _, authenticated, ciphertext = enclosed(body)
            if ident not in self._own:
                raise CorruptionError("the entry is encrypted under a data key that its producer has given up")
            body = self._own[ident].decrypt(nonce, ciphertext, authenticated)
        return _decompressed(self._decompress, codec & ~ENCRYPTED, body, raw_size)


class Decryptor:
    """A consumer's side, for one thread at a time. `keys`: private keys by name, looked up when a name is met first;
    those of a dict are checked here as well. Raises InvalidArgumentError.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._private: dict[str, X25519PrivateKey | RSAPrivateKey] = {}
        self._opened: dict[bytes, AESGCM] = {}  # by the data key's id
        if isinstance(keys, dict):
            for name in keys:
                self._private_key(name)
        self._decompress = decompressor()

    def open(self, codec: int, body: Any, raw_size: int) -> bytes:
        """The body of an entry; see Entry.messages(). Raises MissingKeyError, WrongKeyError, CorruptionError."""
        if codec & ENCRYPTED:
            nonce, ident, recipients, authenticated, ciphertext = enclosed(body)
            cipher = self._opened.get(ident) or self._unwrap(ident, recipients)
            try:
                body = cipher.decrypt(nonce, ciphertext, authenticated)
            except InvalidTag:
                raise CorruptionError("it is not what its producer has encrypted: it was changed") from None
        return _decompressed(self._decompress, codec & ~ENCRYPTED, body, raw_size)

    def _unwrap(self, ident: bytes, recipients: list[Recipient]) -> AESGCM:
        wrong: list[str] = []
        for raw, way, mark, wrapped in recipients:
            name = raw.decode(errors="backslashreplace")
            try:
                key = self._private_key(name)
            except InvalidArgumentError as e:  # of a key that came later: the entry is not damaged
                raise WrongKeyError(str(e)) from e
            if key is None:
                continue
            if fingerprint_of(key.public_key()) != mark:
                wrong.append(name)
                continue
            cipher = self._opened[ident] = AESGCM(_unwrapped(key, way, wrapped, ident))
            if len(self._opened) > _OPENED_KEPT:
                self._opened.pop(next(iter(self._opened)), None)
            return cipher
        if wrong:
            raise WrongKeyError(f"the private key of {' and '.join(wrong)} is of another pair than the producer's")
        names = ", ".join(raw.decode(errors="backslashreplace") for raw, *_ in recipients)
        raise MissingKeyError(f"there must be a private key of one of the names {names:.400} in decryption_keys")

    def _private_key(self, name: str) -> X25519PrivateKey | RSAPrivateKey | None:
        if name not in self._private:
            found = self._keys.get(name)
            if found is None:
                return None
            self._private[name] = read_private(name, found)
        return self._private[name]


def _decompressed(decompress: Open, codec: int, body: Any, raw_size: int) -> bytes:
    return decompress(codec, body, raw_size) if codec else bytes(body)


# -- wrapping ----------------------------------------------------------------------------------------------------------


def _wrap(key: X25519PublicKey | RSAPublicKey, secret: bytes, ident: bytes) -> tuple[int, bytes]:
    if isinstance(key, RSAPublicKey):
        return RSA_OAEP, key.encrypt(secret + ident, _OAEP)
    pair = X25519PrivateKey.generate()
    sent = pair.public_key().public_bytes_raw()
    wrapping = _shared(pair.exchange(key), sent, key.public_bytes_raw())
    return X25519, sent + wrapping.encrypt(_ZERO, secret, ident)


def _unwrapped(key: X25519PrivateKey | RSAPrivateKey, way: int, wrapped: bytes, ident: bytes) -> bytes:
    """Raises CorruptionError: it was wrapped for this key, as its fingerprint says, and does not open."""
    try:
        if way == RSA_OAEP and isinstance(key, RSAPrivateKey):
            secret = key.decrypt(wrapped, _OAEP)
            if len(secret) == 48 and secret[32:] == ident:
                return secret[:32]
        elif way == X25519 and isinstance(key, X25519PrivateKey) and len(wrapped) > _PUBLIC_SIZE:
            sent = wrapped[:_PUBLIC_SIZE]
            shared = key.exchange(X25519PublicKey.from_public_bytes(sent))
            wrapping = _shared(shared, sent, key.public_key().public_bytes_raw())
            return wrapping.decrypt(_ZERO, wrapped[_PUBLIC_SIZE:], ident)
    except (InvalidTag, ValueError):
        pass
    raise CorruptionError("the data key that was wrapped for this private key was changed")


def _shared(secret: bytes, sent: bytes, public: bytes) -> AESGCM:
    return AESGCM(HKDF(hashes.SHA256(), 32, sent + public, _INFO).derive(secret))


def fingerprint_of(key: X25519PublicKey | RSAPublicKey) -> bytes:
    """The first 8 bytes of the SHA-256 of the public key, as DER."""
    digest = hashes.Hash(hashes.SHA256())
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    digest.update(key.public_bytes(serialization.Encoding.DER, form))
    return digest.finalize()[:8]


# -- keys --------------------------------------------------------------------------------------------------------------


def read_public(keys: Keys) -> dict[str, X25519PublicKey | RSAPublicKey]:
    """Raises InvalidArgumentError, which never shows a key."""
    found: dict[str, X25519PublicKey | RSAPublicKey] = {}
    for name, pem in keys.items():
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= RECIPIENT_NAME_SIZE_MAX:
            raise InvalidArgumentError(
                f"a name in encryption_keys must be text of 1 to {RECIPIENT_NAME_SIZE_MAX} bytes, got {name!r:.80}"
            )
        text = _pem("encryption_keys", name, pem)
        try:
            key = serialization.load_pem_public_key(text)
        except (ValueError, TypeError) as e:
            raise _no_key("encryption_keys", name, "a public key in PEM", e) from e
        if not (isinstance(key, X25519PublicKey) or (isinstance(key, RSAPublicKey) and _is_large(key))):
            raise _no_key("encryption_keys", name, f"X25519, or RSA of {RSA_BITS_MIN} to 8192 bits")
        found[name] = key
    if not 1 <= len(found) <= RECIPIENTS_MAX:
        raise InvalidArgumentError(f"encryption_keys must have 1 to {RECIPIENTS_MAX} public keys, got {len(found)}")
    return found


def read_private(name: str, pem: Pem) -> X25519PrivateKey | RSAPrivateKey:
    """Raises InvalidArgumentError, which never shows a key."""
    text = _pem("decryption_keys", name, pem)
    try:
        key = serialization.load_pem_private_key(text, password=None)
    except (ValueError, TypeError) as e:
        raise _no_key("decryption_keys", name, "a private key in PEM without a password", e) from e
    if not (isinstance(key, X25519PrivateKey) or (isinstance(key, RSAPrivateKey) and _is_large(key.public_key()))):
        raise _no_key("decryption_keys", name, f"X25519, or RSA of {RSA_BITS_MIN} to 8192 bits")
    return key


def public_of(keys: Keys) -> dict[str, bytes]:
    """The public keys of private ones, as PEM: what is made of a message is for the same consumers."""
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return {name: read_private(name, pem).public_key().public_bytes(encoding, form) for name, pem in keys.items()}


def reply_pair() -> tuple[str, dict[str, bytes]]:
    """A new pair of keys for replies: (the public key, as a request names it; decryption_keys with the private one)."""
    private = X25519PrivateKey.generate()
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return base64.b64encode(private.public_key().public_bytes_raw()).decode(), {_REPLY: pem}


def reply_recipient(text: str) -> dict[str, bytes]:
    """The encryption_keys of a reply to a request that names this public key. Raises InvalidArgumentError."""
    try:
        public = X25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
        X25519PrivateKey.generate().exchange(public)  # refuses a point of low order
    except ValueError as e:
        raise InvalidArgumentError(f"a request's reply_key must be a public key, got {text:.100}") from e
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return {_REPLY: public.public_bytes(encoding, form)}


def _is_large(key: RSAPublicKey) -> bool:
    return RSA_BITS_MIN <= key.key_size <= 8 * WRAPPED_KEY_SIZE_MAX


def _pem(option: str, name: str, pem: object) -> bytes:
    if isinstance(pem, PathLike):
        try:
            return Path(pem).read_bytes()
        except OSError as e:
            raise InvalidArgumentError(f"the file of the key {name!r:.80} in {option} cannot be read: {e}") from e
    if isinstance(pem, str):
        return pem.encode()
    if isinstance(pem, bytes):
        return pem
    raise _no_key(option, name, "PEM as text or bytes, or the path of a file as a pathlib.Path")


def _no_key(option: str, name: str, wanted: str, error: Exception | None = None) -> InvalidArgumentError:
    got = "another one" if error is None else type(error).__name__  # its text may have what it could not parse
    return InvalidArgumentError(f"the key {name!r:.80} in {option} must be {wanted}, got {got}")
