"""Who owns which bucket of a shared segment: evenly, and with as few moves as that allows."""

from __future__ import annotations

from collections.abc import Sequence

NOBODY = -1


def spread(owners: Sequence[int], sharers: Sequence[int]) -> list[int]:
    """The owner of each bucket, from who owned it before; `sharers` in the order in which they are to be served.

    Each sharer gets the number of buckets over the number of sharers, rounded down or up. Who stays keeps as many as
    that allows; the larger shares are left to those who had most.
    """
    if not sharers:
        return [NOBODY] * len(owners)
    had = dict.fromkeys(sharers, 0)
    for owner in owners:
        if owner in had:
            had[owner] += 1
    floor, larger = divmod(len(owners), len(sharers))
    by_need = sorted(sharers, key=lambda sharer: -had[sharer])  # stable: else in the order given
    room = {sharer: floor + (place < larger) for place, sharer in enumerate(by_need)}
    spread = [_kept(owner, room) for owner in owners]
    takers = [sharer for sharer in sharers for _ in range(room[sharer])]
    free = [bucket for bucket, owner in enumerate(spread) if owner == NOBODY]
    for bucket, taker in zip(free, takers, strict=True):
        spread[bucket] = taker
    return spread


def _kept(owner: int, room: dict[int, int]) -> int:
    """The owner, as long as it has room for what it had."""
    if room.get(owner, 0) == 0:
        return NOBODY
    room[owner] -= 1
    return owner
