"""`Authorities`: the certificates that sign those of clients, and the role that a client's certificate names.

A port may trust several authorities: that of clients and that of brokers. Which of them has signed a certificate is
told by its verified chain. The file is read again when it has changed: an authority that was taken out makes no
principals any more.
"""

from __future__ import annotations

import hashlib
import logging
import re
import ssl

from engine.broker.rights.watched_file import WatchedFile
from engine.errors import AuthenticationError, InvalidArgumentError, InvalidConfigurationError
from engine.model.rights import check_role
from engine.wire.certificates import Certificate

log = logging.getLogger(__name__)

SUBJECT, SAN = "subject", "san"
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class Authorities:
    """The PEM file at `path`, which a setting names."""

    def __init__(self, setting: str, path: str) -> None:
        """Raises InvalidConfigurationError."""
        self._file = WatchedFile(setting, path)
        self._digests = self._read()

    def signer(self, certificate: Certificate) -> bytes | None:
        """The digest of the authority in the certificate's chain that the file has; None: it has none of them."""
        return next((digest for digest in map(_digest, certificate.chain) if digest in self._digests), None)

    def has(self, digest: bytes) -> bool:
        """Whether an authority that was found before is still there."""
        return digest in self._digests

    def refresh(self) -> bool:
        """Read the file again if it has changed; whether it has. One that cannot be used changes nothing."""
        try:
            if not self._file.has_changed():
                return False
            self._digests = self._read()
        except InvalidConfigurationError as e:
            log.error("the authorities of clients stay as they were: %s", e)
            return False
        return True

    def _read(self) -> frozenset[bytes]:
        try:
            text = self._file.path.read_text()
            found = frozenset(_digest(ssl.PEM_cert_to_DER_cert(one)) for one in _PEM.findall(text))
        except OSError as e:
            raise InvalidConfigurationError(f"{self._file.name} cannot be read: {e.strerror or e}") from e
        except ValueError as e:
            raise InvalidConfigurationError(f"{self._file.name} must have certificates in PEM: {e}") from e
        if not found:
            raise InvalidConfigurationError(f"{self._file.name} must have certificates in PEM, got none")
        return found


def role_of(certificate: Certificate, where: str) -> str:
    """`where`: SUBJECT, its common name; or SAN, its one alternative name. Raises AuthenticationError."""
    if where == SUBJECT:
        name = certificate.subject
    else:
        names = [name for _, name in certificate.names]
        name = names[0] if len(names) == 1 else ""
    try:
        return check_role(name)
    except InvalidArgumentError:
        what = "the common name of its subject" if where == SUBJECT else "its one alternative name"
        raise AuthenticationError(f"the certificate must name a role by {what}") from None


def _digest(der: bytes) -> bytes:
    return hashlib.sha256(der).digest()
