"""Every command and every route over each way in: what is refused is what the table of rights says of the principal."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engine.broker.rights.token_file import line_of
from engine.model.rights import Right
from engine.testing.maps import over_maps
from engine.wire.chunks import ChunkPool
from engine.wire.connector import SocketConnector
from engine.wire.sockets import SocketStream
from tests.broker.test_rights_matrix import TOPIC, WHO, Who, every_command, every_operation
from tests.kit.certificates import Authority
from tests.kit.peer import Peer, listening

SHARED, CLUSTER = "token of all clients", "token of the brokers"
USER = 65534
GIVEN = {who.name: who for who in WHO}
SOME = [GIVEN[name] for name in ("nothing", "neighbour", "prefixed", "operate")]


class OfBrokers(Who):
    """Calls between brokers, and nothing else."""

    def may(self, need: Any) -> bool:
        return bool(need.rights == Right.BROKER)


@pytest.fixture
def start(start_broker, tmp_path):
    path = tmp_path / "roles"
    path.write_text("".join(line_of(who.name, f"token-{who.name}") + "\n" for who in WHO))

    @asynccontextmanager
    async def begin(**more: Any) -> AsyncIterator[Any]:
        async with start_broker(roles_file=str(path), auth_token=SHARED, cluster_token=CLUSTER, **more) as broker:
            await broker.admin.create_topic(TOPIC)
            for who in WHO:
                for resource, rights in (who.granted or {}).items():
                    await broker.admin.grant(resource, who.name, rights, subscription_prefix=who.prefix)
            await broker.serve_admin("127.0.0.1", 0)
            yield broker

    return begin


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may look into."""
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory)
        made.chmod(0o755)
        yield made


async def test_anonymous_peers_on_the_loopback_may_do_everything_where_there_are_no_roles(start_broker):
    class Anyone(Who):
        def may(self, need: Any) -> bool:
            return True

    async with start_broker() as broker, aiohttp.ClientSession() as session:
        await broker.admin.create_topic(TOPIC)
        await every_command(broker, await Peer.connect(broker, await listening(broker)), Anyone("anyone", None))
        await broker.serve_admin("127.0.0.1", 0)
        await every_operation(broker, session, Anyone("anyone", None))


async def test_the_shared_token_is_a_superusers_and_no_brokers(start):
    async with start() as broker:
        peer = await Peer.connect(broker, await listening(broker), hello=False)
        await peer.hello(token=SHARED)
        who = Who("shared", None, unlimited=True)
        await every_command(broker, peer, who)
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {SHARED}"}) as session:
            await every_operation(broker, session, who)


async def test_a_broker_calls_and_may_do_nothing_else(start):
    async with start() as broker:
        peer = await Peer.connect(broker, await listening(broker), hello=False)
        await peer.hello(token=CLUSTER, broker="engine://192.0.2.1:6650")
        await every_command(broker, peer, OfBrokers("broker", {}))
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {CLUSTER}"}) as session,
            session.get(broker.admin_url + "/admin/v2/namespaces") as answer,
        ):
            assert answer.status == 401  # its token is of another port


async def test_a_client_behind_a_proxy_may_do_what_its_role_may(start):
    async with start() as broker:
        url = await listening(broker)
        for who in SOME:
            peer = await Peer.connect(broker, url, hello=False)
            await peer.hello(proxy_token="token-proxy", role=who.name, forwarded="tcp://192.0.2.1:1")
            await every_command(broker, peer, who)
            headers = {"Engine-Proxy-Authorization": "Bearer token-proxy", "Engine-Proxy-Role": who.name}
            async with aiohttp.ClientSession(headers=headers) as session:
                await every_operation(broker, session, who)


async def test_a_certificate_may_do_what_its_role_may(start, tmp_path):
    authority = Authority(tmp_path)
    cert, key = authority.certify("127.0.0.1")
    async with start(tls_cert=cert, tls_key=key, tls_client_ca=authority.file) as broker:
        url = await listening(broker)
        for who in SOME:
            context = ssl.create_default_context(cafile=authority.file)
            context.load_cert_chain(*authority.certify("laptop.example.org", name=who.name, subject=who.name))
            peer = Peer()
            await SocketConnector(tls=context).connect(url, over_maps(peer._made))
            await peer.hello()
            await every_command(broker, peer, who)
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
                await every_operation(broker, session, who)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can pass for another user")
@pytest.mark.parametrize("who", SOME, ids=lambda who: who.name)
async def test_a_user_of_the_unix_socket_may_do_what_its_role_may(start, public, who):
    async with start(unix_users=[f"{USER}={who.name}"]) as broker:
        path = f"{public}/socket"
        await broker.serve_unix(path)
        sock = socket.socket(socket.AF_UNIX)
        os.seteuid(USER)  # the system notes it when the socket connects
        try:
            sock.connect(path)
        finally:
            os.seteuid(0)
        sock.setblocking(False)
        peer = Peer()
        made = lambda: SocketStream(over_maps(peer._made), ChunkPool(), url=broker.service_url)  # noqa: E731
        await asyncio.get_running_loop().create_unix_connection(made, sock=sock)
        await peer.hello()
        await every_command(broker, peer, who)
