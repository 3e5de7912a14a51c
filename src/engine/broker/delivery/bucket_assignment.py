"""The assignment of a shared segment's buckets to its consumers: even, with as few moves as that allows."""

from __future__ import annotations

from collections.abc import Sequence

UNASSIGNED = -1  # a bucket without an owner


def spread(owners: Sequence[int], members: Sequence[int]) -> list[int]:
    """The owner of each bucket, given the previous owners. `members`: in order of preference.

    1. Each member's share is buckets / members, rounded down or up; members that had most get the larger shares.
    2. Each member keeps buckets that it had, up to its share.
    3. The remaining buckets fill the shares, in the order of `members`.
    """
    if not members:
        return [UNASSIGNED] * len(owners)
    had = dict.fromkeys(members, 0)
    for owner in owners:
        if owner in had:
            had[owner] += 1
    floor, larger = divmod(len(owners), len(members))
    by_need = sorted(members, key=lambda member: -had[member])  # stable: else in the order given
    room = {member: floor + (place < larger) for place, member in enumerate(by_need)}
    spread = [_kept(owner, room) for owner in owners]
    takers = [member for member in members for _ in range(room[member])]
    free = [bucket for bucket, owner in enumerate(spread) if owner == UNASSIGNED]
    for bucket, taker in zip(free, takers, strict=True):
        spread[bucket] = taker
    return spread


def _kept(owner: int, room: dict[int, int]) -> int:
    """The owner, if it has room left for a bucket that it had."""
    if room.get(owner, 0) == 0:
        return UNASSIGNED
    room[owner] -= 1
    return owner
