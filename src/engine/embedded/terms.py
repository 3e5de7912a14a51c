"""`Terms`: the configuration that was given for a data directory, compared with that of the engine that serves it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from engine.broker.settings.config import BrokerConfig, given_values
from engine.errors import InvalidConfigurationError

Config = BrokerConfig | Mapping[str, Any] | str | PathLike[str] | None


@dataclass(frozen=True, slots=True)
class Terms:
    """Values by the names of BrokerConfig's fields, those alone that were given. None given: any are accepted."""

    given: Mapping[str, Any]

    @classmethod
    def of(cls, config: Config) -> Terms:
        """Of a configuration in any of its forms. Raises InvalidConfigurationError naming the key or the file."""
        if config is None:
            return cls({})
        if isinstance(config, BrokerConfig):
            return cls(_plain(config, [field.name for field in dataclasses.fields(config)]))
        if isinstance(config, Mapping):
            values = given_values(None, None, config)
        elif isinstance(config, str | PathLike):
            values = given_values(str(config), None, {})
        else:
            got = type(config).__name__
            raise InvalidConfigurationError(f"config must be a mapping or the path of a TOML file, got {got}")
        return cls(_plain(BrokerConfig(**values), values))

    @classmethod
    def told(cls, given: Mapping[str, Any]) -> Terms:
        """Those of another process, which may be of another version: what this one does not know is left out."""
        known = {field.name for field in dataclasses.fields(BrokerConfig)}
        return cls({name: value for name, value in given.items() if name in known})

    def config(self) -> BrokerConfig:
        """The whole configuration, with defaults."""
        return BrokerConfig(**self.given)

    def over(self, other: Terms) -> Terms:
        """These, and of the others what is not among these."""
        return Terms({**other.given, **self.given})

    def check(self, served: BrokerConfig, where: str) -> None:
        """Raise InvalidConfigurationError unless the engine that serves the directory `where` has these values."""
        unknown = object()
        differing = sorted(
            name for name, value in self.given.items() if _simple(getattr(served, name, unknown)) != _simple(value)
        )
        if differing:
            raise InvalidConfigurationError(
                f"config must be that of the engine which has {where} open, or be left out, got other values of "
                f"{', '.join(differing)}"
            )


def _plain(config: BrokerConfig, names: Any) -> dict[str, Any]:
    return {name: _simple(getattr(config, name)) for name in names}


def _simple(value: Any) -> Any:
    """As it is behind a journey as msgpack."""
    return list(value) if isinstance(value, tuple) else value
