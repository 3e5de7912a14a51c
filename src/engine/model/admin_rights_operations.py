"""Rows of the admin API's table (`admin_operations`) about tenants, namespaces as such, and grants."""

from __future__ import annotations

from typing import Any

from engine.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from engine.model import admin_answers as answers
from engine.model.admin_parameters import (
    Kind,
    Names,
    NamesOrAny,
    Namespace,
    Parameter,
    Resource,
    Role,
    TenantName,
    Where,
)
from engine.model.admin_requests import Operation, Result

_TENANT_PATH = "/admin/v2/tenants/{tenant}"
_NAMESPACE_PATH = "/admin/v2/namespaces/{tenant}/{namespace}"
_GRANTS_PATH = "/admin/v2/grants/{resource}"

_TENANT = Parameter("tenant", TenantName(), Where.PATH)
_NAMESPACE = Parameter("namespace", Namespace(), Where.PATH)
_RESOURCE = Parameter("resource", Resource(), Where.PATH)
_ROLE = Parameter("role", Role(), Where.PATH)
_NOTHING = Result[None]("None", type(None))

LIST_TENANTS = Operation(
    name="list_tenants",
    http="GET /admin/v2/tenants",
    result=Result[list[str]]("list[str]", list, list[str]),
    summary="Every tenant that was created, or has a namespace, sorted.",
)

CREATE_TENANT = Operation(
    name="create_tenant",
    http=f"PUT {_TENANT_PATH}",
    parameters=(
        _TENANT,
        Parameter(
            "roles", Names(), Where.FIELD, default=None, keyword=True, says="only these are granted rights in it"
        ),
    ),
    result=_NOTHING,
    summary="Create a tenant. A tenant that was not created is there as soon as it has a namespace.",
    details="""
    `roles`: only these may be granted rights in it; None: any. Raises AlreadyExistsError, InvalidArgumentError.
    """,
    errors=(AlreadyExistsError, InvalidArgumentError),
)

GET_TENANT = Operation(
    name="get_tenant",
    http=f"GET {_TENANT_PATH}",
    parameters=(_TENANT,),
    result=Result[dict[str, Any]]("dict[str, Any]", dict, answers.Tenant),
    summary="A tenant that was created: the roles that may be granted rights in it, null for any.",
    errors=(NotFoundError,),
)

SET_TENANT_ROLES = Operation(
    name="set_tenant_roles",
    http=f"PUT {_TENANT_PATH}/roles",
    parameters=(
        _TENANT,
        Parameter("roles", NamesOrAny(), Where.FIELD, says="only these are granted rights in it; null: any"),
    ),
    result=_NOTHING,
    summary="Set the roles that may be granted rights in a tenant that was created.",
    details="""
    `roles`: in place of those of before; None: any. Each role that has a grant in the tenant must be among them: revoke
    it first. Raises NotFoundError, InvalidArgumentError.
    """,
    errors=(NotFoundError, InvalidArgumentError),
)

DELETE_TENANT = Operation(
    name="delete_tenant",
    http=f"DELETE {_TENANT_PATH}",
    parameters=(_TENANT,),
    result=_NOTHING,
    summary="Delete a tenant that has no namespaces, with the grants on it.",
    errors=(NotFoundError, InvalidArgumentError),
)

CREATE_NAMESPACE = Operation(
    name="create_namespace",
    http=f"PUT {_NAMESPACE_PATH}",
    parameters=(_NAMESPACE,),
    result=_NOTHING,
    summary="Create a namespace. One that was not created is there as soon as it has a topic or policies.",
    errors=(AlreadyExistsError, InvalidArgumentError),
)

DELETE_NAMESPACE = Operation(
    name="delete_namespace",
    http=f"DELETE {_NAMESPACE_PATH}",
    parameters=(_NAMESPACE,),
    result=_NOTHING,
    summary="Delete a namespace that has no topics, with its policies and the grants on it.",
    errors=(NotFoundError, InvalidArgumentError),
)

LIST_GRANTS = Operation(
    name="list_grants",
    http=f"GET {_GRANTS_PATH}",
    parameters=(_RESOURCE,),
    result=Result[list[dict[str, Any]]]("list[dict[str, Any]]", list, list[answers.GrantFacts]),
    summary='The grants on a resource and on what lies below it; "*" for all.',
    details="""
    `resource`: "tenant", "tenant/namespace", "tenant/namespace/topic" or "*", the cluster.
    """,
)

GRANT = Operation(
    name="grant",
    http=f"PUT {_GRANTS_PATH}/{{role}}",
    parameters=(
        _RESOURCE,
        _ROLE,
        Parameter("rights", Names(), Where.FIELD),
        Parameter(
            "subscription_prefix",
            Kind(),
            Where.FIELD,
            "subscriptionPrefix",
            default=None,
            keyword=True,
            says="consume is of subscriptions whose names begin so",
        ),
    ),
    result=_NOTHING,
    summary="Grant a role these rights on a resource and what lies below it, in place of those that it has there.",
    details="""
    `resource`: as of `list_grants`. `rights`: "produce", "consume", "lookup", "admin"; on "*" also "operate" and
    "superuser". `subscription_prefix`: `consume` is of subscriptions whose names begin so. It counts at once, on other
    brokers within a second. Raises InvalidArgumentError.
    """,
    errors=(InvalidArgumentError,),
)

REVOKE = Operation(
    name="revoke",
    http=f"DELETE {_GRANTS_PATH}/{{role}}",
    parameters=(_RESOURCE, _ROLE),
    result=_NOTHING,
    summary="Take the rights of a role on a resource away: what it has open by them ends within a second.",
    errors=(NotFoundError,),
)

GET_PERMISSIONS = Operation(
    name="get_permissions",
    http="GET /admin/v2/permissions/{resource}",
    parameters=(_RESOURCE,),
    result=Result[dict[str, Any]]("dict[str, Any]", dict, answers.Permissions),
    summary="The rights that the caller itself has on a resource, with those that they imply.",
    details="""
    `resource`: as of `list_grants`. {"role", "resource", "rights", "subscriptionPrefixes"}; the last is what names of
    subscriptions must begin with for `consume`, None for nothing. Whether the resource exists is not looked at.
    """,
)

RIGHTS_OPERATIONS = tuple(row for row in tuple(globals().values()) if isinstance(row, Operation))
