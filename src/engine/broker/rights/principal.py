"""`Principal`: the identity for which a request is made."""

from __future__ import annotations

import enum
from contextvars import ContextVar
from dataclasses import dataclass


class Kind(enum.Enum):
    """How far a principal is trusted, before any grant."""

    OWNER = "owner"  # within this process, or of its user over a Unix socket: everything
    ANONYMOUS = "anonymous"  # where the broker asks for nothing: everything
    SHARED = "shared"  # with the token that all clients share: everything
    BROKER = "broker"  # another broker of the cluster: calls between brokers
    ROLE = "role"  # what its role is granted
    UNKNOWN = "unknown"  # refused before it has proved anything, or known to another server: nothing


class Proof(enum.Enum):
    """How a principal was authenticated."""

    NOTHING = "nothing"
    LOCAL = "local"  # it is in this process, or the credentials of its Unix socket are those of this user
    TOKEN = "token"
    TOKEN_FILE = "token file"
    JWT = "jwt"
    CERTIFICATE = "certificate"
    UNIX_USER = "unix user"  # the credentials of its Unix socket are those of a user with a role
    PROXY = "proxy"  # a proxy that may speak for clients says so


@dataclass(frozen=True, slots=True)
class Principal:
    """`role`: its name, of a ROLE. `expires`: the wall-clock second at which its proof expires; None: never.

    `secret`: what its proof depends on, so that it can be withdrawn: the digest of its token in a token file, of the
    key of its JSON Web Token or of the authority of its certificate, or the number of its user; empty for all others.
    `speaker`: the proxy that it comes through, where this has said for which client.
    """

    kind: Kind
    proof: Proof
    role: str = ""
    expires: float | None = None
    secret: bytes = b""
    speaker: Principal | None = None

    @property
    def unlimited(self) -> bool:
        """Whether it may do everything, whatever is granted to it."""
        return self.kind in (Kind.OWNER, Kind.ANONYMOUS, Kind.SHARED)

    def is_about(self, role: str) -> bool:
        """Whether what it may do depends on the grants of a role."""
        return self.role == role or (self.speaker is not None and self.speaker.role == role)

    def __str__(self) -> str:
        return self.role if self.kind is Kind.ROLE else self.kind.value

    def __repr__(self) -> str:
        return f"Principal({self.kind.value}, {self.proof.value}, {self.role!r})"


OWNER = Principal(Kind.OWNER, Proof.LOCAL)
ANONYMOUS = Principal(Kind.ANONYMOUS, Proof.NOTHING)
SHARED = Principal(Kind.SHARED, Proof.TOKEN)
UNKNOWN = Principal(Kind.UNKNOWN, Proof.NOTHING)
PRINCIPAL: ContextVar[Principal] = ContextVar("principal", default=ANONYMOUS)  # of the HTTP request in this task
PEER: ContextVar[str | None] = ContextVar("peer", default=None)  # the address of its client


def earlier(one: float | None, other: float | None) -> float | None:
    """The earlier of two expiries; None: never."""
    return one if other is None else other if one is None else min(one, other)
