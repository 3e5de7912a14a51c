"""Tenants, namespaces and grants: records that administrators change, and every broker follows."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

import engine
from engine.broker.rights.grants import Grants
from engine.broker.rights.records import RightsRecords, indexes_of
from engine.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.model.rights import CLUSTER, Grant, Right, parents
from engine.testing.clock import FakeClock
from tests.broker.over_http import call
from tests.kit.peer import listening


@contextlib.asynccontextmanager
async def following(*grants: Grant, roles=("ann", "an", "bob")):
    """The grants of the roles, known."""
    store = MemoryMetadataStore(FakeClock())
    for grant in grants:
        indexes = indexes_of(grant.resource, grant.role)
        await store.put(keys.grant(grant.resource, grant.role), grant.to_json(), indexes=indexes)
    found = Grants(store, lambda role: None)
    await found.start()
    for role in roles:
        found.use(role)
        await found.known(role, 60.0)
    try:
        yield found
    finally:
        await found.close()
        await store.close()


@pytest.mark.parametrize("resource", ["a/b/c", "a/b", "a", CLUSTER])
async def test_a_right_holds_for_what_lies_below(resource):
    async with following(Grant(resource, "ann", ("produce",))) as grants:
        assert grants.holds("ann", Right.PRODUCE, "a/b/c")
        assert grants.holds("ann", Right.LOOKUP, "a/b/c")  # implied
        assert not grants.holds("ann", Right.CONSUME, "a/b/c")
        assert not grants.holds("an", Right.PRODUCE, "a/b/c")
        if resource != CLUSTER:
            assert not grants.holds("ann", Right.PRODUCE, resource + "x")
            assert not grants.holds("ann", Right.PRODUCE, CLUSTER)


@pytest.mark.parametrize(
    ("rights", "resource", "prefix"),
    [((), "a", None), (("broker",), "*", None), (("fly",), "a", None), ("produce", "a", None),
     (("operate",), "a", None), (("superuser",), "a/b", None), (("produce",), "a/b", "x"),
     (("produce",), "a/b/c/d", None),
     (("produce",), "", None), (("produce",), "a//b", None)],
)  # fmt: skip
def test_what_is_no_grant_is_refused(rights, resource, prefix):
    with pytest.raises(InvalidArgumentError):
        Grant(resource, "ann", rights, prefix)


async def test_a_damaged_record_grants_nothing():
    async with following() as grants:
        for value in (b"", b"[]", b'{"rights": 1}', b'{"rights": ["superuser"]}'):
            assert grants.note(keys.grant("a", "ann"), value) == "ann"
            assert not grants.holds("ann", Right.PRODUCE, "a/b/c")
        assert grants.note("/grants/a", b"{}") is None


async def test_grants_survive_a_restart_and_are_listed_by_resource(start_broker):
    async with start_broker() as broker:
        await broker.admin.grant("a/b", "ann", ["consume", "produce"], subscription_prefix="x-")
        await broker.admin.grant("a/b/c", "bob", ["admin"])
        await broker.admin.grant("ab", "bob", ["admin"])
    async with start_broker() as broker:
        found = await broker.admin.list_grants("a")
        assert found == [
            {"resource": "a/b", "role": "ann", "rights": ["produce", "consume"], "subscription_prefix": "x-"},
            {"resource": "a/b/c", "role": "bob", "rights": ["admin"], "subscription_prefix": None},
        ]
        assert len(await broker.admin.list_grants("*")) == 3
        await broker.admin.revoke("a/b", "ann")
        with pytest.raises(NotFoundError):
            await broker.admin.revoke("a/b", "ann")
        assert await broker.admin.list_grants("a/b") == found[1:]


async def test_tenants_and_namespaces_are_made_and_deleted(broker):
    await broker.serve_admin("127.0.0.1", 0)
    async with engine.AsyncClient(await listening(broker)) as client:
        admin = client.admin
        assert await admin.list_tenants() == []
        await admin.create_tenant("a", roles=["ann"])
        with pytest.raises(AlreadyExistsError):
            await admin.create_tenant("a")
        assert await admin.get_tenant("a") == {"tenant": "a", "roles": ["ann"]}
        with pytest.raises(InvalidArgumentError, match="one of those of the tenant a"):
            await admin.grant("a/b", "bob", ["produce"])
        await admin.grant("a/b", "ann", ["produce"])
        await admin.create_namespace("a/b")
        with pytest.raises(AlreadyExistsError):
            await admin.create_namespace("a/b")
        assert await admin.list_namespaces() == ["a/b"]
        await admin.set_namespace_policies("a/b", {"retention_time_s": 5})
        await admin.remove_namespace_policies("a/b")
        assert await admin.list_namespaces() == ["a/b"]  # it was created
        with pytest.raises(InvalidArgumentError, match="no namespaces"):
            await admin.delete_tenant("a")
        await admin.create_topic("a/b/c")
        with pytest.raises(InvalidArgumentError, match="no topics"):
            await admin.delete_namespace("a/b")
        await admin.delete_topic("a/b/c")
        await admin.delete_namespace("a/b")
        assert await admin.list_grants("*") == []
        with pytest.raises(NotFoundError):
            await admin.delete_namespace("a/b")
        await admin.delete_tenant("a")
        with pytest.raises(NotFoundError):
            await admin.get_tenant("a")


async def test_the_roles_of_a_tenant_are_changed_and_none_with_a_grant_is_left_out(broker):
    admin = broker.admin
    with pytest.raises(NotFoundError, match="the tenant a was not created"):
        await admin.set_tenant_roles("a", ["ann"])
    await admin.create_tenant("a", roles=["ann"])
    await admin.grant("a/b", "ann", ["produce"])
    await admin.set_tenant_roles("a", ["bob", "ann", "bob"])
    assert await admin.get_tenant("a") == {"tenant": "a", "roles": ["ann", "bob"]}
    await admin.grant("a", "bob", ["consume"])
    for roles, left in ((["ann"], "bob"), (["bob", "cid"], "ann"), ([], "bob")):
        with pytest.raises(InvalidArgumentError, match=f"roles must have '{left}', which has a grant on"):
            await admin.set_tenant_roles("a", roles)
    assert await admin.get_tenant("a") == {"tenant": "a", "roles": ["ann", "bob"]}
    await admin.revoke("a/b", "ann")
    await admin.set_tenant_roles("a", ["bob"])
    with pytest.raises(InvalidArgumentError, match="one of those of the tenant a"):
        await admin.grant("a/b", "ann", ["produce"])
    await admin.set_tenant_roles("a", None)
    await admin.grant("a/b", "ann", ["produce"])
    for wrong in ("ann", ["a/b"], [1]):
        with pytest.raises(InvalidArgumentError):
            await admin.set_tenant_roles("a", wrong)


async def test_over_http_null_lifts_the_roles_of_a_tenant_and_a_field_that_is_missing_does_not(broker, http):
    await broker.admin.create_tenant("a", roles=["ann"])
    path = "/admin/v2/tenants/a/roles"
    for body in ({}, {"role": None}):
        assert "role" in str(await call(http, "PUT", path, 400, json=body))
    await call(http, "PUT", path, json={"roles": ["bob"]})
    assert await broker.admin.get_tenant("a") == {"tenant": "a", "roles": ["bob"]}
    async with engine.AsyncClient(await listening(broker)) as client:
        await client.admin.set_tenant_roles("a", None)
        assert await client.admin.get_tenant("a") == {"tenant": "a", "roles": None}
        await client.admin.set_tenant_roles("a", ["bob"])
    await call(http, "PUT", path, json={"roles": None})
    assert await broker.admin.get_tenant("a") == {"tenant": "a", "roles": None}


async def test_of_two_that_set_the_roles_of_a_tenant_at_once_the_later_one_checks_again(broker, monkeypatch):
    records, admin = (
        RightsRecords(broker.metadata, _no_namespaces, lambda *_: None, lambda: broker.rights),
        broker.admin,
    )
    await admin.create_tenant("a", roles=["ann"])
    allowing, asked = records._allowing, []

    async def late(tenant, roles):
        value = await allowing(tenant, roles)
        asked.append(roles)
        if len(asked) == 1:
            await admin.set_tenant_roles("a", ["ann", "bob"])
            await admin.grant("a", "bob", ["lookup"])
        return value

    monkeypatch.setattr(records, "_allowing", late)
    with pytest.raises(InvalidArgumentError, match="'bob', which has a grant on a"):
        await records.set_tenant_roles("a", ["cid"])
    assert await admin.get_tenant("a") == {"tenant": "a", "roles": ["ann", "bob"]}


async def _no_namespaces():
    return []


async def test_a_tenant_with_roles_has_no_grants_of_others_from_before(broker):
    await broker.admin.grant("a/b", "bob", ["produce"])
    with pytest.raises(InvalidArgumentError, match="'bob', which has a grant on a/b"):
        await broker.admin.create_tenant("a", roles=["ann"])
    assert await broker.admin.list_tenants() == []
    await broker.admin.create_tenant("a", roles=["ann", "bob"])
    assert await broker.admin.get_tenant("a") == {"tenant": "a", "roles": ["ann", "bob"]}


RESOURCES = ("a/b/c", "a/b/d", "a/b", "a", CLUSTER)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(RESOURCES),
        st.sampled_from(("ann", "bob")),
        st.sampled_from(((), ("produce",), ("consume",), ("admin",), ("lookup",))),
        st.sampled_from((None, "x-")),
    ),
    max_size=12,
)


@given(CHANGES)
def test_what_holds_is_what_the_records_say_after_any_changes(changes):
    """All questions are asked after each change, so that answers that are remembered must be forgotten in time."""
    asyncio.run(compared(changes))


async def compared(changes):
    async with following() as grants:
        compare(grants, changes)


def compare(grants, changes):
    records = {}
    for resource, role, rights, prefix in changes:
        prefix = prefix if "consume" in rights else None
        grant = Grant(resource, role, rights, prefix) if rights else None
        records[resource, role] = grant
        grants.note(keys.grant(resource, role), None if grant is None else grant.to_json())
        questions = product(("ann", "bob"), (Right.PRODUCE, Right.CONSUME, Right.LOOKUP), RESOURCES, (None, "x-1", "y"))
        for who, right, asked, subscription in questions:
            above = [found for one in parents(asked) if (found := records.get((one, who)))]
            expected = any(
                found.mask & right
                and not (
                    right is Right.CONSUME
                    and subscription is not None
                    and found.subscription_prefix is not None
                    and not subscription.startswith(found.subscription_prefix)
                )
                for found in above
            )
            assert grants.holds(who, right, asked, subscription) == expected, (who, right, asked, subscription)
            assert grants.holds(who, right, asked, subscription) == expected  # as remembered


async def test_what_is_remembered_of_questions_is_bounded(monkeypatch):
    monkeypatch.setattr("engine.broker.rights.grants._ANSWERS", 50)
    async with following(Grant("a/b/c", "ann", ("produce",))) as grants:
        for number in range(1000):
            assert not grants.holds("ann", Right.PRODUCE, f"a/b/{number}")
            assert grants.holds("ann", Right.PRODUCE, "a/b/c")
            assert len(grants._answers) <= 50
