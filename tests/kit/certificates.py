"""A certificate authority of a test, and what it signs, as PEM files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trustme


class Certified(NamedTuple):
    """Paths of a certificate chain and its key."""

    cert: str
    key: str


class Authority:
    """Signs certificates for hosts and addresses. `file`: its own certificate, which clients trust."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._ca = trustme.CA()
        self._directory = directory
        self._name = name
        self.file = str(directory / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.file)

    @property
    def text(self) -> str:
        """Its own certificate, PEM."""
        return self._ca.cert_pem.bytes().decode()

    def certify(self, *hosts: str, name: str | None = None, subject: str | None = None) -> Certified:
        """`name`: of the files; a second certificate of that name replaces the first. `subject`: its common name."""
        made = self._ca.issue_cert(*hosts, common_name=subject)
        stem = self._directory / f"{self._name}-{name or '-'.join(hosts).replace('*', 'any')}"
        cert, key = f"{stem}.pem", f"{stem}.key"
        made.private_key_pem.write_to_path(key)
        with Path(cert).open("wb") as file:
            file.writelines(blob.bytes() for blob in made.cert_chain_pems)
        return Certified(cert, key)
