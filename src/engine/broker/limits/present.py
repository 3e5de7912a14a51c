"""`Present` and `Others`: what brokers tell each other of what is attached, so that numbers hold for all together.

A producer or consumer of a topic is attached to segments at several brokers, and counts once; so does a transaction
that goes on over another broker than the one that began it. So names are shown, as digests, and not numbers alone.
Names that a broker has no room to show count as if no other broker had them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import nlargest

from engine.metadata.keys import limit_group
from engine.model.rights import CLUSTER

DIGEST_SIZE = 8  # bytes
NAMES_SHOWN_MAX = 16_384  # of one broker and group: a record of about 180 KiB
SCOPES_SHOWN_MAX = 500  # likewise: those that are nearest to their limits
GROUPS_SHOWN_MAX = 1_000  # of one broker, a record each: tenants and roles that are nearest to their limits
_STAYS = 1.25  # so many times nearer than one that is shown is another that takes its place

# (how full it is, "what\nscope", digests of names, how many there are besides)
Attended = tuple[float, str, Collection[bytes], int]


def digest(name: str) -> bytes:
    """Of a name, as it is counted and shown."""
    return blake2b(name.encode(), digest_size=DIGEST_SIZE).digest()


@dataclass(slots=True)
class Present:
    """What one broker shows of a group, by "what\\nscope". `names`: digests, in one. `more`: how many are not shown."""

    names: dict[str, bytes] = field(default_factory=dict)
    more: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Iterable[Attended]) -> Present:
        """The scopes nearest to their limits; of them, the small ones have room for their names first."""
        shown, room = cls(), NAMES_SHOWN_MAX
        nearest = sorted(found, key=lambda one: (-one[0], one[1]))[:SCOPES_SHOWN_MAX]
        for _, key, digests, more in sorted(nearest, key=lambda one: (len(one[2]), one[1])):
            names = sorted(digests)[:room]
            room -= len(names)
            if names:
                shown.names[key] = b"".join(names)
            if more := more + len(digests) - len(names):
                shown.more[key] = more
        return shown


def nearest(full: Mapping[str, float], shown: Collection[str] = ()) -> list[str]:
    """The GROUPS_SHOWN_MAX groups to show: the cluster, which all brokers have, and those nearest to their limits.

    `full`: which part of its limit is used, by group. `shown`: those that are shown. One of them gives its place up to
    one that is clearly nearer alone, so that groups that are about as near are not written and deleted in turns.
    """
    if len(full) <= GROUPS_SHOWN_MAX:
        return list(full)

    def rank(group: str) -> tuple[bool, float]:
        return group == CLUSTER, full[group] * (_STAYS if group in shown else 1.0)

    return nlargest(GROUPS_SHOWN_MAX, full, key=rank)


def by_group(found: Iterable[Attended], shown: Collection[str] = ()) -> dict[str, Present]:
    """What one broker shows of each group: of those that are nearest(), see there."""
    groups: dict[str, list[Attended]] = {}
    for one in found:
        groups.setdefault(limit_group(one[1].partition("\n")[2]), []).append(one)
    full = {group: max(one[0] for one in attended) for group, attended in groups.items()}
    presents = ((group, Present.of(groups[group])) for group in nearest(full, shown))
    return {group: present for group, present in presents if present.names or present.more}


class Others:
    """Those of one scope at the other brokers."""

    __slots__ = ("more", "names")

    def __init__(self) -> None:
        self.names: set[bytes] = set()
        self.more = 0

    @property
    def most(self) -> int:
        """Not fewer than there are."""
        return len(self.names) + self.more

    def besides(self, here: Iterable[bytes]) -> int:
        """Those that are not here as well."""
        return len(self.names.difference(here)) + self.more


NONE_ELSEWHERE = Others()


def others_of(shown: Iterable[Present]) -> dict[str, Others]:
    """By "what\\nscope", from what the other brokers show."""
    found: dict[str, Others] = {}
    for present in shown:
        for key, names in present.names.items():
            others = found.setdefault(key, Others())
            others.names.update(names[at : at + DIGEST_SIZE] for at in range(0, len(names), DIGEST_SIZE))
        for key, more in present.more.items():
            found.setdefault(key, Others()).more += max(more, 0)
    return found
