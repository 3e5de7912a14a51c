"""`Certificates`: TLS by the PEM files that a client's URL names, which are read again when they have changed."""

from __future__ import annotations

import logging
import ssl

from engine.aio.changed_files import Facts, facts_of
from engine.errors import InvalidArgumentError

log = logging.getLogger(__name__)


class Certificates:
    """Called for each new connection: the context that the files make now. Safe from any thread.

    While files are being replaced, a certificate and its key do not fit: what cannot be used leaves the context as it
    was, and is tried again with the next connection.
    """

    def __init__(self, ca: str | None, cert: str | None, key: str | None) -> None:
        """Raises InvalidArgumentError: a file cannot be used."""
        self._named = ca, cert, key
        facts = self._facts()  # before they are read: what changes in between is a change
        self._now = facts, _context(ca, cert, key)
        self._refused: Facts | None = None  # what was logged

    def __call__(self) -> ssl.SSLContext:
        known, context = self._now
        facts = self._facts()
        if facts != known:
            try:
                context = _context(*self._named)
            except InvalidArgumentError as e:
                if facts != self._refused:
                    self._refused = facts
                    log.error("the certificates stay as they were: %s", e)
            else:
                self._now = facts, context
        return context

    def _facts(self) -> Facts:
        return facts_of(path for path in self._named if path is not None)


def _context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """A client's context: the authorities in `ca`, or the system's; a certificate of its own, or none.

    Raises InvalidArgumentError.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    except OSError as e:  # an SSLError is one
        raise InvalidArgumentError(f"ca must be a PEM file of certificates, got {ca}: {e.strerror or e}") from e
    if cert is not None:
        try:
            context.load_cert_chain(cert, key, password="")  # it would ask the terminal for one
        except OSError as e:
            files = cert if key is None else f"{cert} and {key}"
            raise InvalidArgumentError(
                f"cert and key must be PEM files that match, got {files}: {e.strerror or e}"
            ) from e
    return context
