"""`engine dead-letters`: list, show, redrive what was moved to a dead-letter topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import Group, examples
from engine.cli.values import checked, subscription_name, topic_name
from engine.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from engine.client import Message
    from engine.sync import Client, QueueConsumer

SUBSCRIPTION = "dead-letters"
BATCH_MESSAGES = 1_000  # moved in one transaction
WAIT_S = 10.0  # for a letter that the broker counts: another command may have it
_ADDED = ("origin-", "dead-letter-")  # properties that a letter has beside those of the message


def place(text: str) -> str:
    return checked(text, _check_place)


def _check_place(text: str) -> None:
    segment, _, offset = text.partition(":")
    if not (segment.isdecimal() and offset.isdecimal()):
        raise InvalidArgumentError(f"a letter must be given as SEGMENT:OFFSET, as in 0:17, got {text!r}")


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
    with connect(url, data) as client, _consumer(client, topic, subscription) as consumer:
        found = [_facts(letter) for letter in _letters(client, consumer, topic, subscription, limit)]
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
    with connect(url, data) as client, _consumer(client, topic, subscription) as consumer:
        for found in _letters(client, consumer, topic, subscription, None):
            if _place(found) == letter:
                facts = (
                    _facts(found) | lines.as_text("value", found.encoded_value) | {"properties": _own_properties(found)}
                )
                break
        else:
            raise NotFoundError(f"{topic} has no letter {letter} that waits in the subscription {subscription}")
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
    with connect(url, data) as client, _consumer(client, topic, subscription) as consumer:
        moved = _Redrive(client, consumer, topic, target)
        for letter in _letters(client, consumer, topic, subscription, None):
            if (letters and _place(letter) not in letters) or (reason or "") not in _reason(letter):
                continue
            moved.add(letter)
            if moved.count == limit or (letters and moved.count == len(letters)):
                break
        moved.commit()
    lines.say(f"{output.plural(moved.count, 'letter')} sent back")


class _Redrive:
    """Sends letters back, some at a time, each time in one transaction."""

    def __init__(self, client: Client, consumer: QueueConsumer[Any], topic: str, target: str | None) -> None:
        self.count = 0
        self._client = client
        self._consumer = consumer
        self._topic = topic
        self._target = target
        self._due: list[tuple[str, Message]] = []
        self._producers: dict[str, Any] = {}

    def add(self, letter: Message) -> None:
        """Raises InvalidArgumentError for a letter that says no topic, without --to."""
        target = self._target or letter.properties.get("origin-topic")
        if target is None:
            raise InvalidArgumentError(
                f"{_place(letter)} of {self._topic} has no origin-topic: name a topic with --to, or other letters"
            )
        self._due.append((target, letter))
        self.count += 1
        if len(self._due) >= BATCH_MESSAGES:
            self.commit()

    def commit(self) -> None:
        """Send what is due, and acknowledge it."""
        if not self._due:
            return
        with self._client.transaction() as transaction:
            for target, letter in self._due:
                self._producer(target).send_nowait(
                    letter.encoded_value, key=letter.key, properties=_own_properties(letter),
                    event_time=letter.event_time_ms, transaction=transaction,
                )  # fmt: skip
            self._consumer.acknowledge([letter for _, letter in self._due], transaction=transaction)
        self._due.clear()

    def _producer(self, target: str) -> Any:
        if target not in self._producers:
            if not self._client.topic_exists(target):
                raise NotFoundError(f"there is no topic {target} any more; --to names another one")
            self._producers[target] = self._client.producer(target)
        return self._producers[target]


def _consumer(client: Client, topic: str, subscription: str) -> QueueConsumer[Any]:
    """Raises NotFoundError where there is no such topic: the name is mistyped, or nothing was given up yet."""
    if not client.topic_exists(topic):
        raise NotFoundError(f"there is no topic {topic}: TOPIC must be a dead-letter topic, as orders-DLQ")
    return client.queue_consumer(topic, subscription, initial_position="earliest")


def _letters(
    client: Client, consumer: QueueConsumer[Any], topic: str, subscription: str, limit: int | None
) -> Iterator[Message]:
    """What waits in the subscription, at most `limit`, without acknowledging it."""
    backlog = client.admin.get_stats(topic)["subscriptions"][subscription]["backlog"]
    for _ in range(backlog if limit is None else min(limit, backlog)):
        letter = consumer.receive(timeout=WAIT_S)
        if letter is None:
            lines.say("some letters are missing: another consumer of this subscription may have them")
            return
        yield letter


def _facts(letter: Message) -> dict[str, Any]:
    said = letter.properties
    return {
        "letter": _place(letter),
        "topic": said.get("origin-topic"),
        "message": said.get("origin-message"),
        "subscription": said.get("origin-subscription"),
        **lines.as_text("key", letter.key),
        "redeliveryCount": said.get("origin-redelivery-count"),
        "publishTime": said.get("origin-publish-time"),
        "reason": said.get("dead-letter-reason"),
        "raisedAt": said.get("dead-letter-raised-at"),
    }


def _place(letter: Message) -> str:
    return f"{letter.segment_id}:{letter.offset}"


def _reason(letter: Message) -> str:
    return letter.properties.get("dead-letter-reason", "")


def _own_properties(letter: Message) -> dict[str, str]:
    return {name: value for name, value in letter.properties.items() if not name.startswith(_ADDED)}
