"""Configuration files: one program's section of a TOML file, and secrets."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from engine.errors import InvalidConfigurationError

SERVE = "serve"  # the section with options of `engine serve`, which may be in the broker's file


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a file. Raises InvalidConfigurationError naming it."""
    import tomllib

    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as e:
        raise InvalidConfigurationError(f"configuration file {path} cannot be read: {e.strerror or e}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise InvalidConfigurationError(f"configuration file {path} is not TOML: {e}") from e


def read_section(path: Path, name: str) -> dict[str, Any]:
    """The top-level keys and those of [name], which override. Raises InvalidConfigurationError naming the file."""
    content = read_toml(path)
    content.pop(SERVE, None)
    section = content.pop(name, {})
    if not isinstance(section, dict):
        raise InvalidConfigurationError(f"{name} in {path} must be a section [{name}], got {section!r:.80}")
    return {**content, **section}


def snake_case(name: str) -> str:
    """`camelCase` as `camel_case`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def check_known(names: Mapping[str, str], known: Collection[str], what: str) -> None:
    """Raise InvalidConfigurationError where a name, as it was given: as it is known, is none of the known ones. It has
    all that are not, each with those that it may be a slip of; with all of them where there is nothing similar.
    """
    import difflib

    faults = []
    for given, name in names.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.7)
            hint = f"did you mean {' or '.join(near)}?" if near else f"the known ones are {', '.join(sorted(known))}"
            faults.append(f"{given} is no {what}; {hint}")
    if faults:
        raise InvalidConfigurationError("; ".join(faults))


def override(values: dict[str, Any], later: Mapping[str, Any], *keys: str) -> None:
    """Update `values`; a secret that comes later replaces an earlier one, whichever of them is in a file."""
    for key in keys:
        if later.keys() & {key, f"{key}_file"}:
            values.pop(key, None)
            values.pop(f"{key}_file", None)
    values.update(later)


def read_secrets(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    """`values` with each of `keys` read from the file that `<key>_file` names. Raises InvalidConfigurationError."""
    found = dict(values)
    for key in keys:
        path = found.pop(f"{key}_file", None)
        if path is None:
            continue
        if found.get(key) is not None:
            raise InvalidConfigurationError(f"{key} and {key}_file must not both be set, got both")
        found[key] = read_secret(f"{key}_file", path)
    return found


def read_secret(key: str, path: Any) -> str:
    """The one line of a file. Raises InvalidConfigurationError naming the key, without the file's content."""
    if not isinstance(path, str | Path):
        raise InvalidConfigurationError(f"{key} must be the path of a file, got {type(path).__name__}")
    try:
        text = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not text"
        raise InvalidConfigurationError(f"{key} {path} cannot be read: {why}") from None
    if not text or "\n" in text:
        raise InvalidConfigurationError(f"{key} {path} must hold one line with the token, got {len(text.splitlines())}")
    return text
