"""Credentials of a profile, from the files that AWS's own programs read.

~/.aws/credentials    [NAME]                            AWS_SHARED_CREDENTIALS_FILE names another file
~/.aws/config         [profile NAME], or [default]      AWS_CONFIG_FILE names another file

Keys and the region are read here. A profile that says how to get keys (a role, single sign-on, a program) is for boto3.
"""

from __future__ import annotations

from collections.abc import Mapping
from configparser import Error, RawConfigParser
from pathlib import Path
from typing import NamedTuple

from engine.errors import InvalidConfigurationError

DEFAULT = "default"
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


class Profile(NamedTuple):
    """`options`: of the store, by their names there; with keys, or empty."""

    name: str
    options: dict[str, str]


def profile_of(environment: Mapping[str, str]) -> Profile | None:
    """The profile that AWS_PROFILE names, else the default one where it has keys; None: there is none to be used.

    Keys of the environment, and a token file of a web identity, come before it. Raises InvalidConfigurationError, whose
    text has nothing of a file.
    """
    if environment.get("AWS_ACCESS_KEY_ID"):
        return None
    named = environment.get("AWS_PROFILE")
    if not named and environment.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return None
    name = named or DEFAULT
    found = {
        **_section(_file(environment, "AWS_CONFIG_FILE", "config"), name if name == DEFAULT else f"profile {name}"),
        **_section(_file(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials"), name),
    }
    options: dict[str, str] = {}
    if found.get(_KEYS[0]) and found.get(_KEYS[1]) and "role_arn" not in found:
        options = {key: found[key] for key in _KEYS if found.get(key)}
        if found.get("region") and not (environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")):
            options["aws_region"] = found["region"]
    return Profile(name, options) if named or options else None


def _file(environment: Mapping[str, str], variable: str, name: str) -> Path | None:
    if path := environment.get(variable):
        return Path(path)
    home = environment.get("HOME")
    return Path(home, ".aws", name) if home else None


def _section(path: Path | None, name: str) -> dict[str, str]:
    """What a file says of a profile; nothing where it does not exist."""
    parser = RawConfigParser(strict=False, default_section="")
    try:
        text = "" if path is None else path.read_text()
        parser.read_string(text)
    except FileNotFoundError:
        return {}
    except OSError as e:
        raise InvalidConfigurationError(f"{path} must be a file of AWS profiles, got {e.strerror or e}") from None
    except (Error, UnicodeDecodeError):  # their texts have lines of the file
        raise InvalidConfigurationError(
            f"{path} must be a file of AWS profiles, got what cannot be read as one"
        ) from None
    return dict(parser[name]) if parser.has_section(name) else {}
