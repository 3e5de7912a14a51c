"""`Routes`: the known brokers, their order for the next session, and which of them clients may request."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

from engine.errors import ConnectError, InvalidArgumentError
from engine.limits import PROXY_BROKERS_MAX
from engine.proxy.config import ProxyConfig
from engine.wire.commands import Connected
from engine.wire.url import normal_url

SHUNNED_S = 5.0  # a broker that could not be reached is tried after the others for this long


class Routes:
    """The known brokers. Times are the loop's.

    A client may request the brokers of the configuration, those that match `allow`, and those named by a broker in its
    handshake or as the owner of a segment. So a client cannot make the proxy dial arbitrary addresses.
    """

    def __init__(self, config: ProxyConfig) -> None:
        self._brokers = config.brokers
        self._patterns = [_pattern(text) for text in config.allow]
        self._named: OrderedDict[str, None] = OrderedDict()  # the latest last
        self._failed: dict[str, float] = {}
        self._turn = 0
        self._fixed_admin = config.broker_admin
        self._admins: dict[str, str] = {}  # admin URLs by broker, as advertised

    def candidates(self, target: str | None, now: float) -> list[str]:
        """The brokers to try, in order. Raises ConnectError for an unknown one, InvalidArgumentError."""
        if target is not None:
            return [self._checked(target)]
        self._turn += 1
        at = self._turn % len(self._brokers)
        turn = self._brokers[at:] + self._brokers[:at]
        return sorted(turn, key=lambda url: now < self._failed.get(url, 0.0) + SHUNNED_S)

    def _checked(self, target: str) -> str:
        url = normal_url(target)
        if url in self._brokers or url in self._named or any(p.fullmatch(url) for p in self._patterns):
            return url
        raise ConnectError(f"unknown broker {url:.200}; it must be named by a broker or by the setting allow")

    def failed(self, url: str, now: float) -> None:
        """It could not be reached."""
        if url in self._brokers:
            self._failed[url] = now

    def reached(self, url: str, greeting: Connected | None) -> None:
        """Note a reached broker and its CONNECTED; None: it refuses the proxy's credentials."""
        self._failed.pop(url, None)
        if greeting is None:
            return
        self._name(greeting.broker)
        admin = greeting.admin
        if admin is not None and (url in self._admins or len(self._admins) < PROXY_BROKERS_MAX):
            self._admins[url] = admin

    def named_in(self, dag: Any) -> None:
        """Note the segments' owners in a layout sent by a broker."""
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
            url = normal_url(url)
        except InvalidArgumentError:
            return  # without an address, like an embedded broker
        self._named[url] = None
        if len(self._named) > PROXY_BROKERS_MAX:
            self._named.popitem(last=False)

    @property
    def admins(self) -> list[str]:
        """URLs of admin APIs, those of brokers that answered last first."""
        if self._fixed_admin is not None:
            return [self._fixed_admin]
        known = sorted(self._admins, key=lambda url: url in self._failed)
        return list(dict.fromkeys(self._admins[url] for url in known))


def _pattern(text: str) -> re.Pattern[str]:
    if "://" not in text:
        text = f"engine://{text}"
    return re.compile(re.escape(text).replace(r"\*", "[^:/]*"))
