"""Credentials of a profile, from the files that AWS's own programs read.

~/.aws/credentials    [NAME]                            AWS_SHARED_CREDENTIALS_FILE names another file
~/.aws/config         [profile NAME], or [default]      AWS_CONFIG_FILE names another file

Keys and the region are read here, and nothing else, as an endpoint. A profile that says how to get keys (a role, single
sign-on, a program) is for boto3.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from configparser import Error, RawConfigParser
from pathlib import Path
from typing import NamedTuple

from engine.errors import InvalidConfigurationError

DEFAULT = "default"
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_ELSEWHERE = ("role_arn", "sso_", "credential_process", "web_identity_token_file")  # how boto3 gets keys

log = logging.getLogger(__name__)


class Profile(NamedTuple):
    """`options`: of the store, by their names there; with keys, or empty."""

    name: str
    options: dict[str, str]


def profile_of(environment: Mapping[str, str]) -> Profile | None:
    """The profile that AWS_PROFILE or AWS_DEFAULT_PROFILE names, else the default one where it says how to get keys;
    None: there is none to be used. It has no options where it is for boto3.

    Keys of the environment come before it, and before the default one a token file of a web identity. Raises
    InvalidConfigurationError, whose text has nothing of a file: the file of a named profile cannot be read.
    """
    if environment.get("AWS_ACCESS_KEY_ID"):
        return None
    named = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE")
    if not named and environment.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return None
    name = named or DEFAULT
    try:
        section = name if name == DEFAULT else f"profile {name}"
        config = _section(_file(environment, "AWS_CONFIG_FILE", "config"), section)
        credentials = _section(_file(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials"), name)
    except InvalidConfigurationError as e:
        if named:
            raise
        log.warning("no profile of AWS is used: %s", e)
        return None
    if any(key.startswith(_ELSEWHERE) for key in (*config, *credentials)):
        return Profile(name, {})
    found = next((each for each in (credentials, config) if each.get(_KEYS[0]) and each.get(_KEYS[1])), None)
    if found is None:
        return Profile(name, {}) if named else None
    options = {key: found[key] for key in _KEYS if found.get(key)}  # those of one file belong together
    region = credentials.get("region") or config.get("region")
    if region and not (environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")):
        options["aws_region"] = region
    return Profile(name, options)


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
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as e:
        raise InvalidConfigurationError(f"{path} must be a file of AWS profiles, got {e.strerror or e}") from None
    except (Error, UnicodeDecodeError):  # their texts have lines of the file
        raise InvalidConfigurationError(
            f"{path} must be a file of AWS profiles, got what cannot be read as one"
        ) from None
    return dict(parser[name]) if parser.has_section(name) else {}
