"""Rows of the admin API's table (`admin_operations`) about several brokers: which there are, and what each has."""

from __future__ import annotations

from typing import Any

from engine.errors import (
    ConnectError,
    InvalidArgumentError,
    NotFoundError,
    NotOwnerError,
    StorageError,
    UnsupportedError,
)
from engine.model import admin_answers as answers
from engine.model.admin_parameters import Flag, Kind, Parameter, Segment, Topic, Where
from engine.model.admin_requests import Operation, Result

_BROKERS_PATH = "/admin/v2/brokers"

_BROKER = Parameter("broker", Kind(), Where.FIELD, says="its URL, as list_brokers has it")
_TO = Parameter("to", Kind(), Where.FIELD, default=None, keyword=True, says="the URL of the broker that gets it")
_NOTHING = Result[None]("None", type(None))
_MOVES = Result[list[dict[str, Any]]]("list[dict[str, Any]]", list, list[answers.SegmentMove])

_TO_SAYS = (
    "`to`: the URL of that broker; None: one that has little load. Where no other broker takes segments, clients "
    "come again to this one."
)

LIST_BROKERS = Operation(
    name="list_brokers",
    http=f"GET {_BROKERS_PATH}",
    result=Result[list[dict[str, Any]]]("list[dict[str, Any]]", list, list[answers.BrokerNumbers]),
    summary="The live brokers that share the metadata store, by URL: what each has open, its load, whether it drains.",
)

DRAIN_BROKER = Operation(
    name="drain_broker",
    http=f"POST {_BROKERS_PATH}/drain",
    parameters=(_BROKER,),
    result=_NOTHING,
    summary="Have a broker hand over all its segments and leaderships, and take no more, until undrain_broker.",
    details="""
    It begins at once and goes on behind the answer: list_brokers shows how much is left. A broker that is started
    again does not drain. Raises NotFoundError (no such broker lives), InvalidArgumentError (no other takes segments),
    ConnectError (it does not answer).
    """,
    errors=(NotFoundError, InvalidArgumentError, ConnectError),
)

UNDRAIN_BROKER = Operation(
    name="undrain_broker",
    http=f"POST {_BROKERS_PATH}/undrain",
    parameters=(_BROKER,),
    result=_NOTHING,
    summary="Let a broker take segments again. It gets new ones, and its share of the others from the balancer.",
    errors=(NotFoundError, ConnectError),
)

BALANCE_BROKERS = Operation(
    name="balance_brokers",
    http=f"POST {_BROKERS_PATH}/balance",
    parameters=(
        Parameter(
            "dry_run", Flag(), Where.QUERY, "dryRun", default=False, keyword=True, says="decide, and move nothing"
        ),
    ),
    result=Result[dict[str, Any]]("dict[str, Any]", dict, answers.BalanceRound),
    summary="Run one round of balance now, whether the balancer is enabled or not: the imbalance and the moves.",
    details="""
    As a round that runs by itself, but for the cooldown: a segment may go that has just come. `dry_run`: decide, and
    move nothing. Raises NotOwnerError while the balancer changes, ConnectError when it does not answer.
    """,
    errors=(NotOwnerError, ConnectError),
)

UNLOAD_TOPIC = Operation(
    name="unload_topic",
    http="POST /admin/v2/scalable/{tenant}/{namespace}/{topic}/unload",
    parameters=(Parameter("topic", Topic(), Where.PATH), _TO),
    result=_MOVES,
    summary="Hand every open segment of a topic over to another broker, in order, while it is in use; the moves.",
    details=f"""
    {_TO_SAYS} Raises NotFoundError, InvalidArgumentError, NotOwnerError (one changes its owner or its shape just now:
    try again; those before it went), ConnectError (a broker does not answer).
    """,
    errors=(NotFoundError, InvalidArgumentError, NotOwnerError, ConnectError),
)

UNLOAD_SEGMENT = Operation(
    name="unload_segment",
    http="POST /admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}/unload",
    parameters=(Parameter("segment", Segment(), Where.PATH), _TO),
    result=_MOVES,
    summary="Hand one segment over to another broker, in order, while it is in use; the move, none if it is not open.",
    details=f"""
    `segment`: its whole name, "segment://tenant/namespace/topic/0000-7fff-1". {_TO_SAYS} Raises as unload_topic does:
    NotFoundError, InvalidArgumentError, NotOwnerError, ConnectError.
    """,
    errors=(NotFoundError, InvalidArgumentError, NotOwnerError, ConnectError),
)

SWEEP_OBJECTS = Operation(
    name="sweep_objects",
    http="POST /admin/v2/objects/sweep",
    parameters=(
        Parameter(
            "dry_run", Flag(), Where.QUERY, "dryRun", default=False, keyword=True, says="list them, and delete nothing"
        ),
    ),
    result=Result[dict[str, Any]]("dict[str, Any]", dict, answers.ObjectSweep),
    summary="Delete objects that brokers which have ended left behind, and that no segment needs.",
    details="""
    As one broker of the cluster does once an hour: objects younger than an hour stay. `dry_run`: list what would go.
    Raises UnsupportedError (this broker keeps no segments in an object store), StorageError (another sweep is under
    way, or the store does not answer).
    """,
    errors=(UnsupportedError, StorageError),
)

CLUSTER_OPERATIONS = tuple(row for row in tuple(globals().values()) if isinstance(row, Operation))
