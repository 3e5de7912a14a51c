"""`engine dead-letters`: list, show, redrive what was moved to a dead-letter topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from engine.cli import lines, output
from engine.cli.connection import connection_options, json_option, run_async
from engine.cli.groups import Group, examples
from engine.cli.values import checked, subscription_name, topic_name
from engine.client import dead_letters
from engine.client.dead_letters import SUBSCRIPTION, DeadLetters
from engine.errors import NotFoundError

if TYPE_CHECKING:
    from engine.client import AsyncClient, Message


def place(text: str) -> str:
    return checked(text, dead_letters.check_place)


def subscription_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--subscription`."""
    return click.option(
        "-s", "--subscription", type=subscription_name, default=SUBSCRIPTION, show_default=True,
        help="Letters that it has acknowledged are done; it is created where there is none.",
    )(command)  # fmt: skip


@click.group(cls=Group)
def command() -> None:
    """List, show and send back messages that were given up."""


@command.command("list", epilog=examples("engine dead-letters list jobs-DLQ --limit 20"))
@click.argument("topic", type=topic_name)
@click.option("--limit", type=click.IntRange(1, 100_000), default=1_000, show_default=True, help="At most so many.")
@subscription_option
@json_option
@connection_options
def list_letters(url: str, data: str | None, as_json: bool, topic: str, limit: int, subscription: str) -> None:
    """List the letters that were not sent back yet.

    TOPIC is the dead-letter topic.
    """

    async def look(client: AsyncClient) -> list[dict[str, Any]]:
        async with DeadLetters(client, topic, subscription) as letters:
            found = [_facts(letter) async for letter in letters.letters(limit)]
        _say_missed(letters)
        return found

    found = run_async(url, data, look)
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ["letter", "from", "message", "key", "redelivered", "published", "reason"],
        [
            (f["letter"], f["topic"], f["message"], f.get("key"), f["redeliveryCount"], f["publishTime"], f["reason"])
            for f in found
        ],
    )


@command.command(epilog=examples("engine dead-letters show jobs-DLQ 0:17"))
@click.argument("topic", type=topic_name)
@click.argument("letter", type=place)
@subscription_option
@json_option
@connection_options
def show(url: str, data: str | None, as_json: bool, topic: str, letter: str, subscription: str) -> None:
    """Show one letter, and why it was given up.

    LETTER is SEGMENT:OFFSET. With the topic that it is from, its properties and its value.
    """

    async def look(client: AsyncClient) -> dict[str, Any]:
        async with DeadLetters(client, topic, subscription) as letters:
            async for found in letters.letters():
                if dead_letters.place_of(found) == letter:
                    value = lines.as_text("value", found.encoded_value)
                    return {**_facts(found), **value, "properties": dead_letters.own_properties(found)}
        _say_missed(letters)
        raise NotFoundError(f"{topic} has no letter {letter} that waits in the subscription {subscription}")

    facts = run_async(url, data, look)
    if as_json:
        output.print_json(facts)
    else:
        output.print_facts([(name, str(value) if isinstance(value, dict) else value) for name, value in facts.items()])


@command.command(
    epilog=examples(
        "engine dead-letters redrive jobs-DLQ --reason ConnectionError",
        "engine dead-letters redrive jobs-DLQ 0:17 0:18",
    )
)
@click.argument("topic", type=topic_name)
@click.argument("letters", metavar="[LETTER]...", type=place, nargs=-1)
@click.option("--to", "target", type=topic_name, help="Send them to this topic. [default: where each is from]")
@click.option("--reason", help="Only those whose reason has this text.")
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@subscription_option
@connection_options
def redrive(
    url: str,
    data: str | None,
    topic: str,
    letters: tuple[str, ...],
    target: str | None,
    reason: str | None,
    limit: int | None,
    yes: bool,
    subscription: str,
) -> None:
    """Send letters back to the topics that they are from.

    All of them, or the LETTERs named as SEGMENT:OFFSET. Each goes back in the transaction that acknowledges it here:
    once. Its key, value, event time and own properties are those of the message.
    """
    if not yes:
        what = output.plural(len(letters), "letter") if letters else "all letters"
        lines.confirm(f"Send {what} of {topic} back to {target or 'where they are from'}?")

    def chosen(letter: Message) -> bool:
        wanted = not letters or dead_letters.place_of(letter) in letters
        return wanted and (reason or "") in dead_letters.reason_of(letter)

    most = min((n for n in (limit, len(letters) or None) if n is not None), default=None)

    async def move(client: AsyncClient) -> int:
        async with DeadLetters(client, topic, subscription) as waiting:
            count = await waiting.send_back(chosen, target=target, limit=most)
        _say_missed(waiting)
        return count

    count = run_async(url, data, move)
    lines.say(f"{output.plural(count, 'letter')} sent back")


def _facts(letter: Message) -> dict[str, Any]:
    """One letter as it is listed."""
    origin = dead_letters.origin_of(letter)
    first = {name: origin.pop(name) for name in ("topic", "message", "subscription")}
    return {"letter": dead_letters.place_of(letter), **first, **lines.as_text("key", letter.key), **origin}


def _say_missed(letters: DeadLetters) -> None:
    if letters.missed:
        lines.say("some letters are missing: another consumer of this subscription may have them")
