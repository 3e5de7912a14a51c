"""What a page can ask for, and whether a person may: the broker's own table of rights, asked before a button is drawn.

The broker decides all the same when the act is carried out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.broker.rights.need import Need, on_topic
from engine.broker.rights.table import OPERATIONS
from engine.client.client import AsyncClient
from engine.client.dead_letters import SUBSCRIPTION, DeadLetters, check_place, place_of
from engine.errors import EngineError, InvalidArgumentError
from engine.model.rights import Right

Fields = Mapping[str, Any]
REDRIVE_WAIT_S = 2.0  # for a letter that another consumer may have
LETTERS_MAX = 1_000  # chosen one by one, in one act


class May:
    """What a person may do on one resource and below it. `told`: the broker's answer; None: it knows no such question,
    and every button is shown.
    """

    def __init__(self, told: Mapping[str, Any] | None) -> None:
        self.role: str = "" if told is None else told["role"]
        self._all = told is None
        rights = () if told is None else told["rights"]
        self._held: int = sum(Right[name.upper()] for name in rights if name.upper() in Right.__members__)
        self._prefixes: list[str] | None = None if told is None else told["subscriptionPrefixes"]

    def holds(self, need: Need) -> bool:
        """As the broker judges it."""
        if self._all or not need.rights:
            return True
        held = self._held
        if self._prefixes is not None and need.subscription is not None:
            name = need.subscription
            held &= -1 if any(name.startswith(one) for one in self._prefixes) else ~Right.CONSUME
        return bool(held & need.rights)

    def ask(self, operation: str, **fields: Any) -> bool:
        """Whether an operation of the admin API is allowed."""
        return self.holds(OPERATIONS[operation](fields))

    def act(self, name: str, fields: Fields) -> bool:
        """Whether one of ACTS is."""
        try:
            return all(self.holds(need) for need in ACTS[name].needs(fields))
        except EngineError:
            return False  # a name from before its rules, which the broker would refuse, too

    def read(self, topic: str) -> bool:
        """Whether messages of a topic may be read."""
        return self.holds(Need(Right.CONSUME, on_topic(topic)))


Run = Callable[[AsyncClient, Fields], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Act:
    """`run`: takes the fields of its button, and may answer with a sentence."""

    run: Run
    needs: Callable[[Fields], Iterable[Need]]


def _operation(name: str, run: Run) -> Act:
    return Act(run, lambda fields: [OPERATIONS[name](fields)])


async def _redrive(client: AsyncClient, fields: Fields) -> str:
    """Letters back to where they are from, or to `target`. `letters`: places; "all": each that waits."""
    chosen, target = fields["letters"], fields.get("target") or None
    if chosen != "all":
        if not isinstance(chosen, list) or not 0 < len(chosen) <= LETTERS_MAX:
            raise InvalidArgumentError(f"letters must be 'all' or 1 to {LETTERS_MAX:,} places, got {chosen!r:.40}")
        for place in chosen:
            check_place(str(place))
    places = None if chosen == "all" else frozenset(map(str, chosen))
    async with DeadLetters(client, str(fields["topic"]), SUBSCRIPTION, REDRIVE_WAIT_S) as letters:
        count = await letters.send_back(
            lambda letter: places is None or place_of(letter) in places,
            target=target, limit=None if places is None else len(places),
        )  # fmt: skip
    missed = "; others are with another consumer of the subscription" if letters.missed else ""
    return f"{count:,} letter{'' if count == 1 else 's'} sent back{missed}"


ACTS: dict[str, Act] = {
    "split": _operation("split_segment", lambda c, a: c.admin.split_segment(str(a["topic"]), int(a["segment"]))),
    "merge": _operation(
        "merge_segments",
        lambda c, a: c.admin.merge_segments(str(a["topic"]), int(a["segment"]), int(a["other"])),
    ),
    "skip-backlog": _operation(
        "clear_backlog", lambda c, a: c.admin.clear_backlog(str(a["topic"]), str(a["subscription"]))
    ),
    "rewind": _operation(
        "seek_subscription",
        lambda c, a: c.admin.seek_subscription(str(a["topic"]), str(a["subscription"]), "earliest"),
    ),
    "delete-subscription": _operation(
        "delete_subscription", lambda c, a: c.admin.delete_subscription(str(a["topic"]), str(a["subscription"]))
    ),
    "abort": _operation("abort_transaction", lambda c, a: c.admin.abort_transaction(str(a["transaction"]))),
    "drain": _operation("drain_broker", lambda c, a: c.admin.drain_broker(str(a["broker"]))),
    "undrain": _operation("undrain_broker", lambda c, a: c.admin.undrain_broker(str(a["broker"]))),
    "redrive": Act(_redrive, lambda a: [Need(Right.CONSUME, on_topic(str(a["topic"])), SUBSCRIPTION)]),
}
