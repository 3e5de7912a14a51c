"""`Changes`: when the rights of a role changed last, as far as a broker has heard.

What is attached ends with its right (see session/revocation.py). A transaction may be open for a day, and what was sent
and acknowledged in it counts only with its commit: that is checked again where the role's rights have changed since the
transaction was begun, or may have: this broker did not run, or did not follow the role's grants. Elsewhere a commit
reads nothing for it.
"""

from __future__ import annotations

from engine.clock import Clock

SKEW_MS = 10_000  # of the clocks of two brokers: one has begun the transaction, the other hears of the change


class Changes:
    """Loop thread only. It grows with the roles that are followed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._of_all = clock.time_ms()  # nothing is known of before
        self._of_role: dict[str, int] = {}  # those that are followed

    def began(self, role: str) -> None:
        """Its grants are followed from now on: nothing is known of before."""
        self._of_role[role] = self._clock.time_ms()

    def ended(self, role: str) -> None:
        """Its grants are not followed any more."""
        self._of_role.pop(role, None)

    def note(self, role: str | None = None) -> None:
        """The rights of a role that is followed have changed, or of any."""
        if role is None:
            self._of_all = self._clock.time_ms()
        elif role in self._of_role:
            self._of_role[role] = self._clock.time_ms()

    def since(self, role: str, time_ms: int) -> bool:
        """Whether they may have changed since then."""
        last = self._of_role.get(role)
        return last is None or time_ms <= max(self._of_all, last) + SKEW_MS
