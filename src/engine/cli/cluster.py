"""`engine cluster`: what a cluster stands on: etcd, object storage, brokers. Needs no broker, but for what it lists."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine.aio import uv
from engine.cli import output
from engine.cli.connection import json_option
from engine.cli.groups import Group, examples
from engine.cli.secrets import refuse_password

if TYPE_CHECKING:
    from engine.broker.upkeep.cluster_check import Finding

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def _options(command: F) -> F:
    metadata = click.option(
        "--metadata",
        envvar="ENGINE_METADATA",
        metavar="URL",
        callback=refuse_password,
        required=True,
        help="The cluster's etcd://HOST:PORT,…/PREFIX; also ENGINE_METADATA, which may have a password.",
    )
    return metadata(json_option(command))


@click.group(cls=Group)
def command() -> None:
    """Look at a cluster's etcd, objects and brokers."""


@command.command(epilog=examples("engine cluster init --metadata etcd://etcd1,etcd2,etcd3/engine"))
@_options
def init(metadata: str, as_json: bool) -> None:
    """Make a cluster's records in etcd, and try that brokers can use it.

    Brokers do this themselves at their first start. Where there is a cluster it is left as it is.
    """
    from engine.broker.upkeep.cluster_check import look_at_start

    findings = _run(look_at_start(metadata, random.Random()))
    _show(findings, as_json)


@command.command(epilog=examples("engine cluster status --metadata etcd://etcd1,etcd2,etcd3/engine"))
@_options
def status(metadata: str, as_json: bool) -> None:
    """List the members of etcd and the live brokers."""
    from engine.broker.upkeep.cluster_check import standing

    members, brokers = _run(standing(metadata, random.Random()))
    if as_json:
        output.print_json({"etcd": members, "brokers": brokers})
        return
    output.print_table(
        ["etcd", "version", "state", "revision", "MB"],
        [
            (
                one["endpoint"],
                one["version"],
                one["fault"] or ", ".join(("leader" if one["leads"] else "member", *one["alarms"])),
                one["revision"],
                round(one["database_bytes"] / 1e6, 1),
            )
            for one in members
        ],
    )
    output.print_table(
        ["broker", "state", "segments", "version", "levels", "cluster's level"],
        [
            (
                one["url"],
                "draining" if one["draining"] else "live",
                one["segments"],
                one["version"] or "",
                "{} to {}".format(*one["levels"]),
                one["level"],
            )
            for one in brokers
        ],
    )


@command.command(
    epilog=examples(
        "engine cluster check --metadata etcd://etcd1,etcd2,etcd3/engine",
        "engine cluster check --metadata etcd://etcd1/engine --objects s3://bucket/engine",
    )
)
@click.option("--objects", envvar="ENGINE_OBJECTS", metavar="URL", help="Look at this object storage, too.")
@_options
def check(metadata: str, objects: str | None, as_json: bool) -> None:
    """Try what brokers need, and tell what is amiss.

    What is reachable, in which versions; clocks; how long a PUT and a compare-and-set take; whether conditional writes
    are honoured; the quota of etcd, and how old its oldest revision is. Ends with 1 where something has failed.
    """
    from engine.broker.upkeep.cluster_check import FAILED, findings_of

    findings = _run(findings_of(metadata, objects, random.Random(), os.environ))
    _show(findings, as_json)
    if any(one.state == FAILED for one in findings):
        click.get_current_context().exit(1)


def _run(work: Coroutine[Any, Any, T]) -> T:
    return uv.run(work)


def _show(findings: list[Finding], as_json: bool) -> None:
    if as_json:
        output.print_json([asdict(one) for one in findings])
    else:
        output.print_table(["what", "state", ""], [(one.what, one.state, one.text) for one in findings])
