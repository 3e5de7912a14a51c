"""Applies a reloaded configuration to a running broker or proxy, as far as that is possible without a restart."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, TypeVar

from engine.broker.admin.dynamic import DYNAMIC
from engine.broker.settings.doors import Exposed
from engine.errors import AlreadyClosedError, InvalidConfigurationError
from engine.proxy.limits import LIMITS

if TYPE_CHECKING:
    from engine.broker.server import Broker
    from engine.broker.settings.config import BrokerConfig
    from engine.proxy.config import ProxyConfig
    from engine.proxy.server import Proxy

log = logging.getLogger(__name__)

C = TypeVar("C", "BrokerConfig", "ProxyConfig")

_DOORS = ("auth_token", "admin_hosts", "tls_cert", "tls_key")
BROKER_KEYS = (*_DOORS, "superusers", "cluster_token", "cluster_tls_cert", "cluster_tls_key", *DYNAMIC)
PROXY_KEYS = (*_DOORS, "broker_token", "broker_tls_ca", "broker_tls_cert", "broker_tls_key", *LIMITS)


def reload_broker(broker: Broker, config: BrokerConfig) -> None:
    """Apply what `config` changes, except settings that need a restart. Open connections stay open.

    Raises InvalidConfigurationError, AlreadyClosedError; nothing is changed then.
    """
    if broker.refusing:
        raise AlreadyClosedError("the broker is not running")
    merged = reloaded(broker.dynamic.base, config)
    broker.doors.renew_all(merged)
    broker.dynamic.rebase(merged)


def reloaded(old: BrokerConfig, new: BrokerConfig) -> BrokerConfig:
    """`old` with what `new` changes, except settings that need a restart. Raises InvalidConfigurationError."""
    if new.cluster_token is None and old.cluster_token is not None:
        raise InvalidConfigurationError("cluster_token must stay set while ports are open, got none; restart instead")
    return _merged(old, new, BROKER_KEYS)


def reload_proxy(proxy: Proxy, config: ProxyConfig) -> None:
    """As reload_broker(), for a proxy."""
    merged = _merged(proxy.limits.base, config, PROXY_KEYS)
    proxy.renew(merged)
    proxy.limits.rebase(merged)


def _merged(old: C, new: C, names: Collection[str]) -> C:
    _check(old, new)
    changed = [f.name for f in dataclasses.fields(new) if getattr(old, f.name) != getattr(new, f.name)]
    for name in changed:
        if name in names:
            log.info("configuration reloaded: %s has changed", name, extra={"setting": name})
        else:
            log.warning("%s has changed in the configuration: restart to apply it", name, extra={"setting": name})
    return dataclasses.replace(old, **{name: getattr(new, name) for name in changed if name in names})


def _check(old: Exposed, new: Exposed) -> None:
    if (old.tls_cert is None) != (new.tls_cert is None):
        raise InvalidConfigurationError("tls_cert must stay set, or stay unset, while ports are open; restart instead")
    if new.auth_token is None and old.auth_token is not None:
        raise InvalidConfigurationError("auth_token must stay set while ports are open, got none; restart instead")
