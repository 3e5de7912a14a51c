"""`CertificateFiles`: files of certificates, keys and authorities, which are read again when they have changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from engine.errors import InvalidConfigurationError

C = TypeVar("C")

log = logging.getLogger(__name__)

LOOK_S = 0.5  # between two looks
# Those of a broker, and of a proxy.
_SETTINGS = (
    *("tls_cert", "tls_key", "tls_client_ca", "cluster_tls_cert", "cluster_tls_key", "cluster_tls_ca"),
    *("broker_tls_cert", "broker_tls_key", "broker_tls_ca"),
)
_Look = tuple[tuple[str, tuple[int, int, int] | None], ...]


class CertificateFiles(Generic[C]):
    """The files that the configuration of one program names. Loop thread only.

    A certificate and its key are two files, which do not fit while they are being replaced: so they are read at the
    first look that finds them as the one before has.
    """

    def __init__(self, configuration: Callable[[], C], renew: Callable[[C], object]) -> None:
        """`configuration`: the one in effect. `renew` reads its files. Raises InvalidConfigurationError."""
        self._configuration = configuration
        self._renew = renew
        self._read = self._seen = self._look()

    def look(self) -> None:
        """Read the files if they are others than those that were read last. What cannot be used is logged."""
        before, self._seen = self._seen, self._look()
        if self._seen == self._read or self._seen != before:
            return
        self._read = self._seen
        try:
            self._renew(self._configuration())
        except InvalidConfigurationError as e:
            log.error("the certificates stay as they were: %s", e)
        else:
            log.info("the files of certificates have changed, and were read again")

    async def follow(self) -> None:
        """Look, again and again."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def _look(self) -> _Look:
        configuration = self._configuration()
        named = [getattr(configuration, setting, None) for setting in _SETTINGS]
        return tuple((path, _facts(path)) for path in named if path is not None)


def _facts(path: str) -> tuple[int, int, int] | None:
    try:
        facts = Path(path).stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size
