"""`CertificateFiles`: files of certificates, keys and authorities, which are read again when they have changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from engine.aio.changed_files import ChangedFiles
from engine.errors import InvalidConfigurationError

C = TypeVar("C")

log = logging.getLogger(__name__)

LOOK_S = 0.5  # between two looks
# Those of a broker, and of a proxy.
_SETTINGS = (
    *("tls_cert", "tls_key", "tls_client_ca", "cluster_tls_cert", "cluster_tls_key", "cluster_tls_ca"),
    *("broker_tls_cert", "broker_tls_key", "broker_tls_ca"),
)


class CertificateFiles(Generic[C]):
    """The files that the configuration of one program names. Loop thread only. `unusable`: looks that found new files
    which could not be used.
    """

    def __init__(self, configuration: Callable[[], C], renew: Callable[[C], object]) -> None:
        """`configuration`: the one in effect. `renew` reads its files. Raises InvalidConfigurationError."""
        self.unusable = 0
        self._configuration = configuration
        self._renew = renew
        self._files = ChangedFiles(self._paths)

    def look(self) -> None:
        """Read the files if they are others than those that were read last. What cannot be used is logged."""
        if not self._files.look():
            return
        try:
            self._renew(self._configuration())
        except InvalidConfigurationError as e:
            self.unusable += 1
            log.error("the certificates stay as they were: %s", e)
        else:
            log.info("the files of certificates have changed, and were read again")

    async def follow(self) -> None:
        """Look, again and again."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def _paths(self) -> Iterator[str]:
        configuration = self._configuration()
        for setting in _SETTINGS:
            path = getattr(configuration, setting, None)
            if path is not None:
                yield path
