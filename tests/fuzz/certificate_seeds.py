"""Certificates with odd names, and how what a peer has shown becomes a role: DER in, as TLS hands it on."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import ssl
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import NameOID

from engine.broker.rights.authorities import SAN, SUBJECT, Authorities, role_of
from engine.errors import AuthenticationError
from engine.model.rights import check_role
from engine.wire.certificates import certificate_of

_KEY = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_UTC = datetime.UTC
_SUBJECTS = (
    ("ann",), ("ann", "root"), (), ("a/b",), ("role:*",), ("ä" * 20,), ("ann\x00root",), ("x" * 64,), ("\n",), ("*",),
)  # fmt: skip
_NAMES: tuple[tuple[x509.GeneralName, ...], ...] = (
    (),
    (x509.DNSName("ann"),),
    (x509.DNSName("ann"), x509.DNSName("root")),
    (x509.RFC822Name("ann@example.org"),),
    (x509.UniformResourceIdentifier("spiffe://example.org/ann"),),
    (x509.IPAddress(ipaddress.ip_address("192.0.2.1")), x509.IPAddress(ipaddress.ip_address("2001:db8::1"))),
    (x509.DirectoryName(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ann")])),),
    (x509.RegisteredID(x509.ObjectIdentifier("1.2.3.4")),),
    (x509.OtherName(x509.ObjectIdentifier("1.2.3.4"), b"\x0c\x03ann"),),
)


@cache
def seeds() -> list[bytes]:
    """Each odd subject, each odd list of alternative names, and times at the ends of what can be said."""
    ends = (datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=_UTC), datetime.datetime(1950, 1, 2, tzinfo=_UTC))
    made = [_made(subject, (), ends[0]) for subject in _SUBJECTS]
    made += [_made(("ann",), names, ends[0]) for names in _NAMES]
    return [*made, _made(("ann",), (), ends[1])]


def _made(subject: tuple[str, ...], names: tuple[x509.GeneralName, ...], end: datetime.datetime) -> bytes:
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in subject]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]))
        .public_key(_KEY.public_key())
        .serial_number(7)
        .not_valid_before(datetime.datetime(1950, 1, 1, tzinfo=_UTC))
        .not_valid_after(end)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(_KEY, None).public_bytes(serialization.Encoding.DER)


class _Transport:
    """Of a connection whose peer has shown a certificate."""

    def __init__(self, shown: dict[str, Any]) -> None:
        self._shown = shown

    def get_extra_info(self, name: str) -> Any:
        return self._shown if name == "peercert" else None


@cache
def _file() -> Path:
    return Path(tempfile.mkdtemp()) / "shown.pem"


def shown(der: bytes) -> object:
    """The roles that a certificate names. What OpenSSL does not read, no peer can show."""
    _file().write_text(ssl.DER_cert_to_PEM_cert(der))
    try:
        found = ssl._ssl._test_decode_cert(str(_file()))  # type: ignore[attr-defined]
    except (ssl.SSLError, ValueError):
        return None
    certificate = certificate_of(_Transport(found))  # type: ignore[arg-type]
    if certificate is None:
        return None
    roles = []
    for where in (SUBJECT, SAN):
        with contextlib.suppress(AuthenticationError):
            roles.append(check_role(role_of(certificate, where)))
    return certificate.expires, certificate.hosts, roles


def authorities(pem: bytes) -> object:
    """A file of authorities, as an operator may have left it."""
    path = _file().with_name("authorities.pem")
    path.write_bytes(pem)
    return Authorities("tls_client_ca", str(path))


def pems() -> list[bytes]:
    """Files of one and of several."""
    every = [ssl.DER_cert_to_PEM_cert(der) for der in seeds()[:3]]
    return [every[0].encode(), "".join(every).encode()]
