"""Principals: one for each way in, made in one place, with what each of them proves."""

from __future__ import annotations

import pytest

from engine.broker.rights.identities import Credentials, Identities
from engine.broker.rights.principal import ANONYMOUS, OWNER, SHARED, Kind, Proof
from engine.broker.settings.attempts import Attempts, Refusal
from engine.broker.settings.config import BrokerConfig
from engine.errors import AuthenticationError
from engine.testing.maps import over_maps
from engine.wire.memory import MemoryConnector
from engine.wire.unix import dial
from tests.kit.peer import Peer, listening

TOKEN, CLUSTER = "correct horse battery staple", "another one, of the brokers"


def identities(**config) -> Identities:
    made = BrokerConfig(**config)
    return Identities(Attempts(lambda: 0.0), lambda: made)


@pytest.mark.parametrize(
    ("config", "given", "found"),
    [
        ({}, Credentials(), ANONYMOUS),
        ({}, Credentials("whatever"), ANONYMOUS),
        ({"auth_token": TOKEN}, Credentials(TOKEN), SHARED),
        ({"auth_token": TOKEN}, Credentials(local=True), OWNER),
        ({"cluster_token": CLUSTER}, Credentials(), ANONYMOUS),
        ({"cluster_token": CLUSTER}, Credentials(CLUSTER), ANONYMOUS),  # it means nothing to the HTTP API
    ],
)
def test_the_kind_of_a_principal_is_what_its_credentials_prove(config, given, found):
    assert identities(**config).identify(given, None) == found


@pytest.mark.parametrize("auth_token", [None, TOKEN])
def test_the_token_of_brokers_makes_a_broker_at_a_port_for_brokers(auth_token):
    there = identities(auth_token=auth_token, cluster_token=CLUSTER)
    found = there.identify(Credentials(CLUSTER, among_brokers=True), None)
    assert (found.kind, found.proof) == (Kind.BROKER, Proof.TOKEN)
    assert not found.unlimited


@pytest.mark.parametrize(
    ("config", "given"),
    [
        ({"auth_token": TOKEN}, Credentials()),
        ({"auth_token": TOKEN}, Credentials("wrong")),
        ({"auth_token": TOKEN, "cluster_token": CLUSTER}, Credentials(CLUSTER)),
        ({"cluster_token": CLUSTER}, Credentials("wrong", among_brokers=True)),
    ],
)
def test_what_proves_nothing_is_refused_and_counted(config, given):
    there = identities(**config)
    refusal = there.identify(given, "tcp://192.0.2.1:5")
    assert isinstance(refusal, Refusal)
    assert isinstance(refusal.error, AuthenticationError)
    assert there._attempts.failures == 1


def test_no_secret_is_shown():
    assert TOKEN not in repr(Credentials(TOKEN))
    assert TOKEN not in repr(identities(auth_token=TOKEN).identify(Credentials(TOKEN), None))


async def test_each_way_in_has_its_principal(start_broker, tmp_path):
    async with start_broker(auth_token=TOKEN, cluster_token=CLUSTER) as broker:
        url = await listening(broker)
        for token, kind in ((TOKEN, Kind.SHARED), (CLUSTER, Kind.BROKER)):
            peer = await Peer.connect(broker, url, hello=False)
            await peer.hello(token=token)
            assert [c.principal.kind for c in broker.connections] == [kind]
            peer.stream.close()
            await peer.lost
        peer = Peer()
        await MemoryConnector(broker.accept_local).connect("engine://embedded", _handler(peer))
        await peer.hello()
        assert [c.principal for c in broker.connections] == [OWNER]
        await broker.serve_unix(str(tmp_path / "socket"))
        other = Peer()
        await dial(str(tmp_path / "socket"), _handler(other), pool=broker._pool, timeout=30)
        await other.hello()
        assert [c.principal for c in broker.connections] == [OWNER, OWNER]


def _handler(peer):
    return over_maps(peer._made)
