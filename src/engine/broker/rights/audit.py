"""`Audit`: denials and administrative acts as JSON lines, in a file with rotation or on standard output.

A line says when, the role, the peer's address, the request, the resource and right, whether it was allowed, the error
with which it has failed, and the reason of a denial that is no lack of a right. It has no content of messages, and no
secret.

What is denied again and again must not push the lines of others out of the files that are kept. So each role has a
budget of lines about denials (token bucket): LINES_MAX at once, and then LINES_PER_S. What is beyond it is counted, and
the role's next line says how many had none. Peers that prove no role share one budget.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime

from engine.broker.rights.need import Need
from engine.broker.rights.principal import Principal
from engine.clock import Clock
from engine.errors import AuthorizationError, InvalidConfigurationError
from engine.limits import MIB
from engine.model.rights import CLUSTER, names_of

STDOUT = "-"
FILE_SIZE_MAX = 64 * MIB  # then another file is begun
FILES_KEPT = 5
LINES_MAX = 10_000  # about denials of one role, at once
LINES_PER_S = 10.0  # and from then on
BUDGETS_MAX = 1_000  # roles with a budget that is not full; the one whose last denial is oldest is forgotten
TEXT_MAX = 2_000  # characters of a fact


@dataclass(slots=True)
class _Budget:
    """`left`: lines, when the clock said `at`. `unwritten`: denials without a line since the last one."""

    left: float
    at: float
    unwritten: int = 0

    def take(self, now: float) -> bool:
        """Whether a line may be written."""
        self.left = min(LINES_MAX, self.left + (now - self.at) * LINES_PER_S)
        self.at = now
        if self.left < 1:
            self.unwritten += 1
            return False
        self.left -= 1
        return True


class Audit:
    """Writes one line for each event; does nothing without a target."""

    def __init__(self, target: str | None, clock: Clock) -> None:
        """`target`: the path of a file, or STDOUT. Raises InvalidConfigurationError."""
        self.denials = 0
        self._clock = clock
        self._handler: logging.Handler | None = None
        self._budgets: OrderedDict[tuple[str, str], _Budget] = OrderedDict()  # in the order of the last denials
        if target == STDOUT:
            self._handler = logging.StreamHandler(sys.stdout)
        elif target is not None:
            from engine.broker.rights.audit_file import SharedFile  # loads much, for few brokers

            try:
                self._handler = SharedFile(target, FILE_SIZE_MAX, FILES_KEPT)
            except OSError as e:
                raise InvalidConfigurationError(f"audit_log {target} cannot be written: {e.strerror or e}") from e

    @property
    def writes(self) -> bool:
        """Whether there is a target."""
        return self._handler is not None

    def denial(
        self,
        principal: Principal,
        peer: str | None,
        request: str,
        reason: str,
        need: Need | None = None,
    ) -> AuthorizationError:
        """The error of what is refused for another reason than a right, once it is counted and written down.

        `need`: the resource, and the rights with which it is not refused: 0: with none; None: on the cluster, none.
        """
        right, resource, subscription = (None, CLUSTER, None) if need is None else need[:3]
        more = {"subscription": subscription, "reason": reason}
        self.note(principal, peer, request, names_of(right) if right else None, resource, allowed=False, **more)
        return AuthorizationError(reason)

    def note_need(
        self,
        principal: Principal,
        peer: str | None,
        request: str,
        need: Need,
        *,
        allowed: bool,
        error: str | None = None,
    ) -> None:
        """Write one line of a request that needs this. `error`: the kind of that with which it has ended."""
        more = {"subscription": need.subscription, "error": error}
        self.note(principal, peer, request, names_of(need.rights), need.resource, allowed=allowed, **more)

    def note(
        self,
        principal: Principal,
        peer: str | None,
        request: str,
        right: str | None,
        resource: str,
        *,
        allowed: bool,
        **more: str | None,
    ) -> None:
        """Write one line. `more`: facts that it has where they are not None."""
        if not allowed:
            self.denials += 1
        if self._handler is None:
            return
        budget = None if allowed else self._budget(principal)
        if budget is not None and not budget.take(self._clock.monotonic()):
            return
        facts: dict[str, str | bool | int | None] = {
            "time": datetime.fromtimestamp(self._clock.time_ms() / 1000, UTC).isoformat(timespec="milliseconds"),
            "role": str(principal),
            "kind": principal.kind.value,
            "proof": principal.proof.value,
            "peer": peer,
            "request": request,
            "right": right,
            "resource": resource,
            "allowed": allowed,
        }
        facts |= {name: fact for name, fact in more.items() if fact is not None}
        facts = {name: fact[:TEXT_MAX] if isinstance(fact, str) else fact for name, fact in facts.items()}
        if budget is not None and budget.unwritten:
            facts["unwritten"], budget.unwritten = budget.unwritten, 0
        if principal.speaker is not None:
            facts["proxy"] = str(principal.speaker)
        self._handler.handle(logging.makeLogRecord({"msg": json.dumps(facts), "levelno": logging.INFO}))

    def _budget(self, principal: Principal) -> _Budget:
        """Of its role."""
        key = principal.kind.value, principal.role
        budget = self._budgets.pop(key, None) or _Budget(LINES_MAX, self._clock.monotonic())
        self._budgets[key] = budget
        if len(self._budgets) > BUDGETS_MAX:
            self._budgets.popitem(last=False)
        return budget

    def close(self) -> None:
        """Close the file. Idempotent."""
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.close()
