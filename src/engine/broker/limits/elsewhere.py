"""`Used` and `Elsewhere`: what brokers tell each other of rates that hold for all of them, and the shares that follow.

A bucket that several brokers let messages through has a share of its rate at each of them:

    a broker that held no client back    keeps what it uses, up to an even share; the rest of its own is others' to use
    brokers that held clients back       divide evenly what is left
    a rate that no other broker uses     is this one's as a whole

So shares follow demand (they are max-min fair), and come to the rate together once each broker has heard of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.metadata.keys import limit_group

Scope = tuple[str, str]  # what a rate is of, and the direction: as the key of a bucket
PARTS = 64  # of a rate: as exactly as its use is told


@dataclass(slots=True)
class Used:
    """What one broker shows of its last round, of a group. `used`: parts of the rate by "scope\\ndirection"; `held`:
    those of them of which clients had to wait.
    """

    used: dict[str, int] = field(default_factory=dict)
    held: list[str] = field(default_factory=list)

    def note(self, scope: Scope, used: float, *, held: bool) -> None:
        """`used`: of the whole rate, from 0 on."""
        parts, name = min(round(used * PARTS), PARTS), "\n".join(scope)
        if parts or held:
            self.used[name] = parts
        if held:
            self.held.append(name)


def group_of(scope: Scope) -> str:
    """What a rate is shown with: its tenant, its role, or "*". Sums are of what has no more than a slash."""
    name = scope[0]
    return limit_group(name if name.count("/") == 2 else name.removeprefix("total "))


class Elsewhere:
    """What the other brokers have shown last."""

    __slots__ = ("_held", "_used")

    def __init__(self, others: list[Used] | None = None) -> None:
        self._used: dict[str, list[float]] = {}  # of brokers that held no client back
        self._held: dict[str, int] = {}  # how many brokers held clients back
        for shown in others or ():
            held = set(shown.held)
            for name in held:
                self._held[name] = self._held.get(name, 0) + 1
            for name, parts in shown.used.items():
                if name not in held:
                    self._used.setdefault(name, []).append(min(max(parts, 0), PARTS) / PARTS)

    def __bool__(self) -> bool:
        return bool(self._held or self._used)

    def replace(self, other: Elsewhere) -> list[Scope]:
        """Go by the other one for what it has, which is returned."""
        names = other._held.keys() | other._used.keys()
        for name in names:
            self._held.pop(name, None)
            self._used.pop(name, None)
        self._held |= other._held
        self._used |= other._used
        return [(scope, direction) for scope, _, direction in (name.rpartition("\n") for name in names)]

    def share(self, scope: Scope) -> float:
        """This broker's share of a rate, above 0 and up to 1."""
        name = "\n".join(scope)
        held, used = self._held.get(name, 0), self._used.get(name, [])
        return max((1.0 - sum(used)) / (1 + held), 1.0 / (1 + held + len(used)))
