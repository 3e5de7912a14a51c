"""`engine topics autoscale` and `engine namespaces autoscale`: get, set and unset overrides; explain decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import Group, examples
from engine.cli.values import duration, key_values, namespace_name, size, topic_name
from engine.model.autoscale import NAMES, AutoScalePolicyOverride, is_share, is_size, is_time
from engine.model.names import TopicName
from engine.model.units import share, size_text

F = TypeVar("F", bound=Callable[..., Any])

LEVELS = ("topic", "namespace")  # the nearest first; the rest is the broker's
FORMER = {"show": "get", "remove": "unset"}
WHOLE = ("max_segments", "min_segments", "max_dag_depth", "max_buckets")


MEANING = {
    "max_segments": "Active segments at most.",
    "min_segments": "Active segments at least.",
    "max_dag_depth": "Merges in a segment's line of ancestors, at most.",
    "split_cooldown": "Least time between two splits.",
    "merge_cooldown": "Least time between two merges.",
    "merge_window": "How long segments must be below the merge thresholds.",
    "rebucket_cooldown": "Least time between two changes of entry buckets.",
    "max_buckets": "Entry buckets of a segment, at most.",
    "split_floor_msg_rate_in": "Below it, more consumers get entry buckets instead of segments.",
}


def meaning(name: str) -> str:
    """The help of a field of the policy."""
    verb = "Split a segment above it" if name.startswith("split") else "Merge neighbours below it"
    return MEANING.get(name, f"{verb}; {'received' if name.endswith('in_threshold') else 'delivered'}.")


def field_type(name: str) -> tuple[Any, str]:
    """The parser of a field of the policy, and its metavar in the help."""
    if name in WHOLE:
        return click.INT, "N"
    if is_size(name):
        return size, "BYTES/S"
    if is_share(name):
        return part, "SHARE"
    return (click.FLOAT, "MESSAGES/S") if "msg_rate" in name else (duration, "DURATION")


def part(text: str) -> float:
    """A share as typed: 25%, 0.25."""
    found = share(text)
    if found is None:
        raise click.BadParameter(f"a share must be like 25% or 0.25, got {text!r}")
    return found


def policy_options(command: F) -> F:
    """Add an option for every field of the policy, under the field's name; None: not given."""
    for name in reversed([name for name in NAMES if name != "enabled"]):
        kind, shown = field_type(name)
        option = f"--{name.replace('_', '-')}"
        command = click.option(option, type=kind, metavar=shown, help=meaning(name))(command)
    return click.option("--enable/--disable", "enabled", default=None, help="Whether topics scale automatically.")(
        command
    )


def fields_of(texts: Iterable[str]) -> dict[str, Any]:
    """Fields as typed: max-segments=8. Raises a usage error."""
    chosen: dict[str, Any] = {}
    for text, value in key_values(tuple(texts)).items():
        name = text.replace("-", "_")
        if name not in NAMES:
            raise click.BadParameter(f"{text!r} is no field of the policy; known are {', '.join(NAMES)}")
        kind = click.BOOL if name == "enabled" else field_type(name)[0]
        chosen[name] = click.types.convert_type(kind).convert(value, None, None)
    return chosen


def said(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were given. Raises a usage error when there are none."""
    policy = {name: value for name, value in options.items() if value is not None}
    if not policy:
        raise click.UsageError("give at least one field; `autoscale unset` removes all overrides")
    return policy


# -- topics --------------------------------------------------------------------------------------------------------


@click.group("autoscale", cls=Group, aliases=FORMER)
def topics() -> None:
    """Get and set how a topic splits and merges by itself."""


@topics.command("get", epilog=examples("engine topics autoscale get orders"))
@click.argument("topic", type=topic_name)
@json_option
@connection_options
def get_topic(topic: str, url: str, data: str | None, as_json: bool) -> None:
    """Show the policy in effect and the last decision.

    Each field is shown with the level that sets it: the topic, its namespace or the broker.
    """
    name = TopicName.parse(topic)
    with connect(url, data) as client:
        own = client.admin.get_auto_scale_policy(topic)
        inherited = client.admin.get_namespace_auto_scale_policy(f"{name.tenant}/{name.namespace}")
        scaling = client.admin.get_stats(topic)["autoScale"]
    if as_json:
        output.print_json({**scaling, "topic": own, "namespace": inherited})
        return
    output.print_facts(scaling_facts(scaling))
    click.echo()
    effective = AutoScalePolicyOverride.of_json(scaling["policy"]).to_mapping()
    output.print_table(
        ["field", "value", "set by"], policy_rows(effective, dict(zip(LEVELS, (own, inherited), strict=True)))
    )


@topics.command("history", epilog=examples("engine topics autoscale history orders"))
@click.argument("topic", type=topic_name)
@json_option
@connection_options
def history(topic: str, url: str, data: str | None, as_json: bool) -> None:
    """List the last decisions and their reasons.

    The newest first, as the topic's leader remembers them since it leads the topic.
    """
    with connect(url, data) as client:
        found = client.admin.get_auto_scale_history(topic)
    if as_json:
        output.print_json(found)
        return
    if not found["decisions"]:
        lines.say("no decision yet, since this broker leads the topic" if found["leading"] else "no leader answers")
    for one in found["decisions"]:
        repeated = f"; {output.plural(one['times'], 'time')} until {instant(one['lastMs'])}" if one["times"] > 1 else ""
        failed = f"; failed: {one['failure']}" if one["failure"] else "; done" if one["changed"] else ""
        lines.say(decision_text(one) + failed + repeated)


@topics.command("set", epilog=examples("engine topics autoscale set orders --max-segments 8 --split-cooldown 2m"))
@click.argument("topic", type=topic_name)
@policy_options
@connection_options
def set_topic(topic: str, url: str, data: str | None, **options: Any) -> None:
    """Replace a topic's overrides.

    A field that is not given is inherited from the namespace, else from the broker, also if it was overridden before.
    """
    policy = said(options)
    with connect(url, data) as client:
        client.admin.set_auto_scale_policy(topic, policy)
        effective = client.admin.get_stats(topic)["autoScale"]["policy"]
    lines.say(f"{topic} overrides {', '.join(policy)}")
    if effective["problem"]:
        lines.say(f"auto-scale is {state(effective)}")


@topics.command("unset", epilog=examples("engine topics autoscale unset orders"))
@click.argument("topic", type=topic_name)
@connection_options
def unset_topic(topic: str, url: str, data: str | None) -> None:
    """Remove a topic's overrides.

    All fields are inherited from the namespace, else from the broker.
    """
    with connect(url, data) as client:
        client.admin.remove_auto_scale_policy(topic)
    lines.say(f"{topic} overrides nothing")


# -- namespaces ----------------------------------------------------------------------------------------------------


@click.group("autoscale", cls=Group, aliases=FORMER)
def namespaces() -> None:
    """Get and set how its topics split and merge by themselves."""


@namespaces.command("get", epilog=examples("engine namespaces autoscale get public/default"))
@click.argument("namespace", type=namespace_name)
@json_option
@connection_options
def show_all(namespace: str, url: str, data: str | None, as_json: bool) -> None:
    """Show the namespace's overrides."""
    with connect(url, data) as client:
        found = client.admin.get_namespace_auto_scale_policy(namespace)
    if as_json:
        output.print_json(found)
    elif found:
        output.print_facts((name, shown(name, value)) for name, value in found.items())
    else:
        lines.say(f"{namespace} overrides nothing")


@namespaces.command("set", epilog=examples("engine namespaces autoscale set public/default --disable"))
@click.argument("namespace", type=namespace_name)
@policy_options
@connection_options
def set_all(namespace: str, url: str, data: str | None, **options: Any) -> None:
    """Replace a namespace's overrides.

    A field that is not given is inherited from the broker, also if it was overridden before.
    """
    policy = said(options)
    with connect(url, data, create=True) as client:
        client.admin.set_namespace_auto_scale_policy(namespace, policy)
    lines.say(f"{namespace} overrides {', '.join(policy)}")


@namespaces.command("unset", epilog=examples("engine namespaces autoscale unset public/default"))
@click.argument("namespace", type=namespace_name)
@connection_options
def remove_all(namespace: str, url: str, data: str | None) -> None:
    """Remove a namespace's overrides."""
    with connect(url, data) as client:
        client.admin.remove_namespace_auto_scale_policy(namespace)
    lines.say(f"{namespace} overrides nothing")


# -- what people read ----------------------------------------------------------------------------------------------


def scaling_facts(scaling: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """State, last decision, last change and counts; from `autoScale` of a topic's stats."""
    yield "auto-scale", state(scaling["policy"])
    if not scaling["leading"]:
        return
    yield "last look", decision_text(scaling["decision"])
    if scaling["lastChange"]:
        yield "last change", decision_text(scaling["lastChange"])
    yield "done here", counts_text(scaling["counts"])


def state(policy: Mapping[str, Any]) -> str:
    """on, off, or off with the problem."""
    return f"off: {policy['problem']}" if policy["problem"] else "on" if policy["enabled"] else "off"


def decision_text(decision: Mapping[str, Any] | None) -> str:
    """A decision: when, what, of which segments, why, and what was held back."""
    if decision is None:
        return "none yet, since this broker leads the topic"
    at = instant(decision["atMs"])
    of = f" of {', '.join(map(str, decision['segments']))}" if decision["segments"] else ""
    others = [reason for reason in decision["suppressed"] if reason != decision["reason"]]
    held = f"; held back by {', '.join(others)}" if others else ""
    return f"{at}: {decision['action']}{of}, because: {decision['reason']}{cause_text(decision.get('cause'))}{held}"


def instant(milliseconds: int) -> str:
    """For people."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def cause_text(cause: Mapping[str, Any] | None) -> str:
    """The rate for which a segment was split."""
    if cause is None:
        return ""
    value, threshold = (shown(f"split_{cause['rate']}_threshold", cause[name]) for name in ("value", "threshold"))
    return f" ({cause['rate']} of {value}, above {threshold})"


def counts_text(counts: Mapping[str, int]) -> str:
    """Automatic changes by this topic's leader since it started."""
    done = [output.plural(counts[what], what.rstrip("s")) for what in ("splits", "merges", "rebuckets", "failures")]
    held = (
        f"; held back {counts['splitsSuppressedMaxSegments']:,} times by max_segments, "
        f"{counts['mergesSuppressedMaxDepth']:,} by max_dag_depth"
    )
    return ", ".join(done) + held


def policy_rows(
    effective: Mapping[str, Any], levels: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, str, str]]:
    """(field, value, the level that sets it)."""
    for name in NAMES:
        by = next((level for level in LEVELS if name in levels[level]), "broker")
        yield name, shown(name, effective[name]), by


def shown(name: str, value: Any) -> str:
    """A field's value with its unit."""
    if is_size(name):
        return f"{size_text(value)}/s"
    if is_share(name):
        return f"{value:.0%}"
    if "msg_rate" in name:
        return f"{value:,.0f} messages/s"
    return f"{value:g} s" if is_time(name) else output.show(value)
