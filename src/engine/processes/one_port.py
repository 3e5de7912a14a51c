"""`OnePort`: where clients reach one port alone, the parent passes their bytes on to the child that they name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from engine.broker.settings.config import BrokerConfig
from engine.processes.sockets import Reserved
from engine.proxy.config import ProxyConfig
from engine.proxy.server import Proxy
from engine.wire.url import WILDCARDS, format_url

_SAME = [
    field.name
    for field in dataclasses.fields(ProxyConfig)
    if field.name in {f.name for f in dataclasses.fields(BrokerConfig)}
]


class OnePort:
    """A proxy before the Unix sockets of the children. TLS and the shared token end here; roles are the children's."""

    def __init__(self, urls: Sequence[str], config: BrokerConfig, admin: Reserved | None) -> None:
        """`admin`: of the children's admin API. Raises InvalidConfigurationError for an unusable certificate."""
        self._urls = tuple(urls)
        self._admin = admin
        self._tls = config.tls_cert is not None
        self.proxy = Proxy(self._proxy_config(config), self._admin_url)

    async def serve(self, clients: Reserved) -> None:
        """Accept clients. Raises ConnectError."""
        for sock, (host, port) in zip(clients.sockets, clients.addresses, strict=True):
            await self.proxy.serve(host, port, sock.dup())

    def configure(self, config: BrokerConfig) -> None:
        """Put another configuration into effect. Raises InvalidConfigurationError."""
        proxied = self._proxy_config(config)
        self.proxy.renew(proxied)
        self.proxy.limits.rebase(proxied)

    async def close(self) -> None:
        await self.proxy.close()

    def _proxy_config(self, config: BrokerConfig) -> ProxyConfig:
        same = {name: getattr(config, name) for name in _SAME}
        if config.has_roles:  # the children check each client's token, and give its role no other rights than over TCP
            same |= {"auth_token": None, "insecure": True, "speaks_for_clients": config.tls_client_ca is not None}
        return ProxyConfig(brokers=self._urls, **same)

    def _admin_url(self, dialled: str | None) -> str | None:
        if self._admin is None:
            return None
        host, port = self._admin.addresses[0]
        return format_url(
            (dialled or "127.0.0.1") if host in WILDCARDS else host, port, "https" if self._tls else "http"
        )
