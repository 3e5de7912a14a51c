"""`Routes`: which brokers there are, which of them serves next, and whether a client may ask for one."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

from engine.errors import ConnectError, InvalidArgumentError
from engine.limits import PROXY_BROKERS_MAX
from engine.proxy.config import ProxyConfig
from engine.wire.commands import Connected
from engine.wire.url import format_url, parse_url

SHUNNED_S = 5.0  # a broker that could not be reached is tried after the others for this long


class Routes:
    """Loop thread only. Times are the loop's.

    A client may ask for the brokers of the configuration, for those that match `allow`, and for those that a broker has
    named, in its greeting or as the owner of a segment. So no client can make the proxy dial what it likes.
    """

    def __init__(self, config: ProxyConfig) -> None:
        self._brokers = config.brokers
        self._patterns = [_pattern(text) for text in config.allow]
        self._named: OrderedDict[str, None] = OrderedDict()  # the latest last
        self._failed: dict[str, float] = {}
        self._turn = 0
        self._fixed_admin = config.broker_admin
        self._admins: dict[str, str] = {}  # of brokers, as they say

    def candidates(self, target: str | None, now: float) -> list[str]:
        """The brokers to try, in order. Raises ConnectError for one that is not known, InvalidArgumentError."""
        if target is not None:
            return [self._checked(target)]
        self._turn += 1
        at = self._turn % len(self._brokers)
        turn = self._brokers[at:] + self._brokers[:at]
        return sorted(turn, key=lambda url: now < self._failed.get(url, 0.0) + SHUNNED_S)

    def _checked(self, target: str) -> str:
        url = format_url(*parse_url(target))
        if url in self._brokers or url in self._named or any(p.fullmatch(url) for p in self._patterns):
            return url
        raise ConnectError(f"this proxy knows no broker {url:.200}; a broker has to name it, or the setting allow")

    def failed(self, url: str, now: float) -> None:
        """It could not be reached."""
        if url in self._brokers:
            self._failed[url] = now

    def reached(self, url: str, greeting: Connected | None) -> None:
        """It could, and this is its CONNECTED; None: it does not let the proxy itself in."""
        self._failed.pop(url, None)
        if greeting is None:
            return
        self._name(greeting.broker)
        admin = greeting.admin
        if admin is not None and (url in self._admins or len(self._admins) < PROXY_BROKERS_MAX):
            self._admins[url] = admin

    def named_in(self, dag: Any) -> None:
        """A layout that a broker has sent: its segments' owners."""
        if not isinstance(dag, dict):
            return
        owners = dag.get("segmentBrokers")
        for url in owners.values() if isinstance(owners, dict) else ():
            self._name(url)
        self._name(dag.get("controllerBrokerUrl"))

    def _name(self, url: Any) -> None:
        if not isinstance(url, str):
            return
        if url in self._named:
            self._named.move_to_end(url)
            return
        try:
            url = format_url(*parse_url(url))
        except InvalidArgumentError:
            return  # one that has no address, like a broker within a process
        self._named[url] = None
        if len(self._named) > PROXY_BROKERS_MAX:
            self._named.popitem(last=False)

    @property
    def admins(self) -> list[str]:
        """Where an admin API is, those of brokers that answered lately first."""
        if self._fixed_admin is not None:
            return [self._fixed_admin]
        known = sorted(self._admins, key=lambda url: url in self._failed)
        return list(dict.fromkeys(self._admins[url] for url in known))


def _pattern(text: str) -> re.Pattern[str]:
    if "://" not in text:
        text = f"engine://{text}"
    return re.compile(re.escape(text).replace(r"\*", "[^:/]*"))
