"""The store in etcd beyond the conformance suite: lost answers, lines that are cut, TLS, users, compaction, limits."""

from __future__ import annotations

import asyncio
import random
import ssl
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from engine.clock import SystemClock
from engine.errors import (
    AlreadyClosedError,
    AuthenticationError,
    AuthorizationError,
    DiskFullError,
    InvalidArgumentError,
    InvalidConfigurationError,
    TimeoutError,
    UnsupportedError,
)
from engine.limits import METADATA_VALUE_SIZE_MAX
from engine.metadata.etcd.cluster import Cluster
from engine.metadata.etcd.store import EtcdMetadataStore
from engine.metadata.etcd.url import EtcdUrl
from engine.metadata.store import (
    ABSENT,
    Append,
    ConflictError,
    Delete,
    Event,
    EventKind,
    OutcomeUnknownError,
    Put,
    Stat,
)
from tests.kit.certificates import Authority
from tests.kit.etcd import Etcd, new_prefix
from tests.kit.line import Line
from tests.kit.peer import until
from tests.kit.programs import environment

PUT, DELETE, SNAPSHOT_END = EventKind.PUT, EventKind.DELETE, EventKind.SNAPSHOT_END


async def open_store(url: str, *, timeout: float = 10.0) -> EtcdMetadataStore:
    return await EtcdMetadataStore.open(url, clock=SystemClock(), rng=random.Random(url), timeout=timeout)


async def take(watch: Any, count: int) -> list[Event]:
    return [await asyncio.wait_for(anext(aiter(watch)), 30) for _ in range(count)]


def shown(events: list[Event]) -> list[tuple[EventKind, str]]:
    return [(event.kind, event.key) for event in events]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[list[Etcd]]:
    """Servers of one test, which are stopped."""
    servers: list[Etcd] = []
    try:
        yield servers
    finally:
        for server in servers:
            server.stop()


# -- URLs --------------------------------------------------------------------------------------------------------------


def test_a_url_names_members_a_prefix_a_user_and_files() -> None:
    url = EtcdUrl.parse("etcds://us%40er:p%2Fw@a:2379,b,[::1]:77/eng/ine?ca=/c%20a&cert=/b&key=/k")
    assert url.endpoints == ("a:2379", "b:2379", "[::1]:77")
    assert (url.prefix, url.user, url.password, url.tls) == ("/eng/ine/", "us@er", "p/w", True)
    assert (url.ca, url.cert, url.key) == ("/c a", "/b", "/k")
    assert url.text == "etcds://a:2379,b:2379,[::1]:77/eng/ine?ca=/c%20a&cert=/b&key=/k"


@pytest.mark.parametrize(
    "text",
    ["etcd://a:2379", "etcd://a/", "etcd:///p", "http://a/p", "etcd://a:99999/p", "etcd://a/p?ca=x", "etcds://a/p?x=y",
     "etcds://a/p?cert=x", "etcd://secret@a/p", "etcd://a,/p", "etcd://u:secret@a b/p", None],
)  # fmt: skip
def test_a_malformed_url_is_refused_without_its_password(text: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        EtcdUrl.parse(text)
    assert "secret" not in str(caught.value)


def test_what_is_not_used_is_not_imported() -> None:
    used = "engine, engine.embedded, engine.broker.server, engine.cli.serve, engine.metadata.etcd.url"
    unused = "grpc", "google.protobuf", "obstore"
    code = f"import sys, {used}; print([name for name in sys.modules if name in {unused}])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment(), check=True
    )
    assert done.stdout.strip() == "[]"


# -- lines and answers -------------------------------------------------------------------------------------------------


async def test_writes_whose_answer_was_lost_are_done_once_and_have_their_outcomes(etcd: Etcd) -> None:
    prefix = new_prefix()
    async with Line(etcd.members[0].client) as line:
        far, near = await open_store(f"etcd://{line.endpoint}/{prefix}"), await open_store(etcd.url(prefix))
        held = await far.put("/held", b"0", indexes={"i": "k"})
        await far.put("/doomed", b"0")
        await far.delete("/none")
        first = await far.put_sequence("/s", b"s")  # now it knows all that it writes, and needs to read nothing
        line.swallows = True
        writing = asyncio.gather(
            far.write_all([Put("/new", b"1", ABSENT), Put("/held", b"1", ABSENT), Delete("/doomed"), Delete("/none")]),
            far.put("/held", b"2", held.version),
            far.put_sequence("/s", b"s"),
        )
        await until_there(near, "/new")
        assert not writing.done()
        line.swallows = False
        line.cut()
        (new, taken, gone, none), stat, record = await writing
        assert isinstance(new, Stat)
        assert isinstance(taken, ConflictError)
        assert (gone, none) == (True, False)
        found = {one.key: one for one in await near.list("", "z")}
        assert found.keys() == {"/new", "/held", first.key, record.key}
        assert (found["/new"].stat, found["/held"].stat, found[record.key]) == (new, stat, record)
        await far.close()
        await near.close()


async def until_there(store: EtcdMetadataStore, key: str) -> None:
    watch = store.watch(key)
    async for event in watch:
        if event.kind is PUT:
            break
    watch.close()


async def test_what_is_given_up_is_read_back_only_when_its_outcome_is_certain(etcd: Etcd) -> None:
    prefix = new_prefix()
    async with Line(etcd.members[0].client) as line:
        far = await open_store(f"etcd://{line.endpoint}/{prefix}", timeout=0.5)
        line.swallows = True
        with pytest.raises(OutcomeUnknownError):
            await far.put("/a", b"1", ABSENT)
        with pytest.raises(TimeoutError):  # nor can be read what is there
            await far.get("/a")
        line.swallows = False
        line.cut()
        await until(lambda: not far._numbered.unsure)
        found = await far.get("/a")
        assert found is not None
        assert found.value == b"1"
        line.open = False
        line.cut()
        with pytest.raises((TimeoutError, OutcomeUnknownError)):
            await far.put("/b", b"1", ABSENT)
        line.open = True
        await until(lambda: not far._numbered.unsure)
        assert far.statistics().unknown >= 1
        await far.close()


async def test_a_watch_goes_on_where_it_was_over_a_line_that_is_cut(etcd: Etcd) -> None:
    prefix = new_prefix()
    async with Line(etcd.members[0].client) as line:
        far, near = await open_store(f"etcd://{line.endpoint}/{prefix}"), await open_store(etcd.url(prefix))
        await near.put("/w/0", b"", indexes={"i": "a"})
        watch, of_index = far.watch("/w/"), far.watch_index("i", "a", "c")
        for each in (watch, of_index):
            assert shown(await take(each, 2)) == [(PUT, "/w/0"), (SNAPSHOT_END, "")]
        line.open = False
        line.cut()
        await near.put("/w/1", b"", indexes={"i": "b"})
        await near.put("/w/2", b"", indexes={"i": ("a", "x")})
        await near.delete("/w/0")
        line.open = True
        for each in (watch, of_index):
            assert shown(await take(each, 3)) == [(PUT, "/w/1"), (PUT, "/w/2"), (DELETE, "/w/0")]
        assert far.statistics().watch_restarts == 0
        await far.close()
        await near.close()


async def test_a_watch_whose_history_was_compacted_is_told_what_is_new_and_what_has_gone(etcd: Etcd) -> None:
    prefix = new_prefix()
    async with Line(etcd.members[0].client) as line:
        far, near = await open_store(f"etcd://{line.endpoint}/{prefix}"), await open_store(etcd.url(prefix))
        for key in ("/w/goes", "/w/stays", "/w/changes"):
            await near.put(key, b"0", indexes={"i": "a"})
        watch, of_index = far.watch("/w/"), far.watch_index("i", "a", "c")
        for each in (watch, of_index):
            assert len(await take(each, 4)) == 4
        line.open = False
        line.cut()
        await near.delete("/w/goes")
        await near.put("/w/changes", b"1", indexes={"i": "b"})
        await near.put("/w/new", b"1", indexes={"i": "a"})
        await near.compact(await near.revision())
        line.open = True
        for each in (watch, of_index):
            assert sorted(shown(await take(each, 3)), key=str) == sorted(
                [(PUT, "/w/changes"), (PUT, "/w/new"), (DELETE, "/w/goes")], key=str
            )
        assert far.statistics().watch_restarts == 2
        await near.put("/w/last", b"", indexes={"i": "a"})
        for each in (watch, of_index):
            assert shown(await take(each, 1)) == [(PUT, "/w/last")]
        await far.close()
        await near.close()


# -- several clients ---------------------------------------------------------------------------------------------------


async def test_clients_that_write_the_same_keys_see_each_other(etcd: Etcd) -> None:
    prefix = new_prefix()
    stores = [await open_store(etcd.url(prefix)) for _ in range(3)]

    async def add(store: EtcdMetadataStore) -> str:
        while True:
            found = await store.get("/n")
            try:
                value = b"1" if found is None else b"%d" % (int(found.value) + 1)
                await store.put("/n", value, ABSENT if found is None else found.stat.version)
            except ConflictError:
                continue
            return (await store.put_sequence("/s", value)).key

    keys = await asyncio.gather(*(add(store) for store in stores for _ in range(10)))
    assert len(set(keys)) == 30
    assert [record.value for record in await stores[0].list("/n", "/o")] == [b"30"]
    assert await stores[1].list_keys("/s/", "/s0") == sorted(keys)
    before = [await store.put("/any", b"%d" % at, indexes={"i": f"{at}"}) for at, store in enumerate(stores)]
    assert [one.version for one in before] == sorted(one.version for one in before)
    assert [key for key, _ in await stores[0].list_index("i", "", "z")] == ["2"]
    assert await stores[0].delete("/any")
    assert await stores[1].list_index("i", "", "z") == []
    assert await stores[2].put("/any", b"", ABSENT)
    for store in stores:
        await store.close()


async def test_a_session_that_is_not_refreshed_ends_with_its_records_and_the_holder_knows_first(etcd: Etcd) -> None:
    prefix = new_prefix()
    holder, other = await open_store(etcd.url(prefix)), await open_store(etcd.url(prefix))
    session = await holder.session(1.0)
    await holder.put("/e", b"", session=session, indexes={"i": "k"})
    watch = other.watch("/e")
    assert shown(await take(watch, 2)) == [(PUT, "/e"), (SNAPSHOT_END, "")]
    await session.refresh()
    assert shown(await take(watch, 1)) == [(DELETE, "/e")]
    assert SystemClock().monotonic() > session.deadline
    assert await other.list_index("i", "", "z") == []
    with pytest.raises(AlreadyClosedError):
        await holder.put("/e", b"", session=session)
    lasting = await holder.session(30.0)
    late, kept, plain = await holder.write_all(
        [Put("/e", b"", session=session), Put("/f", b"", session=lasting), Put("/g", b"")]
    )
    assert isinstance(late, AlreadyClosedError)
    assert isinstance(kept, Stat)
    assert isinstance(plain, Stat)
    with pytest.raises(AlreadyClosedError):
        await session.refresh()
    await holder.close()
    assert await other.list_keys("", "z") == ["/g"]
    await other.close()


# -- sizes -------------------------------------------------------------------------------------------------------------


async def test_large_records_are_found_by_their_index_and_watched(etcd: Etcd) -> None:
    store = await open_store(etcd.url(new_prefix()))
    value = bytes(range(256)) * (METADATA_VALUE_SIZE_MAX // 256)
    watch = store.watch_index("i", "a", "c")
    await take(watch, 1)
    stat = await store.put("/large", value, indexes={"i": ("a", "b"), "j": "x"})
    ((first, one), (second, two)) = await store.list_index("i", "a", "c")
    assert (first, second) == ("a", "b")
    assert one == two
    assert (one.value, one.stat) == (value, stat)
    (event,) = await take(watch, 1)
    assert event.record == one
    assert await store.write_all([Put(f"/large/{at}", value) for at in range(3)])
    assert [record.value == value for record in await store.list("/large/", "/large0")] == [True] * 3
    with pytest.raises(InvalidArgumentError, match="together"):
        await store.put_with_sequence(Put("/a", value), Append("/s", value))
    assert await store.get("/a") is None
    await store.close()


async def test_transactions_stay_within_the_limits_of_etcd(etcd: Etcd) -> None:
    store = await open_store(etcd.url(new_prefix()))
    many = tuple(f"{at:05}" for at in range(1_500))
    await store.put("/wide", b"", indexes={"i": many})
    assert len(await store.list_index("i", "", "z")) == len(many)
    writes = [Put(f"/n/{at:04}", b"", indexes={"i": (f"{at}", f"x{at}"), "j": "k"}) for at in range(256)]
    for some in range(0, 5_000, 1_000):
        puts = (store.put(f"/m/{some + at:05}", b"", indexes={"m": "a"}) for at in range(1_000))
        await asyncio.gather(*puts)
    assert all(isinstance(outcome, Stat) for outcome in await store.write_all(writes))
    assert len(await store.list_index("j", "", "z")) == 256
    assert await store.delete_range("/m/", "/m0") == 5_000
    assert await store.list_index("m", "", "z") == []
    assert await store.delete_range("", "z") == 257
    assert await store.list_index("i", "", "z") == []
    with pytest.raises(InvalidArgumentError, match="index keys"):
        await store.put("/wider", b"", indexes={"i": tuple(f"{at}" for at in range(2_000))})
    assert await store.list_keys("", "z") == []
    await store.close()


async def test_a_full_store_says_so_and_counts_it(tmp_path: Path, own: list[Etcd]) -> None:
    server = Etcd(tmp_path, options=("--quota-backend-bytes", str(6 * 1024 * 1024)))
    own.append(server)
    server.start()
    store = await open_store(server.url("engine"))
    kept = await store.put("/kept", b"1")
    filling = (store.put(f"/{at}", random.Random(at).randbytes(256 * 1024)) for at in range(100))
    with pytest.raises(DiskFullError, match="NOSPACE"):
        await asyncio.gather(*filling)
    assert store.statistics().full >= 1
    found = await store.get("/kept")
    assert found is not None
    assert found.stat == kept
    with pytest.raises(DiskFullError):
        await store.put("/more", b"")
    await store.compact(await store.revision())
    await asyncio.to_thread(server.ctl, "defrag")
    await asyncio.to_thread(server.ctl, "alarm", "disarm")
    await store.close()


# -- who may ----------------------------------------------------------------------------------------------------------


async def test_tls_with_certificates_on_both_sides(tmp_path: Path, own: list[Etcd]) -> None:
    authority = Authority(tmp_path)
    mine = authority.certify("127.0.0.1", name="server")
    client = authority.certify("client", name="client")
    options = ("--cert-file", mine.cert, "--key-file", mine.key, "--client-cert-auth", "--trusted-ca-file",
               authority.file)  # fmt: skip
    server = Etcd(tmp_path, options=options, tls=True)
    own.append(server)
    server.start()
    query = f"?ca={authority.file}&cert={client.cert}&key={client.key}"
    store = await open_store(server.url("engine", query=query))
    await store.put("/a", b"1")
    watch = store.watch("/")
    assert shown(await take(watch, 2)) == [(PUT, "/a"), (SNAPSHOT_END, "")]
    session = await store.session(5.0)
    await session.refresh()
    await store.close()
    with pytest.raises(TimeoutError):
        await open_store(server.url("engine", query=f"?ca={authority.file}"), timeout=0.5)
    with pytest.raises(InvalidConfigurationError):
        await open_store(server.url("engine", query=f"?ca={tmp_path}/missing.pem"))


@pytest.mark.parametrize(
    ("version", "taken"),
    [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)],
)
async def test_tls_towards_etcd_is_1_2_at_least(tmp_path: Path, version: ssl.TLSVersion, taken: bool) -> None:
    """gRPC offers no setting of it, and nothing older by itself."""
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the old version
        context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(*authority.certify("127.0.0.1"))
    agreed: list[str | None] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        agreed.append(writer.get_extra_info("ssl_object").version())
        writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    host, port = server.sockets[0].getsockname()
    with pytest.raises(TimeoutError):
        await open_store(f"etcds://{host}:{port}/engine?ca={authority.file}", timeout=1.0)
    server.close()
    assert bool(agreed) is taken
    assert set(agreed) <= {version.name.replace("_", ".")}


async def test_user_and_password(tmp_path: Path, own: list[Etcd], caplog: pytest.LogCaptureFixture) -> None:
    server = Etcd(tmp_path, options=("--auth-token-ttl", "1"))
    own.append(server)
    await asyncio.to_thread(allow, server)
    store = await open_store(server.url("engine", login="engine:s3cret@"))
    stat = await store.put("/a", b"1")
    watch = store.watch("/")
    assert shown(await take(watch, 2)) == [(PUT, "/a"), (SNAPSHOT_END, "")]
    server.stop()  # it forgets its tokens
    await asyncio.to_thread(server.start)
    assert await store.put("/a", b"2", stat.version)
    assert shown(await take(watch, 1)) == [(PUT, "/a")]
    assert "s3cret" not in repr(store) + repr(EtcdUrl.parse(server.url("engine", login="engine:s3cret@"))) + caplog.text
    await store.close()
    with pytest.raises(AuthenticationError) as wrong:
        await open_store(server.url("engine", login="engine:s3cret-not@"))
    with pytest.raises(AuthenticationError):
        await open_store(server.url("engine"))
    with pytest.raises(AuthorizationError) as elsewhere:
        await open_store(server.url("elsewhere", login="engine:s3cret@"))
    assert "s3cret" not in f"{wrong.value} {elsewhere.value}"


class NewerStream:
    """A stream of watches, with answers that do not say which watcher was refused."""

    def __init__(self, stream: Any) -> None:
        self.write = stream.write
        self.cancel = stream.cancel
        self._stream = stream

    async def read(self) -> Any:
        response = await self._stream.read()
        if response is not grpc.aio.EOF and response.canceled and response.cancel_reason:
            response.watch_id, response.cancel_reason = -1, "etcdserver: invalid auth token"
        return response


@pytest.mark.parametrize("newer", [False, True])
async def test_a_watch_goes_on_where_its_server_has_forgotten_the_token(
    tmp_path: Path, own: list[Etcd], monkeypatch: pytest.MonkeyPatch, newer: bool
) -> None:
    """etcd says "permission denied" then, as of a right that is lacking; no call has got another token before."""
    open_watch = Cluster.open_watch

    async def open_newer(cluster: Cluster) -> NewerStream:
        return NewerStream(await open_watch(cluster))

    if newer:
        monkeypatch.setattr(Cluster, "open_watch", open_newer)
    server = await with_a_user(tmp_path, own)
    store = await open_store(server.url("engine", login="engine:s3cret@"))
    watch = store.watch("/")
    assert shown(await take(watch, 1)) == [(SNAPSHOT_END, "")]
    other = await open_store(server.url("engine", login="engine:s3cret@"))
    server.stop()
    await asyncio.to_thread(server.start)
    await other.put("/a", b"1")
    assert shown(await take(watch, 1)) == [(PUT, "/a")]
    await other.close()
    await store.close()


async def test_watches_begin_in_a_stream_whose_token_is_over(tmp_path: Path, own: list[Etcd]) -> None:
    server = await with_a_user(tmp_path, own)
    store = await open_store(server.url("engine", login="engine:s3cret@"))
    before = store.watch("/")
    assert shown(await take(before, 1)) == [(SNAPSHOT_END, "")]
    await store.put("/a", b"1")
    assert shown(await take(before, 1)) == [(PUT, "/a")]
    for command in ("disable", "enable"):  # all tokens are over, and the stream goes on
        await asyncio.to_thread(server.ctl, *(["--user", "root:admin"] * (command == "disable")), "auth", command)
    behind = store.watch("/b")
    assert shown(await take(behind, 1)) == [(SNAPSHOT_END, "")]
    await store.put("/b", b"1")
    for watch in (before, behind):
        assert shown(await take(watch, 1)) == [(PUT, "/b")]
    await store.close()


async def test_a_watch_ends_with_the_right_to_read_its_keys(tmp_path: Path, own: list[Etcd]) -> None:
    server = await with_a_user(tmp_path, own)
    store = await open_store(server.url("engine", login="engine:s3cret@"))
    watch = store.watch("/")
    assert shown(await take(watch, 1)) == [(SNAPSHOT_END, "")]
    await asyncio.to_thread(server.ctl, "--user", "root:admin", "user", "revoke-role", "engine", "engine")
    server.stop()
    await asyncio.to_thread(server.start)
    with pytest.raises(AuthorizationError):
        await take(watch, 1)
    await store.close()


async def with_a_user(tmp_path: Path, own: list[Etcd]) -> Etcd:
    """A server that asks for one. It ends with the test."""
    server = Etcd(tmp_path)
    own.append(server)
    await asyncio.to_thread(allow, server)
    return server


def allow(server: Etcd) -> None:
    """A user that may write below /engine/, and nothing without a user."""
    server.start()
    for command in (
        "user add root:admin", "user grant-role root root", "role add engine",
        "role grant-permission engine readwrite /engine/ --prefix", "user add engine:s3cret",
        "user grant-role engine engine", "auth enable",
    ):  # fmt: skip
        server.ctl(*command.split())


async def test_a_password_is_not_needed_where_there_are_no_users(etcd: Etcd) -> None:
    store = await open_store(etcd.url(new_prefix(), login="engine:s3cret@"))
    await store.put("/a", b"1")
    await store.close()


async def test_records_of_a_newer_format_are_refused(etcd: Etcd) -> None:
    prefix = new_prefix()
    await asyncio.to_thread(etcd.ctl, "put", f"/{prefix}/format", "7")
    with pytest.raises(UnsupportedError):
        await open_store(etcd.url(prefix))
