"""`engine topics policies`: get, set, unset; and what these have in common with `engine namespaces`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import Group, examples
from engine.cli.values import duration, size, topic_name
from engine.errors import AuthorizationError
from engine.model.names import TopicName
from engine.model.policies import FOR_EVER, TopicPolicies
from engine.model.rights import CLUSTER
from engine.model.units import size_text

if TYPE_CHECKING:
    from engine.sync.admin import Admin

F = TypeVar("F", bound=Callable[..., Any])


def retention_time(text: str) -> int:
    """Whole seconds as typed: -1, 90, 36h, 7d."""
    return FOR_EVER if text == str(FOR_EVER) else int(duration(text))


def message_ttl(text: str) -> int:
    """Whole seconds as typed, at least one: -1, 90, 36h."""
    return FOR_EVER if text == str(FOR_EVER) else max(1, int(duration(text)))


def retention_size(text: str) -> int:
    """Bytes as typed: -1, 50MB."""
    return FOR_EVER if text == str(FOR_EVER) else size(text)


def flush_interval(text: str) -> int:
    """Whole milliseconds as typed: 10ms, 1s."""
    return round(1000 * duration(text))


def message_options(command: F) -> F:
    """Add --retention-time, --retention-size, --message-ttl, --flush-interval and --encryption-required; None: not
    given.
    """
    command = click.option(
        "--flush-interval", "flush_interval_ms", type=flush_interval, metavar="DURATION",
        help="With durability object, how long a message may wait for others to be stored with it: 10ms to 1s.",
    )(command)  # fmt: skip
    command = click.option(
        "--encryption-required/--no-encryption-required", "encryption_required", default=None,
        help="Whether messages that are not encrypted end to end are refused.",
    )(command)  # fmt: skip
    command = click.option(
        "--message-ttl", "message_ttl_s", type=message_ttl, metavar="DURATION",
        help="Older messages count as acknowledged, read or not: 14d; -1: none do.",
    )(command)  # fmt: skip
    command = click.option(
        "--retention-size", "retention_size_bytes", type=retention_size, metavar="BYTES",
        help="Of acknowledged messages, per segment: 50MB; -1: no limit.",
    )(command)  # fmt: skip
    return click.option(
        "--retention-time", "retention_time_s", type=retention_time, metavar="DURATION",
        help="How long acknowledged messages are kept: 36h; -1: for ever.",
    )(command)  # fmt: skip


def given(options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The policies that were given. Raises a usage error when there are none."""
    policies = {name: value for name, value in options.items() if value is not None}
    if not policies:
        raise click.UsageError(f"give at least one policy; `engine {what} --all` leaves all to others")
    return policies


def names(texts: Iterable[str], known: Iterable[str]) -> list[str]:
    """Policies as typed: retention-time. Raises a usage error for an unknown one."""
    by_option = {_option(name): name for name in known}
    for text in texts:
        if text not in by_option:
            raise click.BadParameter(f"a policy must be one of {', '.join(by_option)}, got {text!r}")
    return [by_option[text] for text in texts]


def _option(name: str) -> str:
    return name.removesuffix("_ms").removesuffix("_s").removesuffix("_bytes").replace("_", "-")


def add_above(said: dict[str, dict[str, Any]], admin: Admin, tenant: str) -> str:
    """Add what the tenant and the cluster say; the name of the level that has all the rest."""
    try:
        said["tenant"] = admin.get_limits(tenant)
        said["cluster"] = admin.get_limits(CLUSTER)
    except AuthorizationError:  # a role of less than the tenant, or of it alone
        return "cluster or broker" if "tenant" in said else "tenant or broker"
    return "broker"


def print_policies(found: Mapping[str, Any], said: Mapping[str, Mapping[str, Any]], rest: str, as_json: bool) -> None:
    """Those in effect, and where each is said: the first level of `said`, by name, that has it, else `rest`."""
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ["policy", "value", "set by"],
        [
            (_option(name), shown(name, value), next((k for k, own in said.items() if own.get(name) is not None), rest))
            for name, value in found.items()
        ],
    )


def shown(name: str, value: Any) -> str:
    """A policy as people read it."""
    if name in ("retention_time_s", "message_ttl_s"):
        return "for ever" if value == FOR_EVER else f"{value:,} s"
    if name == "flush_interval_ms":
        return f"{value:,} ms"
    if name == "retention_size_bytes":
        return "no limit" if value == FOR_EVER else size_text(value)
    return output.show(value)


@click.group("policies", cls=Group)
def topics() -> None:
    """Get and set the retention and other policies of a topic.

    What a topic does not set itself is inherited from its namespace.
    """


@topics.command(epilog=examples("engine topics policies get orders"))
@click.argument("topic", type=topic_name)
@json_option
@connection_options
def get(topic: str, url: str, data: str | None, as_json: bool) -> None:
    """Show the policies in effect, and where each is set."""
    with connect(url, data) as client:
        found, own = client.admin.get_topic_policies(topic), client.admin.get_topic_policies(topic, own=True)
        said, rest = {"topic": own}, "broker"
        try:
            name = TopicName.parse(topic)
            said["namespace"] = client.admin.get_namespace_policies(f"{name.tenant}/{name.namespace}", own=True)
        except AuthorizationError:  # a role of this topic alone
            rest = "namespace or broker"
        else:
            rest = add_above(said, client.admin, name.tenant)
    print_policies(found, said, rest, as_json)


@topics.command("set", epilog=examples("engine topics policies set orders --retention-time 36h"))
@click.argument("topic", type=topic_name)
@message_options
@connection_options
def set_policies(topic: str, url: str, data: str | None, **options: Any) -> None:
    """Set policies of a topic; those not given stay."""
    policies = given(options, "topics policies unset TOPIC")
    with connect(url, data) as client:
        client.admin.set_topic_policies(topic, policies)
    lines.say(f"set {', '.join(map(_option, policies))} of {topic}")


@topics.command(
    epilog=examples("engine topics policies unset orders retention-time", "engine topics policies unset orders --all")
)
@click.argument("topic", type=topic_name)
@click.argument("policies", nargs=-1, metavar="[POLICY]...")
@click.option("--all", "everything", is_flag=True, help="All policies.")
@connection_options
def unset(topic: str, policies: tuple[str, ...], everything: bool, url: str, data: str | None) -> None:
    """Leave policies of a topic to its namespace again."""
    said = names(policies, TopicPolicies().to_mapping())
    if bool(said) == everything:
        raise click.UsageError("name policies, or give --all")
    with connect(url, data) as client:
        if everything:
            client.admin.remove_topic_policies(topic)
        else:
            client.admin.set_topic_policies(topic, dict.fromkeys(said))
    lines.say(f"{topic} leaves {'all policies' if everything else ', '.join(policies)} to its namespace")
