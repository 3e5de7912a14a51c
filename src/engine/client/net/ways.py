"""`Ways`: over which of a client's addresses other brokers are reached: directly, through proxies, or either.

A proxy leads to every broker; a broker names others by URLs that a client may dial. Which of the two an address is,
only its answer tells.
"""

from __future__ import annotations

from collections.abc import Sequence


class Ways:
    """Of one client. Loop thread only."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)
        self._proxied: dict[str, bool] = {}  # of the addresses that have answered

    def learn(self, address: str, *, proxied: bool) -> None:
        """An address has answered; whether it is a proxy. Others are ignored."""
        if address in self._addresses:
            self._proxied[address] = proxied

    def is_broker(self, address: str) -> bool:
        """Whether it is known to be no proxy."""
        return self._proxied.get(address) is False

    @property
    def through_proxies_alone(self) -> bool:
        """Whether all addresses that have answered are proxies: what they lead to may have no other way."""
        return bool(self._proxied) and all(self._proxied.values())

    def to(self, url: str, in_order: Sequence[str]) -> list[str | None]:
        """The ways to a broker, the likeliest first: None is directly, else by an address, which may be a proxy.

        `in_order`: the addresses, as they are to be tried.
        """
        if url in self._addresses:
            return [None]
        proxies: list[str | None] = [address for address in in_order if not self.is_broker(address)]
        if self.through_proxies_alone:
            return proxies
        return [None, *proxies] if len(self._addresses) > 1 else [None]
