"""`TokenFile`: the tokens of roles, as a file of lines `role: sha256:<hash>`; and how such a line is made.

Tokens are drawn at random, with 256 bits, so that a plain hash of one cannot be reversed. The file is read again when
it has changed: a line that was removed revokes its token.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from pathlib import Path

from engine.broker.rights.watched_file import WatchedFile
from engine.errors import InvalidArgumentError, InvalidConfigurationError
from engine.model.rights import check_role

log = logging.getLogger(__name__)

TOKENS_MAX = 10_000
_SIZE_MAX = 4 * 1024 * 1024
_HASH = re.compile(r"sha256:([0-9a-f]{64})")


def line_of(role: str, token: str) -> str:
    """The line of a role's token. Raises InvalidArgumentError."""
    return f"{check_role(role)}: sha256:{_digest(token).hex()}"


def parse(text: str, path: str) -> dict[bytes, str]:
    """Roles by the digests of their tokens. Raises InvalidConfigurationError naming the line, without its hash."""
    found: dict[bytes, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        role, _, said = line.rpartition(": ")
        match = _HASH.fullmatch(said.strip())
        try:
            check_role(role.strip())
        except InvalidArgumentError:
            match = None
        if match is None:
            raise InvalidConfigurationError(f"{path}, line {number}, must be role: sha256:<64 hexadecimal digits>")
        if found.setdefault(bytes.fromhex(match[1]), role.strip()) != role.strip():
            raise InvalidConfigurationError(f"{path}, line {number}, must not have the token of another role")
    if len(found) > TOKENS_MAX:
        raise InvalidConfigurationError(f"{path} must have at most {TOKENS_MAX} tokens, got {len(found)}")
    return found


def text_of(path: Path, name: str) -> str:
    """What the file at `path` says, unchecked. Raises InvalidConfigurationError, which calls it `name`."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_SIZE_MAX + 1)
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not text"
        raise InvalidConfigurationError(f"{name} cannot be read: {why}") from e
    if len(text) > _SIZE_MAX:
        raise InvalidConfigurationError(f"{name} must have at most {_SIZE_MAX} characters")
    return text


class TokenFile:
    """The file at `path`."""

    def __init__(self, path: str) -> None:
        """Raises InvalidConfigurationError."""
        self._file = WatchedFile("roles_file", path)
        self._roles = self._read()

    def find(self, token: str) -> tuple[str, bytes] | None:
        """The role of a token, and the token's digest. Takes the same time wherever its line is, or if it has none."""
        given, found = _digest(token), None
        for digest, role in self._roles.items():
            if hmac.compare_digest(digest, given):
                found = role, digest
        return found

    def has(self, digest: bytes, role: str) -> bool:
        """Whether a token that was found before is still there."""
        return self._roles.get(digest) == role

    def refresh(self) -> bool:
        """Read the file again if it has changed; whether it has. One that cannot be used changes nothing."""
        try:
            if not self._file.has_changed():
                return False
            self._roles = self._read()
        except InvalidConfigurationError as e:
            log.error("the tokens of roles stay as they were: %s", e)
            return False
        log.info("the tokens of roles were read again: %d", len(self._roles))
        return True

    def _read(self) -> dict[bytes, str]:
        return parse(text_of(self._file.path, self._file.name), self._file.name)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
