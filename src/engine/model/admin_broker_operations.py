"""Rows of the admin API's table (`admin_operations`) about a broker: metrics, settings, health, the description."""

from __future__ import annotations

from typing import Any

from engine.errors import InvalidArgumentError, InvalidConfigurationError, StorageError
from engine.model import admin_answers as answers
from engine.model.admin_parameters import Kind, Parameter, Setting, Where
from engine.model.admin_requests import Operation, Result

SETTINGS_PATH = "/admin/v2/brokers/configuration"

_SETTING = Parameter("name", Kind(), Where.PATH)
_NOTHING = Result[None]("None", type(None))
_SETTINGS = Result[dict[str, Any]]("dict[str, Any]", dict, dict[str, Any])

GET_METRICS = Operation(
    name="get_metrics",
    http="GET /metrics",
    result=Result[str]("str", str),
    summary="The metrics of the broker that answers, as Prometheus text.",
    at_any_time=True,
)

LIST_DYNAMIC_CONFIGURATION = Operation(
    name="list_dynamic_configuration",
    http=f"GET {SETTINGS_PATH}",
    result=Result[list[str]]("list[str]", list, list[str]),
    summary="Names of the limits that may be set at run time.",
    method=False,
)

GET_DYNAMIC_CONFIGURATION = Operation(
    name="get_dynamic_configuration",
    http=f"GET {SETTINGS_PATH}/values",
    result=_SETTINGS,
    summary="What was set at run time, by the keys of the configuration.",
)

GET_RUNTIME_CONFIGURATION = Operation(
    name="get_runtime_configuration",
    http=f"GET {SETTINGS_PATH}/runtime",
    result=_SETTINGS,
    summary="What is in effect on the broker that answers, of all that may be set at run time.",
)

SET_DYNAMIC_CONFIGURATION = Operation(
    name="set_dynamic_configuration",
    http=f"POST {SETTINGS_PATH}/{{name}}/{{value}}",
    parameters=(_SETTING, Parameter("value", Setting(), Where.PATH)),
    result=_NOTHING,
    summary="Set a limit for all brokers, at once and over restarts, whatever they were started with.",
    details="""
    `name`: a key of the configuration, or the specification's name, with the value in the unit it has there; text
    may have a unit. Raises InvalidArgumentError (it cannot be set at run time), InvalidConfigurationError (value).
    """,
    errors=(InvalidArgumentError, InvalidConfigurationError),
)

REMOVE_DYNAMIC_CONFIGURATION = Operation(
    name="remove_dynamic_configuration",
    http=f"DELETE {SETTINGS_PATH}/{{name}}",
    parameters=(_SETTING,),
    result=_NOTHING,
    summary="Go back to what each broker was started with.",
    details="Raises InvalidArgumentError (it cannot be set at run time).",
    errors=(InvalidArgumentError,),
)

GET_WELCOME = Operation(
    name="get_welcome",
    http="GET /",
    result=Result[dict[str, Any]]("dict[str, Any]", dict, answers.Welcome),
    summary="What is served here, and the command that shows it in a browser; as a page for one that asks for HTML.",
    method=False,
    at_any_time=True,
    without_token=True,
)

GET_HEALTH = Operation(
    name="get_health",
    http="GET /health",
    result=Result[dict[str, Any]]("dict[str, Any]", dict, answers.Health),
    summary="Whether the broker lives: 503 says that only a restart helps.",
    errors=(StorageError,),
    method=False,
    at_any_time=True,
    without_token=True,
)

GET_READINESS = Operation(
    name="get_readiness",
    http="GET /ready",
    result=Result[dict[str, Any]]("dict[str, Any]", dict, answers.Readiness),
    summary="Whether to send work to the broker: 503, with the same body, says why not.",
    refusal=503,
    method=False,
    at_any_time=True,
    without_token=True,
)

GET_DESCRIPTION = Operation(
    name="get_description",
    http="GET /openapi.json",
    result=Result[dict[str, Any]]("dict[str, Any]", dict, dict[str, Any]),
    summary="This document.",
    method=False,
    at_any_time=True,
)

BROKER_OPERATIONS = tuple(row for row in tuple(globals().values()) if isinstance(row, Operation))
