"""The dead letters of a topic, as a page shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.client.dead_letters import SUBSCRIPTION, DeadLetters, origin_of, own_properties, place_of
from engine.console.values import PROPERTIES_MAX, Value, key_text, line, plain
from engine.model.redelivery import DEAD_LETTER_SUFFIX

if TYPE_CHECKING:
    from engine.client.client import AsyncClient


@dataclass(frozen=True, slots=True)
class LetterLine:
    """A letter: where its message is from, why it was given up, and what it is."""

    place: str
    topic: str
    message: str
    key: str
    redelivered: str
    published: str
    reason: str
    raised_at: str
    properties: tuple[tuple[str, str], ...]
    value: Value


@dataclass(frozen=True, slots=True)
class LetterPage:
    """`missed`: whether some did not come, since another consumer of the subscription has them. `waiting`: how many the
    broker counts.
    """

    topic: str
    rows: tuple[LetterLine, ...]
    waiting: int
    missed: bool


async def letters_of(client: AsyncClient, topic: str, limit: int, wait: float) -> LetterPage:
    """The first letters that wait. Nothing is acknowledged. Raises NotFoundError, AuthorizationError."""
    async with DeadLetters(client, topic, SUBSCRIPTION, wait) as letters:
        stats = await client.admin.get_stats(topic)
        rows = []
        async for letter in letters.letters(limit):
            said = {name: line(value or "") for name, value in origin_of(letter).items()}
            own = sorted(own_properties(letter).items())[:PROPERTIES_MAX]
            rows.append(
                LetterLine(
                    place_of(letter), said["topic"], said["message"], key_text(letter.key), said["redeliveryCount"],
                    said["publishTime"], said["reason"], said["raisedAt"],
                    tuple((line(name), line(value)) for name, value in own), plain(letter.encoded_value),
                )
            )  # fmt: skip
    waiting = stats["subscriptions"][SUBSCRIPTION]["backlog"]
    return LetterPage(stats["topic"], tuple(rows), waiting, letters.missed)


def is_dead_letter_topic(name: str) -> bool:
    """By its name, as consumers make it unless they are told another."""
    return name.endswith(DEAD_LETTER_SUFFIX)
