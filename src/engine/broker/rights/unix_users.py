"""The setting `unix_users`: which other users of the machine may use the Unix socket, and as which roles."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import InvalidArgumentError, InvalidConfigurationError
from engine.model.rights import check_role
from engine.wire.users import user_id


def parse_users(pairs: Sequence[str]) -> dict[int, str]:
    """Roles by the ids of users. Raises InvalidConfigurationError: no such user, no name of a role."""
    found: dict[int, str] = {}
    for pair in pairs:
        user, _, role = pair.partition("=")
        try:
            number = user_id(user.strip())
            if found.setdefault(number, check_role(role.strip())) != role.strip():
                raise InvalidArgumentError(f"a user must have one role, got another for {user!r:.80}")
        except InvalidArgumentError as e:
            raise InvalidConfigurationError(f"unix_users: {e}") from e
    return found
