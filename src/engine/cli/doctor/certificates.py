"""Checks of certificates: of files by a handshake in memory, and of a server by one over the network."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any

from engine.cli.doctor.finding import Finding, State, graded, problem

DAY_S = 86_400.0
SOON_S = 30 * DAY_S
AT_ONCE_S = 7 * DAY_S
RENEW = "Renew the certificate in its files; the server reads them again when they have changed."

# Of OpenSSL's verification, by its codes: X509_V_ERR_…
REMEDIES = {
    9: "Wait until it is valid, or set the clock.",
    10: RENEW,
    18: "Name the certificate that signs it: --tls-ca FILE, or engines://…?ca=FILE.",
    19: "Name the certificate that signs it: --tls-ca FILE, or engines://…?ca=FILE.",
    20: "Name the certificate that signs it: --tls-ca FILE, or engines://…?ca=FILE.",
    62: "Connect by a name in the certificate, or have it issued for this one.",
    64: "Connect by a name in the certificate, or have it issued for this address.",
}


def certificate(check: str, cert: str, key: str | None) -> Iterator[Finding]:
    """Of a server's files: whether they belong together, and how long the certificate is valid."""
    try:
        shown = shown_by(cert, key)
    except ssl.SSLCertVerificationError as e:
        yield unverified(check, cert, e)
    except OSError as e:  # an SSLError is one
        remedy = "Name PEM files of a certificate and of its own key, which the server may read."
        yield problem(check, f"{cert} with the key {key} cannot be used: {e.strerror or e}", remedy)
    else:
        yield expiry(check, cert, shown)


def shown_by(cert: str, key: str | None) -> Mapping[str, Any]:
    """The certificate as a client sees it that trusts exactly this one. Raises OSError, SSLCertVerificationError.

    Both sides of the handshake are here, joined by buffers: the library tells dates of verified certificates only.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(cert, key, password="")  # it would ask the terminal for one
    client.check_hostname = False
    client.load_verify_locations(cert)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (ours, theirs, ours, theirs):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return ours.getpeercert() or {}


def expiry(check: str, what: str, shown: Mapping[str, Any]) -> Finding:
    """Of a certificate that is valid now."""
    until = str(shown.get("notAfter", ""))
    left = ssl.cert_time_to_seconds(until) - time.time() if until else SOON_S
    state = State.PROBLEM if left < AT_ONCE_S else State(left < SOON_S)
    return graded(check, state, f"{what} is valid until {until or 'an unknown date'}", RENEW)


def unverified(check: str, what: str, error: ssl.SSLCertVerificationError) -> Finding:
    """Of a certificate that is not."""
    remedy = REMEDIES.get(
        error.verify_code, "Have the certificate issued again, for this host and by a known authority."
    )
    return problem(check, f"{what}: {error.verify_message}", remedy)
