"""`engine tenants`, `engine grants`, `engine namespaces create` and `delete`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Run = Callable[..., Any]


def test_a_tenant_with_a_namespace_and_its_grants(engine: Run, tmp_path):
    def run(*words: str, code: int = 0) -> str:
        result = engine(*words, "--data", tmp_path / "data")
        assert result.code == code, result.err
        return result.out or result.err

    run("tenants", "create", "billing", "--role", "ann", "--role", "bob")
    assert run("tenants", "get", "billing") == "ann, bob\n"
    run("tenants", "roles", "billing", "--any-role")
    assert run("tenants", "get", "billing") == "any\n"
    run("tenants", "roles", "billing", "--role", "bob", "--role", "ann")
    assert run("tenants", "get", "billing") == "ann, bob\n"
    run("namespaces", "create", "billing/invoices")
    assert run("namespaces", "list") == "billing/invoices\n"
    assert run("tenants", "list") == "billing\n"
    run("grants", "add", "billing/invoices", "ann", "consume", "--subscription-prefix", "ann-")
    assert "must be one of those of the tenant" in run("grants", "add", "billing", "eve", "admin", code=1)
    assert "rights must be some of" in run("grants", "add", "billing", "ann", "everything", code=1)
    found = json.loads(run("grants", "list", "billing", "--json"))
    expected = {"resource": "billing/invoices", "role": "ann", "rights": ["consume"], "subscription_prefix": "ann-"}
    assert found == [expected]
    assert "ann-" in run("grants", "list", "*")
    mine = json.loads(run("grants", "check", "billing/invoices", "--json"))
    assert (mine["role"], mine["resource"], mine["subscriptionPrefixes"]) == ("", "billing/invoices", None)
    assert "superuser" in mine["rights"]
    assert "none: all is allowed" in run("grants", "check", "*")
    run("grants", "remove", "billing/invoices", "ann")
    assert "has no grant" in run("grants", "remove", "billing/invoices", "ann", code=1)
    assert "no namespaces" in run("tenants", "delete", "billing", "--yes", code=1)
    run("namespaces", "delete", "billing/invoices", "--yes")
    run("tenants", "delete", "billing", "--yes")
    assert run("tenants", "list", "--json") == "[]\n"
