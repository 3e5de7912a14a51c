"""Checks of a configuration: what a broker accepts, and what would be wrong in production."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.broker.settings.config import BrokerConfig, given_values
from engine.broker.settings.file import read_section
from engine.cli.doctor.certificates import certificate
from engine.cli.doctor.finding import Finding, State, good, graded, problem, warning
from engine.client.base.endpoint import is_loopback, parse_url
from engine.errors import InvalidConfigurationError

TOKEN_LEAST = 16  # characters


def configuration(path: str | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Of a file, with the environment's variables, as `engine serve` reads them."""
    try:
        config = BrokerConfig.load(path, environment=environment)
    except InvalidConfigurationError as e:
        yield problem("configuration", str(e), "Correct the key that the error names; a broker does not start with it.")
        return
    yield good("configuration", f"{path or 'the environment'} is valid")
    yield from _access(config)
    yield from _secrets(path, environment)
    yield from _loss(config)
    yield from _network(config)
    for key, cert in (("tls", config.tls_cert), ("cluster_tls", config.cluster_tls_cert)):
        if cert is not None:
            yield from certificate(f"configuration.{key}", cert, getattr(config, f"{key}_key"))


def _access(config: BrokerConfig) -> Iterator[Finding]:
    if config.insecure:
        yield problem(
            "configuration.insecure",
            "insecure = true: other machines are served without a token",
            "Remove insecure, and set auth_token_file.",
        )
    if not config.authenticates:
        remedy = "Set auth_token_file to a file made by openssl rand -base64 32, or roles_file."
        yield warning("configuration.auth_token", "none: every program that reaches a port may do everything", remedy)
        return
    if config.auth_token is not None and len(config.auth_token) < TOKEN_LEAST:
        found = f"auth_token has {len(config.auth_token)} characters"
        yield problem("configuration.auth_token", found, "Make a longer one: openssl rand -base64 32.")
    if not config.has_roles:
        found = "one token for all clients: each may do everything, and none can be told from another"
        yield warning("configuration.roles", found, "Give each program a role of its own: roles_file, or jwt_keys.")
    if config.cluster_token is None:
        found = "brokers have no token of their own: a client with auth_token could speak as a broker"
        yield warning("configuration.cluster_token", found, "Set cluster_token_file to a second token for the brokers.")
    if config.tls_cert is None and not _loopback(config.service_url):
        found = "no TLS: the token and all messages can be read on the network"
        yield warning("configuration.tls", found, "Set tls_cert and tls_key, or keep both ports on 127.0.0.1.")


def _secrets(path: str | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Where the tokens and keys are, and whether other users may read them."""
    if path is not None and {"auth_token", "authToken", "cluster_token", "clusterToken"} & set(_keys(path)):
        yield warning("configuration.secrets", f"a token is in {path} itself", "Use auth_token_file, of mode 0600.")
    given = given_file_names(path, environment)
    for key, name in given.items():
        try:
            mode = stat.S_IMODE(os.stat(name).st_mode)
        except OSError:
            continue  # reported as invalid
        if mode & (stat.S_IROTH | stat.S_IWOTH):
            found = f"{key} {name} has mode {mode:04o}: every user of the machine may read it"
            yield problem("configuration.secrets", found, f"Run chmod 600 {name}.")


def given_file_names(path: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Files with secrets by their keys."""
    values: dict[str, Any] = dict(_keys(path)) if path is not None else {}
    for key in ("auth_token_file", "cluster_token_file"):
        values[key] = environment.get(f"ENGINE_{key.upper()}", values.get(key))
    loaded = given_values(path, environment, {})
    for key in ("tls_key", "cluster_tls_key"):
        values[key] = loaded.get(key)
    names = ("auth_token_file", "cluster_token_file", "tls_key", "cluster_tls_key")
    return {key: str(values[key]) for key in names if values.get(key)}


def _keys(path: str) -> dict[str, Any]:
    return read_section(Path(path), "broker")


def _loss(config: BrokerConfig) -> Iterator[Finding]:
    if config.durability not in ("fsync", "object"):
        lost = "a crash of the machine" if config.durability == "os" else f"the last {config.sync_interval_ms} ms"
        found = f"durability = {config.durability}: acknowledged messages may be lost ({lost})"
        yield warning("configuration.durability", found, "Set durability = fsync, and another one for single topics.")
    if config.retention_time is None and config.retention_size is None:
        found = "no retention: messages are never deleted, until the disk is full"
        yield warning("configuration.retention", found, "Set retention_time or retention_size.")
    elif config.retention_time == 0:
        found = "retention_time = 0: what is acknowledged, or has no subscription, is deleted at once"
        yield warning("configuration.retention", found, "Set retention_time to how long messages may be read again.")
    else:
        yield good("configuration.retention", "messages are deleted after a time, or above a size")


def _network(config: BrokerConfig) -> Iterator[Finding]:
    if config.service_url is not None and _loopback(config.service_url) and config.authenticates:
        found = f"clients are sent to {config.service_url}, which other machines cannot reach"
        yield warning(
            "configuration.service_url", found, "Set service_url to the name by which clients reach the broker."
        )
    if "*" in config.admin_hosts:
        found = "admin_hosts = *: any page in a browser may reach the admin API by a name of its own"
        yield warning("configuration.admin_hosts", found, "List the names under which the admin API is called.")
    state = State(config.keep_alive == 0)
    found = (
        "keep_alive = 0: lost peers are never dropped" if state else f"peers are pinged after {config.keep_alive:g} s"
    )
    yield graded("configuration.keep_alive", state, found, "Set keep_alive = 30.")


def _loopback(url: str | None) -> bool:
    """Whether only this machine reaches it; without an address it is not known, and taken for so."""
    if url is None:
        return True
    return is_loopback(parse_url(url)[0])
