"""Tokens and certificates of Apache Pulsar's clients are those of every client: the same roles, rights and limits."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest

import engine
from engine.broker.rights.token_file import line_of
from tests.kit.certificates import Authority
from tests.pulsar.conftest import EARLIEST, WAIT_MS, connect, service_url

TOPIC = "persistent://public/default/orders"
RESOURCE = "public/default/persistent:orders"


def test_roles_of_tokens_have_their_rights_and_no_more(tmp_path: Path):
    roles = tmp_path / "roles"
    roles.write_text("".join(line_of(name, f"token-{name}") + "\n" for name in ("root", "writer", "reader")))
    config = {"roles_file": str(roles), "superusers": ["root"]}
    with engine.open(":memory:", listen="127.0.0.1:0", config=config) as served:
        served.admin.create_topic(TOPIC)
        served.admin.grant(RESOURCE, "writer", ["produce", "lookup"])
        served.admin.grant(RESOURCE, "reader", ["consume", "lookup"], subscription_prefix="mine-")
        url = service_url(served)
        writer = connect(url, authentication=pulsar.AuthenticationToken("token-writer"))
        reader = connect(url, authentication=pulsar.AuthenticationToken("token-reader"))
        writer.create_producer(TOPIC).send(b"v")
        consumer = reader.subscribe(TOPIC, "mine-s", initial_position=EARLIEST)
        assert consumer.receive(WAIT_MS).data() == b"v"
        shared = reader.subscribe(TOPIC, "mine-k", pulsar.ConsumerType.KeyShared, initial_position=EARLIEST)
        assert shared.receive(WAIT_MS).data() == b"v"
        with pytest.raises(pulsar.PulsarException):
            reader.create_producer(TOPIC)
        for kind in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.KeyShared):
            with pytest.raises(pulsar.PulsarException):
                reader.subscribe(TOPIC, "other", kind)
        with pytest.raises(pulsar.PulsarException):
            writer.subscribe(TOPIC, "mine-s2")
        with pytest.raises(pulsar.PulsarException):
            writer.create_producer("persistent://public/default/other")
        assert served.admin.list_topics("public/default") == [TOPIC]
        for client in (writer, reader):
            client.close()
        for token in ("wrong", ""):
            stranger = connect(url, 1, authentication=pulsar.AuthenticationToken(token) if token else None)
            with pytest.raises(pulsar.PulsarException):
                stranger.create_producer(TOPIC)
            stranger.close()


def test_tls_with_certificates_of_clients(tmp_path: Path):
    authority = Authority(tmp_path)
    server = authority.certify("127.0.0.1", "localhost", name="server")
    known = authority.certify("client", subject="writer", name="client")
    config = {
        "tls_cert": server.cert,
        "tls_key": server.key,
        "tls_client_ca": authority.file,
        "superusers": ["writer"],
    }
    with engine.open(":memory:", listen="127.0.0.1:0", config=config) as served:
        url = service_url(served).replace("pulsar://", "pulsar+ssl://")
        trust = {"tls_trust_certs_file_path": authority.file, "tls_validate_hostname": True}
        client = connect(url, authentication=pulsar.AuthenticationTLS(known.cert, known.key), **trust)
        consumer = client.subscribe(TOPIC, "s", initial_position=EARLIEST)
        client.create_producer(TOPIC).send(b"over TLS")
        assert consumer.receive(WAIT_MS).data() == b"over TLS"
        client.close()
        stranger = connect(url, 1, **trust)
        with pytest.raises(pulsar.PulsarException):
            stranger.create_producer(TOPIC)
        stranger.close()
