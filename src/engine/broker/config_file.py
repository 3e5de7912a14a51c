"""The part of a TOML file that is about one program."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from engine.errors import InvalidConfigurationError


def read_section(path: Path, name: str) -> dict[str, Any]:
    """What stands at the top and under [name], which wins. Raises InvalidConfigurationError naming the file."""
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as e:
        raise InvalidConfigurationError(f"configuration file {path} cannot be read: {e.strerror or e}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise InvalidConfigurationError(f"configuration file {path} is not TOML: {e}") from e
    section = content.pop(name, {})
    if not isinstance(section, dict):
        raise InvalidConfigurationError(f"{name} is {section!r} in {path}; a section [{name}] is right")
    return {**content, **section}
