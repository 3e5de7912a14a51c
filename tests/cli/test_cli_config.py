"""`engine config`: files are checked, and the schemas that editors check by are those of the code."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from engine.broker.settings.config import BrokerConfig
from engine.cli.config import PROXY_SCHEMA, SCHEMA
from engine.cli.main import cli
from engine.errors import InvalidConfigurationError
from engine.proxy.config import ProxyConfig
from tests.kit.programs import ROOT


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def run(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["config", *map(str, words)])
    return done.exit_code, done.output


def refused(file: Path, *options: str) -> str:
    """What `engine config check` says against it: an error, of which the program prints the text, and exits with 1."""
    done = CliRunner().invoke(cli, ["config", "check", str(file), *options])
    assert isinstance(done.exception, InvalidConfigurationError), done.output
    return str(done.exception)


def test_the_schema_is_that_of_the_code():
    spec = importlib.util.spec_from_file_location("generate_schema", ROOT / "tools" / "generate_schema.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for file, made in ((SCHEMA, tool.schema()), (PROXY_SCHEMA, tool.proxy_schema())):
        assert file.read_text() == tool.text(made), "run: python tools/generate_schema.py"


def test_it_is_printed():
    assert run("schema") == (0, SCHEMA.read_text())
    assert run("schema", "--proxy") == (0, PROXY_SCHEMA.read_text())


def test_every_setting_has_its_meaning_and_its_default(validator: Any):
    known = validator.schema["properties"]
    config = BrokerConfig()
    for key, facts in known.items():
        assert facts["description"], key
        if "default" in facts:
            default = getattr(config, key)
            assert facts["default"] == (list(default) if isinstance(default, tuple) else default)


def test_the_file_of_the_unit_is_valid(validator: Any):
    text = (ROOT / "docs" / "deploy" / "engine.toml").read_text()
    assert text.startswith("#:schema ")
    validator.validate(tomllib.loads(text))


GOOD = [
    "segments = 4\ndurability = 'os'\n[broker]\nentryBuckets = 16\nretention_time = 10.5\n",
    "retention_time = '7d'\nlog_file_size = '1 GiB'\nbalance_guard = '25%'\nkeep_alive = 0\n",
    "scalableTopicSplitMsgRateInThreshold = 20000\nmaxConnections = 7\n",
    "superusers = ['ops']\nadmin_hosts = 'a.example.org, b.example.org'\n",
    "[serve]\nlisten = '127.0.0.1:0'\nadmin = 'none'\nprocesses = 'auto'\nlog_format = 'json'\none_port = false\n",
]
BAD = [
    "segmentz = 1\n",
    "segments = 0\n",
    "segments = true\n",
    "segments = 1.5\n",
    "durability = 'maybe'\n",
    "keep_alive = -1\n",
    "keep_alive = 'soon'\n",
    "retention_time = '5MB'\n",
    "log_file_size = 1\n",
    "balance_guard = 11\n",
    "key_hash = 'md5'\n",
    "insecure = 'no'\n",
    "superusers = [1]\n",
    "[broker]\nsegments = 0\n",
    "[serve]\nlog_format = 'xml'\n",
    "[serve]\nsegments = 1\n",
    "[serve]\nobjects = 's3://b/p'\n",
    "broker = 1\n",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_is_good_is_good_for_both(validator: Any, tmp_path: Path, text: str):
    file = tmp_path / "engine.toml"
    file.write_text(text)
    validator.validate(tomllib.loads(text))
    assert run("check", file) == (0, f"{file} is valid\n")


@pytest.mark.parametrize("text", BAD)
def test_what_is_bad_is_bad_for_both(validator: Any, tmp_path: Path, text: str):
    file = tmp_path / "engine.toml"
    file.write_text(text)
    assert not validator.is_valid(tomllib.loads(text))
    assert "\n" not in refused(file)


BROKERS = "brokers = ['engine://10.0.0.1:6650', 'engine://10.0.0.2']\n"
GOOD_OF_A_PROXY = [
    BROKERS,
    "[proxy]\n" + BROKERS + "allow = ['engine://b-*:6650']\nadmin_hosts = 'a.example.org, b.example.org'\n",
    BROKERS + "auth_token = 'a'\nbroker_token = 'b'\ninsecure = true\ntls_client_role = 'san'\n",
    BROKERS + "connections_max = 5\nhandshake_timeout = 0.5\ntopicListHeapQueueMax = 0\n[proxy]\nclusterName = 'c'\n",
    BROKERS + "maxTopicListInFlightHeapMemSizeMB = 100\nadmin_hosts = ['*']\n",
]
BAD_OF_A_PROXY = [
    "brokers = []\n",
    "brokers = 'engine://10.0.0.1'\n",
    *(
        BROKERS + wrong
        for wrong in (
            "brokerz = []\n",
            "segments = 1\n",
            "allow = 'engine://b'\n",
            "allow = [1]\n",
            "connections_max = 0\n",
            "connections_max = 1_000_001\n",
            "connections_max = true\n",
            "connections_max = 1.5\n",
            "handshake_timeout = 0\n",
            "handshake_timeout = '5m'\n",
            "topic_list_heap_max = 1000\n",
            "topic_list_direct_timeout = 0.0001\n",
            "topic_list_heap_queue_max = -1\n",
            "insecure = 'no'\n",
            "tls_client_role = 'dns'\n",
            "[proxy]\nconnections_max = 0\n",
        )
    ),
    "proxy = 1\n",
]


@pytest.fixture(scope="module")
def of_a_proxy() -> Any:
    schema = json.loads(PROXY_SCHEMA.read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


@pytest.mark.parametrize("text", GOOD_OF_A_PROXY)
def test_what_is_good_of_a_proxy_is_good_for_both(of_a_proxy: Any, tmp_path: Path, text: str):
    file = tmp_path / "proxy.toml"
    file.write_text(text)
    of_a_proxy.validate(tomllib.loads(text))
    assert run("check", "--proxy", file) == (0, f"{file} is valid\n")


@pytest.mark.parametrize("text", BAD_OF_A_PROXY)
def test_what_is_bad_of_a_proxy_is_bad_for_both(of_a_proxy: Any, tmp_path: Path, text: str):
    file = tmp_path / "proxy.toml"
    file.write_text(text)
    assert not of_a_proxy.is_valid(tomllib.loads(text))
    assert "\n" not in refused(file, "--proxy")


def test_every_setting_of_a_proxy_has_its_meaning_and_its_default(of_a_proxy: Any):
    config = ProxyConfig(brokers=("engine://10.0.0.1:6650",))
    known = of_a_proxy.schema["properties"]
    assert known.keys() == {*dataclasses.asdict(config), "auth_token_file", "broker_token_file", "proxy"}
    for key, facts in known.items():
        assert facts["description"], key
        assert "default" not in facts or facts["default"] == getattr(config, key)
    assert known["connections_max"]["maximum"] == 1_000_000
    assert known["handshake_timeout"]["description"].endswith("(seconds)")


def test_what_is_no_file_or_no_toml_is_said(tmp_path: Path):
    missing, broken = tmp_path / "none.toml", tmp_path / "broken.toml"
    broken.write_text("segments = \n")
    for file, said in ((missing, "cannot be read"), (broken, "is not TOML")):
        assert said in refused(file)


@pytest.mark.parametrize("pair", ["tls_cert = '/x.pem'\n", "jwt_audience = 'a'\n"])
def test_rules_that_join_settings_are_those_of_the_code_alone(validator: Any, tmp_path: Path, pair: str):
    (tmp_path / "engine.toml").write_text(pair)
    assert validator.is_valid(tomllib.loads(pair))
    with pytest.raises(InvalidConfigurationError):
        BrokerConfig.load(tmp_path / "engine.toml")


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path):
    file = tmp_path / "engine.toml"
    file.write_text("segments = 0\nkeep_alive = -1\n[serve]\nlistn = 'a'\n")
    said = refused(file)
    assert re.fullmatch(
        r"segments must be .*, got 0; keep_alive must be .*, got -1; listn is no key of \[serve\] in .*\.toml\. Did.*",
        said,
    )
    file.write_text("segmentz = 0\nkeepAliv = 1\n")
    assert refused(file) == (
        f"segmentz is no key in {file}; did you mean segments?; keepAliv is no key in {file}; did you mean keep_alive?"
    )
    file.write_text("=\n")
    assert refused(file).count("is not TOML") == 1
