"""`Principal`: the identity for which a request is made."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """How far a principal is trusted, before any grant."""

    OWNER = "owner"  # within this process, or of its user over a Unix socket: everything
    ANONYMOUS = "anonymous"  # where the broker asks for nothing: everything
    SHARED = "shared"  # with the token that all clients share: everything
    BROKER = "broker"  # another broker of the cluster: calls between brokers
    ROLE = "role"  # what its role is granted


class Proof(enum.Enum):
    """How a principal was authenticated."""

    NOTHING = "nothing"
    LOCAL = "local"  # it is in this process, or the credentials of its Unix socket are those of this user
    TOKEN = "token"
    TOKEN_FILE = "token file"
    JWT = "jwt"
    CERTIFICATE = "certificate"


@dataclass(frozen=True, slots=True)
class Principal:
    """`role`: its name, of a ROLE. `expires`: the wall-clock second at which its proof expires; None: never.

    `secret`: the digest of the token by which it was found in a token file; empty for all others.
    """

    kind: Kind
    proof: Proof
    role: str = ""
    expires: float | None = None
    secret: bytes = b""

    @property
    def unlimited(self) -> bool:
        """Whether it may do everything, whatever is granted to it."""
        return self.kind in (Kind.OWNER, Kind.ANONYMOUS, Kind.SHARED)

    def __str__(self) -> str:
        return self.role if self.kind is Kind.ROLE else self.kind.value

    def __repr__(self) -> str:
        return f"Principal({self.kind.value}, {self.proof.value}, {self.role!r})"


OWNER = Principal(Kind.OWNER, Proof.LOCAL)
ANONYMOUS = Principal(Kind.ANONYMOUS, Proof.NOTHING)
SHARED = Principal(Kind.SHARED, Proof.TOKEN)
