"""`Certificate`: what the certificate of a peer says, which TLS has verified."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any, NamedTuple


class Certificate(NamedTuple):
    """`subject`: its common name; empty for none. `names`: (kind, name) of its subjectAltName, as in the module ssl.

    `expires`: wall-clock seconds. `chain`: from its own to that of an authority that is trusted here, each in DER.
    """

    subject: str
    names: tuple[tuple[str, str], ...]
    expires: float
    chain: tuple[bytes, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts and addresses that it names."""
        return tuple(name for kind, name in self.names if kind in ("DNS", "IP Address"))


def certificate_of(transport: asyncio.BaseTransport | None) -> Certificate | None:
    """That of the peer of a connection; None: it has shown none, none was asked for, or its end cannot be read."""
    found = None if transport is None else transport.get_extra_info("peercert")
    if not found:
        return None
    assert transport is not None
    common = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
    names = tuple((kind, name) for kind, name in found.get("subjectAltName", ()) if isinstance(name, str))
    try:
        expires = float(ssl.cert_time_to_seconds(found["notAfter"]))
    except ValueError:
        return None
    return Certificate(common[-1] if common else "", names, expires, _chain(transport.get_extra_info("ssl_object")))


def _chain(connection: Any) -> tuple[bytes, ...]:
    """The verified chain, for which Python has a public name from 3.13 on."""
    if connection is None:
        return ()
    found: Sequence[Any] | None
    if hasattr(connection, "get_verified_chain"):
        found = connection.get_verified_chain()
    else:
        found = [one.public_bytes(2) for one in connection._sslobj.get_verified_chain() or ()]  # 2: DER
    return tuple(found or ())
