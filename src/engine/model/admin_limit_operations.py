"""Rows of the admin API's table (`admin_operations`) about limits."""

from __future__ import annotations

from typing import Any

from engine.errors import InvalidArgumentError
from engine.model import admin_answers as answers
from engine.model.admin_parameters import LimitedResource, Limits, Parameter, Where
from engine.model.admin_requests import Operation, Result

_LIMITS_PATH = "/admin/v2/limits/{limited}"

_RESOURCE = Parameter("resource", LimitedResource(), Where.PATH, "limited")
_LIMITS = Parameter("limits", Limits(), Where.BODY)
_NOTHING = Result[None]("None", type(None))

LIST_LIMITS = Operation(
    name="list_limits",
    http="GET /admin/v2/limits",
    result=Result[dict[str, dict[str, Any]]]("dict[str, dict[str, Any]]", dict, dict[str, dict[str, Any]]),
    summary="The limits that each resource and role says itself, by its name.",
)

GET_LIMITS = Operation(
    name="get_limits",
    http=f"GET {_LIMITS_PATH}",
    parameters=(_RESOURCE,),
    result=Result[dict[str, Any]]("dict[str, Any]", dict, answers.LimitsSaid),
    summary="The limits that a resource or a role says itself, None where it says nothing.",
    details="""
    `resource`: "tenant", "tenant/namespace", "tenant/namespace/topic", "*" for each broker, "role:NAME", or "role:*"
    for each role that says nothing itself. Those in effect for a topic, with their origin, are in `get_stats`. Raises
    InvalidArgumentError.
    """,
    errors=(InvalidArgumentError,),
)

SET_LIMITS = Operation(
    name="set_limits",
    http=f"PATCH {_LIMITS_PATH}",
    parameters=(_RESOURCE, _LIMITS),
    result=_NOTHING,
    summary="Set these limits of a resource or a role; None takes one back. What is not named stays.",
    details="""
    `resource`: as of `get_limits`. `limits`: by name; -1 for none, whatever is said above. They hold within a second,
    also for what is attached. Raises InvalidArgumentError.
    """,
    errors=(InvalidArgumentError,),
)

REPLACE_LIMITS = Operation(
    name="replace_limits",
    http=f"PUT {_LIMITS_PATH}",
    parameters=(_RESOURCE, _LIMITS),
    result=_NOTHING,
    summary="Set these limits of a resource or a role in place of all that it says.",
    errors=(InvalidArgumentError,),
)

REMOVE_LIMITS = Operation(
    name="remove_limits",
    http=f"DELETE {_LIMITS_PATH}",
    parameters=(_RESOURCE,),
    result=_NOTHING,
    summary="Take back all limits that a resource or a role says.",
    errors=(InvalidArgumentError,),
)

LIMIT_OPERATIONS = tuple(row for row in tuple(globals().values()) if isinstance(row, Operation))
