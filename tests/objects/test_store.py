"""The object store against a real S3 server: conditional PUTs, ranges, lists, multipart uploads, refusals."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.errors import AuthorizationError
from engine.storage.objects.ports import ObjectExistsError, ObjectMissingError
from engine.storage.objects.probe import probe
from engine.storage.objects.remote import RemoteObjectStore
from tests.kit.s3_server import S3Server


async def test_what_is_stored_is_read_whole_in_ranges_and_from_the_end(store: RemoteObjectStore):
    await store.put_if_absent("a/b", [b"0123", bytearray(b"4567"), memoryview(b"89")])
    assert bytes(await store.get("a/b")) == b"0123456789"
    assert bytes(await store.get_range("a/b", 2, 5)) == b"234"
    assert bytes(await store.get_range("a/b", 8, 99)) == b"89"
    tail = await store.get_tail("a/b", 3)
    assert (bytes(tail.data), tail.size) == (b"789", 10)
    assert bytes((await store.get_tail("a/b", 99)).data) == b"0123456789"
    for missing in (store.get("a/c"), store.get_range("a/c", 0, 1), store.get_tail("a/c", 1)):
        with pytest.raises(ObjectMissingError):
            await missing


async def test_of_many_conditional_puts_of_a_name_one_is_accepted(store: RemoteObjectStore):
    for round_ in range(2):
        puts = (store.put_if_absent(f"race/{round_}", [str(n).encode()]) for n in range(4))
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert sorted(map(str, outcomes)) == ["None", *["there is an object of this name"] * 3]
        found = bytes(await store.get(f"race/{round_}"))
        assert outcomes[int(found)] is None
    with pytest.raises(ObjectExistsError):
        await store.put_if_absent("race/0", [b"again"])
    assert store.statistics().requests == {"put": 9, "get": 2, "list": 0, "delete": 0, "multipart": 0}


async def test_lists_are_in_order_and_begin_behind_a_name(store: RemoteObjectStore):
    names = [f"log/{n:04d}" for n in range(1_205)]
    await asyncio.gather(*(store.put_if_absent(name, [b"x" * (n % 3 + 1)]) for n, name in enumerate(names)))
    await store.put_if_absent("logs", [b"another folder"])
    found = [info async for info in store.list("log")]
    assert [info.name for info in found] == names
    assert [info.size for info in found[:4]] == [1, 2, 3, 1]
    assert [info.name async for info in store.list("log", after="log/1201")] == names[1_202:]
    await store.delete([*names[:1_200], "log/never-there"])
    assert [info.name async for info in store.list("log")] == names[1_200:]
    assert [info.name async for info in store.list("nothing")] == []


async def test_a_large_object_is_uploaded_in_parts(store: RemoteObjectStore):
    piece = random.Random(1).randbytes(3 << 20)
    await store.put_multipart("big", (piece for _ in range(6)), 6 * len(piece))
    assert bytes(await store.get("big")) == piece * 6
    assert store.statistics().requests["multipart"] == 5  # the begin, three parts, the end


async def test_the_probe_accepts_the_server_and_leaves_nothing(store: RemoteObjectStore):
    await probe(store, random.Random(2))
    assert [info async for info in store.list("probe")] == []


async def test_wrong_credentials_are_a_typed_error(server: S3Server):
    environment = server.environment | {"AWS_SECRET_ACCESS_KEY": "another"}
    store = RemoteObjectStore.open("s3://engine/x", environment, rng=random.Random(1))
    with pytest.raises(AuthorizationError, match="refused the request: 403 SignatureDoesNotMatch"):
        await store.get("a")
