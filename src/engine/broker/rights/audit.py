"""`Audit`: denials and administrative acts as JSON lines, in a file with rotation or on standard output.

A line says when, the role, the peer's address, the request, the resource and right, whether it was allowed, and the
error with which it has failed. It has
no content of messages, and no secret.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from engine.broker.rights.need import Need
from engine.broker.rights.principal import Principal
from engine.clock import Clock
from engine.errors import InvalidConfigurationError
from engine.limits import MIB
from engine.model.rights import names_of

STDOUT = "-"
FILE_SIZE_MAX = 64 * MIB  # then another file is begun
FILES_KEPT = 5


class Audit:
    """Writes one line for each event; does nothing without a target."""

    def __init__(self, target: str | None, clock: Clock) -> None:
        """`target`: the path of a file, or STDOUT. Raises InvalidConfigurationError."""
        self.denials = 0
        self._clock = clock
        self._handler: logging.Handler | None = None
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
        right: str,
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
        facts = {
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
        if principal.speaker is not None:
            facts["proxy"] = str(principal.speaker)
        self._handler.handle(logging.makeLogRecord({"msg": json.dumps(facts), "levelno": logging.INFO}))

    def close(self) -> None:
        """Close the file. Idempotent."""
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.close()
