"""`Credentials`: the PEM files that a URL of etcd names, which are read again when they have changed."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import grpc

from engine.aio.changed_files import ChangedFiles
from engine.errors import InvalidConfigurationError
from engine.metadata.etcd.url import EtcdUrl

log = logging.getLogger(__name__)


class Credentials:
    """Loop thread only. `present`: those to connect with. `unusable`: looks that found new files which could not be
    used.
    """

    def __init__(self, url: EtcdUrl) -> None:
        """Raises InvalidConfigurationError: a file cannot be used."""
        self.unusable = 0
        self._url = url
        # Looked at before they are read: what changes in between is a change.
        self._files = ChangedFiles(lambda: [path for path in (url.ca, url.cert, url.key) if path is not None])
        self.present = _read(url)

    def look(self) -> bool:
        """Read the files again if they have changed; whether `present` are new. What cannot be used is logged."""
        if not self._files.look():
            return False
        try:
            self.present = _read(self._url)
        except InvalidConfigurationError as e:
            self.unusable += 1
            log.error("the certificates for %s stay as they were: %s", self._url.text, e)
            return False
        log.info("the certificates for %s have changed, and were read again", self._url.text)
        return True


def _read(url: EtcdUrl) -> grpc.ChannelCredentials:
    ca, key, cert = _bytes(url.ca), _bytes(url.key), _bytes(url.cert)
    _check(url)
    return grpc.ssl_channel_credentials(ca, key, cert)


def _bytes(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise InvalidConfigurationError(f"{path} must be a PEM file, got {e.strerror or e}") from e


def _check(url: EtcdUrl) -> None:
    """gRPC takes any bytes, and then no handshake succeeds: so OpenSSL reads the files first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if url.ca is not None:
            context.load_verify_locations(url.ca)
    except OSError as e:  # an SSLError is one
        raise InvalidConfigurationError(f"{url.ca} must have certificates in PEM, got {e.strerror or e}") from e
    try:
        if url.cert is not None:
            context.load_cert_chain(url.cert, url.key, password="")  # ask no terminal for one
    except OSError as e:
        files = f"{url.cert} and {url.key}"
        raise InvalidConfigurationError(f"{files} must be a certificate and its key, got {e.strerror or e}") from e
