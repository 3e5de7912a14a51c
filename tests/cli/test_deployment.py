"""The files in docs/deploy: what they say exists, and they agree with each other."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.broker.settings.config import _FIELDS, BrokerConfig
from engine.cli.main import cli
from engine.cli.serve import command as serve
from tests.kit.etcd import binaries
from tests.kit.optional import lacking
from tests.kit.pages import commands
from tests.kit.s3_server import binary
from tests.tidy.source_tree import ROOT

DEPLOY = ROOT / "docs" / "deploy"
PAGE = ROOT / "docs" / "deployment.md"
PORTS = {"engine": 6650, "admin": 8080}
OPTION_VARIABLES = {str(parameter.envvar) for parameter in serve.params if getattr(parameter, "envvar", None)}
STORE_VARIABLES = {"AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
SETTING_VARIABLES = {f"ENGINE_{name.upper()}" for name in _FIELDS}


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile, with its continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [(line.split()[0], line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


def image_environment() -> dict[str, str]:
    (text,) = [rest for word, rest in instructions() if word == "ENV"]
    return dict(pair.split("=", 1) for pair in shlex.split(text))


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def manifests() -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def unit() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "engine.service")
    return parser


def unit_environment() -> dict[str, str]:
    lines = (DEPLOY / "engine.service").read_text().splitlines()
    found = [line.removeprefix("Environment=") for line in lines if line.startswith("Environment=")]
    return dict(pair.split("=", 1) for pair in found)


def served(words: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the program's own parser makes of a command line in an environment."""
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    assert words[0] == "serve"
    return serve.make_context("serve", words[1:]).params


def check_variables(environment: dict[str, str], tmp_path: Path) -> None:
    """All are options or settings, and the settings are good ones. Files are stood in for, as `%d` and secrets are."""
    unknown = environment.keys() - OPTION_VARIABLES - SETTING_VARIABLES - STORE_VARIABLES
    assert not unknown, f"no setting and no option: {sorted(unknown)}"
    given = {name: text for name, text in environment.items() if name in SETTING_VARIABLES}
    for name in given:
        if name.endswith("_FILE"):
            (tmp_path / "token").write_text("token\n")
            given[name] = str(tmp_path / "token")
    BrokerConfig.load(environment=given)


def load_toml(text: str, tmp_path: Path) -> BrokerConfig:
    """The settings of a file, with a token where it names one."""
    (tmp_path / "token").write_text("token\n")
    file = tmp_path / "checked.toml"
    file.write_text(re.sub(r'(?m)^(auth_token_file = )".*"', rf'\1"{tmp_path / "token"}"', text))
    return BrokerConfig.load(file)


# -- the image -------------------------------------------------------------------------------------------------------


def test_the_image_serves_as_another_user_than_root_on_the_ports_that_it_names(monkeypatch: pytest.MonkeyPatch):
    said = instructions()
    words = dict(said)
    assert [word for word, _ in said].count("FROM") == 2
    assert words["USER"] == "10001:10001"
    assert words["STOPSIGNAL"] == "SIGTERM"
    assert {int(port) for port in words["EXPOSE"].split()} == set(PORTS.values())
    assert json.loads(words["ENTRYPOINT"]) == ["engine"]
    params = served(json.loads(words["CMD"]), image_environment(), monkeypatch)
    assert (params["listen"][1], params["admin"][1]) == (PORTS["engine"], PORTS["admin"])
    assert params["data"] == words["VOLUME"] == "/data"
    check = json.loads(words["HEALTHCHECK"].split("CMD", 1)[1])
    assert f"http://127.0.0.1:{PORTS['admin']}/health" in check[-1]
    compile(check[-1], "HEALTHCHECK", "exec")


def test_the_image_is_built_of_files_and_extras_that_exist():
    for _, rest in [one for one in instructions() if one[0] == "COPY" and not one[1].startswith("--from")]:
        *sources, _ = rest.split()
        missing = [source for source in sources if not (ROOT / source).exists()]
        assert not missing
    (default, *stages) = [rest for word, rest in instructions() if word == "ARG" and rest.startswith("EXTRAS")]
    assert stages == ["EXTRAS", "EXTRAS"]  # else it is empty there
    named = re.findall(r"--build-arg EXTRAS=([\w,]+)", (ROOT / "docs" / "deployment.md").read_text())
    declared = re.findall(r"(?m)^(\w+) = \[", (ROOT / "pyproject.toml").read_text())
    assert named
    for extras in (default.removeprefix("EXTRAS="), *named):
        assert set(extras.split(",")) <= set(declared)
    first, second = (i for i, (word, _) in enumerate(instructions()) if word == "FROM")
    compilers = [i for i, (_, rest) in enumerate(instructions()) if "build-essential" in rest]
    assert all(first < i < second for i in compilers)


def test_one_image_name_and_version_is_everywhere():
    fallback = re.search(r'(?m)^fallback_version = "(.*)\.dev0"', (ROOT / "pyproject.toml").read_text())
    assert fallback is not None
    name = f"engine:{fallback[1]}"  # of the release that is next
    images = {s["image"] for s in compose()["services"].values()}
    images |= {c["image"] for c in manifests()["StatefulSet"]["spec"]["template"]["spec"]["containers"]}
    assert {image for image in images if image.startswith("engine")} == {name}
    for text in ((DEPLOY / "Dockerfile").read_text(), PAGE.read_text()):
        assert set(re.findall(r"\bengine:\d[\d.]*\d", text)) == {name}


# -- Docker Compose --------------------------------------------------------------------------------------------------


def test_the_brokers_of_compose_are_three_that_know_their_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    services = compose()["services"]
    brokers = {name: service for name, service in services.items() if name.startswith("broker-")}
    assert len(brokers) == 3
    for name, service in brokers.items():
        environment = service["environment"]
        check_variables(environment, tmp_path)
        assert environment["ENGINE_SERVICE_URL"] == f"engine://{name}:{PORTS['engine']}"
        assert environment["ENGINE_ADMIN_URL"] == f"http://{name}:{PORTS['admin']}"
        params = served(service["command"], {**image_environment(), **environment}, monkeypatch)
        assert params["metadata"].startswith("etcd://etcd:2379/")
        assert "etcd" in services
        assert set(service["secrets"]) == set(compose()["secrets"])
        drain = BrokerConfig.load(
            environment={"ENGINE_DRAIN_TIMEOUT": environment["ENGINE_DRAIN_TIMEOUT"]}
        ).drain_timeout
        assert int(service["stop_grace_period"].removesuffix("s")) > drain
        assert environment["ENGINE_AUTH_TOKEN_FILE"] == f"/run/secrets/{service['secrets'][0]}"
    assert {v.split(":")[0] for s in services.values() for v in s.get("volumes", [])} == set(compose()["volumes"])


def test_the_brokers_of_compose_have_a_bucket_and_its_keys():
    found = compose()
    (identity,) = json.loads(found["configs"]["s3"]["content"])["identities"]
    (keys,) = identity["credentials"]
    store = next(service for name, service in found["services"].items() if name == "seaweedfs")
    made = re.search(r"s3.bucket.create -name (\S+)'", found["services"]["bucket"]["entrypoint"][-1])
    assert made is not None
    mounted = {one["source"]: one["target"] for one in store["configs"]}
    assert f"-s3.config={mounted['s3']}" in store["command"]
    for name, service in found["services"].items():
        if name.startswith("broker-"):
            environment = service["environment"]
            assert environment["AWS_ACCESS_KEY_ID"] == keys["accessKey"]
            assert environment["AWS_SECRET_ACCESS_KEY"] == keys["secretKey"]
            assert environment["AWS_ENDPOINT_URL"] == "http://seaweedfs:8333"
            at = service["command"].index("--objects")
            assert service["command"][at + 1].startswith(f"s3://{made[1]}/")
            assert service["depends_on"]["bucket"]["condition"] == "service_completed_successfully"


def test_the_proxy_of_compose_knows_the_brokers_and_is_the_only_door(tmp_path: Path):
    services = compose()["services"]
    proxy = cli.get_command(cli.make_context("engine", ["proxy"]), "proxy")
    assert proxy is not None
    (tmp_path / "token").write_text("token\n")
    words = [word.replace("/run/secrets/token", str(tmp_path / "token")) for word in services["proxy"]["command"]]
    assert words[0] == "proxy"
    params = proxy.make_context("proxy", words[1:]).params
    assert set(params["brokers"]) == {
        s["environment"]["ENGINE_SERVICE_URL"] for n, s in services.items() if n.startswith("broker-")
    }
    assert params["listen"][1] == PORTS["engine"]
    published = {name: s["ports"] for name, s in services.items() if "ports" in s}
    assert published.keys() == {"proxy"}
    assert all(port.startswith("127.0.0.1:") for port in published["proxy"])


# -- Kubernetes ------------------------------------------------------------------------------------------------------


def broker_container() -> dict[str, Any]:
    (container,) = manifests()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_the_settings_in_the_config_map_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    container, text = broker_container(), manifests()["ConfigMap"]["data"]["engine.toml"]
    config = load_toml(text, tmp_path)
    monkeypatch.setenv("POD_NAME", "engine-0")
    variables = {
        one["name"]: one["value"].replace("$(POD_NAME)", "engine-0") for one in container["env"] if "value" in one
    }
    check_variables(variables, tmp_path)
    service = manifests()["Service"]["metadata"]["name"]
    assert variables["ENGINE_SERVICE_URL"] == f"engine://engine-0.{service}:{PORTS['engine']}"
    assert variables["ENGINE_ADMIN_URL"] == f"http://engine-0.{service}:{PORTS['admin']}"
    assert container["args"][:2] == ["serve", "--config"]
    words = ["serve", "--config", str(tmp_path / "checked.toml"), *container["args"][3:]]
    params = served(words, {**image_environment(), **variables}, monkeypatch)
    assert params["metadata"] == "etcd://etcd:2379/engine"
    template = manifests()["StatefulSet"]["spec"]["template"]["spec"]
    assert template["terminationGracePeriodSeconds"] > config.drain_timeout
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert container["args"][2] in mounts
    token = re.search(r'(?m)^auth_token_file = "(.*)/token"', text)
    assert token is not None
    assert token[1] in mounts
    assert params["data"] in mounts
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in template["volumes"]} | {
        one["metadata"]["name"] for one in manifests()["StatefulSet"]["spec"]["volumeClaimTemplates"]
    }


def test_the_probes_ask_what_the_admin_port_answers():
    container = broker_container()
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == PORTS
    assert {p["name"]: p["port"] for p in manifests()["Service"]["spec"]["ports"]} == PORTS
    asked = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {name: (get["path"], get["port"]) for name, get in asked.items()} == {
        "startupProbe": ("/ready", "admin"),
        "livenessProbe": ("/health", "admin"),
        "readinessProbe": ("/ready", "admin"),
    }


def test_the_manifests_mean_the_same_pods():
    found = manifests()
    assert found.keys() == {"ConfigMap", "Service", "PodDisruptionBudget", "StatefulSet"}
    labels = found["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert found["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    assert found["StatefulSet"]["spec"]["serviceName"] == found["Service"]["metadata"]["name"]
    assert found["Service"]["spec"]["clusterIP"] == "None"
    template = found["StatefulSet"]["spec"]["template"]["spec"]
    volumes = {one["name"]: one for one in template["volumes"]}
    assert volumes["config"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    user = dict(instructions())["USER"].split(":")
    security = template["securityContext"]
    assert [str(security["runAsUser"]), str(security["runAsGroup"])] == user
    assert security["runAsNonRoot"]


# -- systemd ---------------------------------------------------------------------------------------------------------


def test_the_unit_starts_the_program_with_options_and_settings_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    service = unit()["Service"]
    program, *words = service["ExecStart"].split()
    assert program == "/opt/engine/bin/engine"
    assert words == ["serve", "--config", "/etc/engine/engine.toml"]
    environment = unit_environment()
    check_variables(environment, tmp_path)
    config = load_toml((DEPLOY / "engine.toml").read_text(), tmp_path)
    params = served(["serve", "--config", str(DEPLOY / "engine.toml")], environment, monkeypatch)
    assert params["data"] == f"/var/lib/{service['StateDirectory']}"
    assert (params["listen"][1], params["admin"][1]) == (PORTS["engine"], PORTS["admin"])
    assert params["metadata"].startswith("etcds://")
    assert service["Type"] == "notify"
    assert int(service["TimeoutStopSec"].removesuffix("s")) > config.drain_timeout
    assert environment["ENGINE_AUTH_TOKEN_FILE"] == f"%d/{service['LoadCredential'].split(':')[0]}"


def test_the_unit_may_do_little():
    service = unit()["Service"]
    assert service["User"] != "root"
    hardened = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes"}
    assert {name: service[name] for name in hardened} == hardened
    assert service["CapabilityBoundingSet"] == ""


def systemd_analyze() -> str:
    """The machine's program, or the one that `make test` has unpacked."""
    path = shutil.which("systemd-analyze") or shutil.which("systemd-analyze", path=f"{sys.prefix}/systemd/bin")
    return path or lacking("systemd-analyze", "apt-get install systemd")


def verified(folder: Path, *units: str) -> str:
    """What systemd has to say against unit files of a folder."""
    command = [systemd_analyze(), "verify", "--man=no", *(str(folder / name) for name in units)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def test_systemd_takes_every_line_of_the_unit(tmp_path: Path):
    text = (DEPLOY / "engine.service").read_text()
    (tmp_path / "engine.service").write_text(text.replace("/opt/engine/bin/engine", sys.executable))
    assert verified(tmp_path, "engine.service") == ""
    (tmp_path / "wrong.service").write_text((tmp_path / "engine.service").read_text().replace("UMask", "UMaks"))
    assert "UMaks" in verified(tmp_path, "wrong.service")


def test_systemd_calls_the_unit_as_hardened_as_the_page_says(tmp_path: Path):
    (said,) = re.findall(r"gives the unit an exposure of (\d+\.\d)\.", PAGE.read_text())
    command = [systemd_analyze(), "security", "--offline=yes", "--no-pager"]
    judged = subprocess.run([*command, DEPLOY / "engine.service"], capture_output=True, text=True, timeout=60)
    assert f"Overall exposure level for engine.service: {said} OK" in judged.stdout, judged.stderr


def test_systemd_takes_the_units_of_the_page_of_backups(tmp_path: Path):
    (text,) = re.findall(r"```ini\n(.*?)```", (ROOT / "docs" / "backup.md").read_text(), re.DOTALL)
    names = []
    for path, unit_text in re.findall(r"# (/etc/systemd/system/\S+)\n(.*?)(?=\n# /etc|\Z)", text, re.DOTALL):
        names.append(Path(path).name)
        (tmp_path / names[-1]).write_text(unit_text.replace("/opt/engine/bin/engine", sys.executable))
    assert names == ["engine-backup.service", "engine-backup.timer"]
    assert verified(tmp_path, *names) == ""


# -- the page --------------------------------------------------------------------------------------------------------


def test_the_page_names_files_that_exist_and_commands_that_parse(tmp_path: Path):
    page = PAGE.read_text()
    assert {path.name for path in DEPLOY.iterdir()} == set(re.findall(r"\]\(deploy/([\w.]+)\)", page))
    context = cli.make_context("engine", ["topics"])
    typed = [line for block in commands(PAGE) for line in block if line.startswith("engine ")]
    assert typed
    for line in typed:
        _, group, verb, *words = shlex.split(line)
        found = cli.get_command(context, group)
        assert found is not None
        (tmp_path / "token").write_text("token\n")
        words = [str(tmp_path / "token") if word == "docs/deploy/token" else word for word in words]
        found.get_command(context, verb).make_context(verb, words)  # type: ignore[attr-defined]


def test_the_servers_beside_the_brokers_have_the_options_that_compose_gives_them():
    services = compose()["services"]
    etcd = subprocess.run([binaries() / "etcd", "--help"], capture_output=True, text=True, timeout=60, check=False)
    weed = subprocess.run([binary(), "help", "server"], capture_output=True, text=True, timeout=60, check=False)
    helps = {"etcd": etcd.stdout + etcd.stderr, "seaweedfs": weed.stdout + weed.stderr}
    for name, text in helps.items():
        _, *options = services[name]["command"]
        for option in options:
            flag = option.split("=")[0].lstrip("-")
            assert re.search(rf"(?m)^\s+-{{1,2}}{re.escape(flag)}\b", text), f"{name} has no option {flag}"
