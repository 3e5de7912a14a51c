"""What a proxy says of its clients, and whether it is believed.

A proxy that speaks for clients shows its own proof, and says beside it what its client has given: a token, which is
verified here as if it had come over a connection of its own; or, where the client's certificate ended at the proxy, the
role that it named. This is believed of a principal with the right `proxy` alone. The connection is then the client's:
its role is checked and audited, and the proxy is named beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from engine.broker.rights.identities import Credentials, Identities
from engine.broker.rights.need import Need
from engine.broker.rights.principal import Kind, Principal, Proof, earlier
from engine.broker.rights.rights import Rights
from engine.broker.settings.attempts import Refusal
from engine.errors import AuthenticationError, EngineError, InvalidArgumentError, UnsupportedError
from engine.model.rights import Right, check_role

NEED = Need(Right.PROXY)


@dataclass(frozen=True, slots=True)
class Claim:
    """`client`: the address of the proxy's client. `token`: what it has given. `role`: of its certificate."""

    client: str
    token: str | None = field(default=None, repr=False)
    role: str | None = None


def identify_speaker(
    identities: Identities, rights: Rights, proxy: Credentials, peer: str | None
) -> Principal | Refusal:
    """The principal of the proxy. `proxy`: its own proof. `peer`: its address."""
    if not rights.on:
        return _refused(UnsupportedError("a proxy cannot speak for clients to a broker without roles"))
    return identities.identify(proxy, peer)


def identify_proxied(
    identities: Identities, rights: Rights, speaker: Principal, claim: Claim, peer: str | None
) -> Principal | Refusal:
    """The principal of a proxy's client. `speaker`: the proxy, whose role is Followed. `peer`: its address."""
    try:
        rights.check(speaker, NEED, "speak for a client", peer)
        if claim.token is None and claim.role is not None:
            role = check_role(claim.role)
            return Principal(Kind.ROLE, Proof.PROXY, role, speaker.expires, speaker=speaker)
    except InvalidArgumentError as e:
        return _refused(AuthenticationError(str(e)))
    except EngineError as e:
        return _refused(e)
    found = identities.identify(Credentials(claim.token), claim.client)
    if isinstance(found, Refusal):
        return found
    return replace(found, speaker=speaker, expires=earlier(found.expires, speaker.expires))


def _refused(error: EngineError) -> Refusal:
    return Refusal(error, 0.0)
