"""`Doors`: where an engine is to be served besides its directory's socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.doors import check_exposed
from engine.client.local import address
from engine.errors import InvalidArgumentError

PORT = 6650
ADMIN_PORT = 8080

GivenAddress = str | tuple[str, int] | None
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Doors:
    """Addresses for clients (`listen`) and of the REST API (`admin`); None: it is not served."""

    listen: Address | None = None
    admin: Address | None = None

    @classmethod
    def of(cls, listen: GivenAddress, admin: GivenAddress) -> Doors:
        """As they were given. Raises InvalidArgumentError."""
        return cls(
            None if listen is None else address(listen, PORT), None if admin is None else address(admin, ADMIN_PORT)
        )

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> Doors:
        """Undo pack(). Raises InvalidArgumentError."""
        found = {}
        for name in ("listen", "admin"):
            at = packed[name]
            if at is not None and not (len(at) == 2 and isinstance(at[0], str) and isinstance(at[1], int)):
                raise InvalidArgumentError(f"{name} must be a host and a port, got {at!r:.80}")
            found[name] = None if at is None else (at[0], at[1])
        return cls(**found)

    @property
    def parts(self) -> list[Doors]:
        """One for each address."""
        listen = [] if self.listen is None else [Doors(listen=self.listen)]
        return listen if self.admin is None else [*listen, Doors(admin=self.admin)]

    def over(self, part: Doors) -> Doors:
        """These, with the addresses of a part in place of their own."""
        return Doors(part.listen or self.listen, part.admin or self.admin)

    def __str__(self) -> str:
        named = [f"{name} {at[0]}:{at[1]}" for name, at in (("listen", self.listen), ("admin", self.admin)) if at]
        return " and ".join(named)

    def pack(self) -> dict[str, Any]:
        return {"listen": self.listen, "admin": self.admin}

    async def check(self, config: BrokerConfig) -> None:
        """Raise InvalidConfigurationError where other machines reach one of them without a token."""
        for at in (self.listen, self.admin):
            if at is not None:
                await check_exposed(at[0], config)


class OpenDoors:
    """Where one broker is served. Each address is opened once, however often it is asked for; so is port 0."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._served: dict[tuple[str, Address], Address] = {}

    async def open(self, doors: Doors) -> Doors:
        """Serve there; with the ports that were chosen for 0. Raises ConnectError, InvalidConfigurationError."""
        await doors.check(self._broker.config)
        admin = doors.admin and await self._open("admin", doors.admin)
        return Doors(doors.listen and await self._open("listen", doors.listen), admin)

    async def _open(self, kind: str, at: Address) -> Address:
        if (kind, at) not in self._served:
            serve = self._broker.serve if kind == "listen" else self._broker.serve_admin
            found = await serve(*at)
            self._served[kind, at] = self._served[kind, (at[0], found[1])] = found
        return self._served[kind, at]

    @property
    def urls(self) -> tuple[str | None, str | None]:
        """Of clients that are no processes of this machine, and of the REST API; None: it is not served for them."""
        addresses = self._broker.addresses
        return (addresses.service_url if addresses.reachable else None), addresses.admin_url
