"""`Changes`: when the rights of a role changed last, as far as a broker has heard.

What is attached ends with its right (see session/revocation.py). A transaction may be open for a day, and what was sent
and acknowledged in it counts only with its commit: that is checked again where the role's rights have changed since the
transaction was begun, or may have, since this broker did not run or has forgotten. Elsewhere a commit reads nothing
for it.
"""

from __future__ import annotations

from engine.clock import Clock

SKEW_MS = 10_000  # of the clocks of two brokers: one has begun the transaction, the other hears of the change
_ROLES_MAX = 10_000


class Changes:
    """Loop thread only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._of_all = clock.time_ms()  # nothing is known of before
        self._of_role: dict[str, int] = {}  # oldest first

    def note(self, role: str | None = None) -> None:
        """Those of a role have changed, or of any."""
        now = self._clock.time_ms()
        if role is None:
            self._of_all = now
            return
        self._of_role.pop(role, None)
        self._of_role[role] = now
        if len(self._of_role) > _ROLES_MAX:
            self._of_all = max(self._of_all, self._of_role.pop(next(iter(self._of_role))))

    def since(self, role: str, time_ms: int) -> bool:
        """Whether they may have changed since then."""
        return time_ms <= max(self._of_all, self._of_role.get(role, 0)) + SKEW_MS
