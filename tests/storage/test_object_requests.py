"""Requests to an object store: bounds, pace, counters, repetitions; what URLs and the environment say of a store."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from engine.errors import (
    AlreadyClosedError,
    AuthorizationError,
    InvalidArgumentError,
    InvalidConfigurationError,
    StorageError,
    UnknownOutcomeError,
    UnsupportedError,
)
from engine.storage.objects.location import Location
from engine.storage.objects.ports import ObjectExistsError, ObjectMissingError
from engine.storage.objects.probe import probe, put_s
from engine.storage.objects.profiles import profile_of
from engine.storage.objects.remote import RemoteObjectStore
from engine.storage.objects.requests import RequestLimits, Requests, TransientError
from engine.testing.loop import run_virtual
from engine.testing.objects import FaultyObjectStore
from tests.kit.optional import lacking
from tests.kit.programs import environment

SECRET = "very-secret-indeed"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_REGION": "us-east-1",
}


class Calls:
    """Scripted answers, and when each request was sent."""

    def __init__(self, *answers: Exception | str, lasts: float = 0.0) -> None:
        self.answers = list(answers)
        self.sent: list[float] = []
        self.running = self.most = 0
        self._lasts = lasts

    async def __call__(self) -> str:
        self.sent.append(asyncio.get_running_loop().time())
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self._lasts)
        finally:
            self.running -= 1
        answer = self.answers.pop(0) if self.answers else "done"
        if isinstance(answer, Exception):
            raise answer
        return answer


def requests(**limits: float) -> Requests:
    return Requests(RequestLimits(**limits), random.Random(1))


def test_a_request_that_may_be_repeated_is_until_it_succeeds():
    async def body() -> None:
        sent, calls = requests(), Calls(TransientError("500"), TransientError("500"), "found")
        assert await sent.repeated("get", "GET a", calls) == "found"
        assert len(calls.sent) == 3
        assert calls.sent[2] - calls.sent[1] > calls.sent[1] - calls.sent[0] > 0
        now = sent.statistics()
        assert (now.requests["get"], now.failures["get"], now.in_flight) == (3, 2, 0)

    run_virtual(body())


def test_after_the_last_attempt_the_error_says_what_the_store_said():
    async def body() -> None:
        calls = Calls(*[TransientError("the store answered 500")] * 3)
        with pytest.raises(StorageError, match="GET a: the store answered 500, in 3 attempts"):
            await requests(attempts_max=3).repeated("get", "GET a", calls)

    run_virtual(body())


def test_a_conditional_put_is_sent_once_and_its_outcome_unknown_when_it_fails_or_hangs():
    async def body() -> None:
        for calls in (Calls(TransientError("500")), Calls(lasts=100.0)):
            with pytest.raises(UnknownOutcomeError, match="read it back"):
                await requests(timeout_s=2.0).once("put", "PUT a", calls)
            assert len(calls.sent) == 1

    run_virtual(body())


def test_requests_in_flight_are_bounded():
    async def body() -> None:
        sent, calls = requests(in_flight_max=4), Calls(lasts=1.0)
        await asyncio.gather(*(sent.once("put", "PUT", calls) for _ in range(20)))
        assert calls.most == 4
        assert sent.statistics().requests["put"] == 20

    run_virtual(body())


def test_requests_per_second_are_bounded():
    async def body() -> None:
        sent, calls = requests(per_s_max=10.0, in_flight_max=1000), Calls()
        await asyncio.gather(*(sent.once("put", "PUT", calls) for _ in range(100)))
        assert 9.5 < calls.sent[-1] - calls.sent[0] <= 10.0

    run_virtual(body())


def test_a_call_of_several_requests_waits_for_all_and_lets_others_in_between():
    async def body() -> None:
        sent, upload, other = requests(per_s_max=10.0), Calls(), Calls()
        loop = asyncio.get_running_loop()
        began = loop.time()
        uploading = asyncio.create_task(sent.once("multipart", "PUT", upload, bounded=False, requests=30))
        await asyncio.sleep(1.0)
        await sent.once("put", "PUT", other)
        assert other.sent[0] - began < 1.3, "it waits for its own turn alone"
        await uploading
        assert 2.7 < upload.sent[0] - began < 3.1
        assert sent.statistics().requests["multipart"] == 30

    run_virtual(body())


def test_a_store_that_answers_slow_down_is_asked_half_as_often_and_later_as_before():
    async def body() -> None:
        sent = requests(per_s_max=100.0)
        for _ in range(5):  # within a second they count once
            with pytest.raises(UnknownOutcomeError):
                await sent.once("put", "PUT", Calls(TransientError("503", slow=True)))
        assert (sent.statistics().per_s, sent.statistics().slow_downs) == (50.0, 5)
        await asyncio.gather(*(sent.once("put", "PUT", Calls()) for _ in range(600)))
        assert sent.statistics().per_s == 100.0

    run_virtual(body())


def test_after_close_nothing_is_sent():
    async def body() -> None:
        sent, calls = requests(), Calls()
        sent.close()
        with pytest.raises(AlreadyClosedError):
            await sent.once("put", "PUT", calls)
        assert not calls.sent

    run_virtual(body())


@pytest.mark.parametrize("limits", [{"in_flight_max": 0}, {"per_s_max": 0}, {"timeout_s": 0}, {"attempts_max": 0}])
def test_limits_are_checked(limits: dict[str, float]):
    with pytest.raises(InvalidArgumentError, match="must be"):
        RequestLimits(**limits)


@pytest.mark.parametrize(("url", "location"), [
    ("s3://bucket/a/b", ("s3", "bucket", "a/b")), ("s3://bucket", ("s3", "bucket", "")),
    ("gs://bucket/a/", ("gs", "bucket", "a")), ("az://container/x=1", ("az", "container", "x=1")),
])  # fmt: skip
def test_urls_name_a_bucket_and_a_prefix(url: str, location: tuple[str, str, str]):
    assert Location.parse(url) == location
    assert Location.parse(str(Location.parse(url))) == location


@pytest.mark.parametrize(("endpoint", "said", "unsigned"), [
    ("", "", "true"), ("https://s3.example", "", "true"), ("http://127.0.0.1:9000", "", "true"),
    ("http://localhost:9000", "", "true"), ("http://[::1]:9000", "", "true"), ("http://10.0.0.1:9000", "", None),
    ("http://127.0.0.1.example", "", None), ("http://s3.example", "true", "true"), ("", "false", "false"),
    ("http://[", "", None),
])  # fmt: skip
def test_bodies_are_not_hashed_where_nobody_else_has_them(endpoint: str, said: str, unsigned: str | None):
    variables = {"AWS_ENDPOINT_URL": endpoint, "AWS_UNSIGNED_PAYLOAD": said}
    assert Location.parse("s3://bucket").options(variables).get("aws_unsigned_payload") == unsigned
    assert "aws_unsigned_payload" not in Location.parse("gs://bucket").options(variables)


@pytest.mark.parametrize(("of_s3", "of_all", "used", "plain", "unsigned"), [
    ("http://10.0.0.1:9000", "https://aws.example", "http://10.0.0.1:9000", True, None),
    ("https://s3.example", "http://10.0.0.1:9000", "https://s3.example", False, "true"),
    ("http://127.0.0.1:9000", "", "http://127.0.0.1:9000", True, "true"),
    ("", "http://10.0.0.1:9000", "http://10.0.0.1:9000", True, None),
])  # fmt: skip
def test_the_endpoint_of_s3_alone_comes_before_that_of_all_services(
    of_s3: str, of_all: str, used: str, plain: bool, unsigned: str | None
):
    variables = {"AWS_ENDPOINT_URL_S3": of_s3, "AWS_ENDPOINT_URL": of_all}
    location = Location.parse("s3://bucket")
    options = location.options(variables)
    assert (options["aws_endpoint_url"], location.is_plain(variables)) == (used, plain)
    assert options.get("aws_unsigned_payload") == unsigned
    assert "aws_endpoint_url_s3" not in options
    assert not Location.parse("gs://bucket").is_plain(variables)


@pytest.mark.parametrize("url", [
    "", "bucket", "http://bucket/a", "s3://", "s3://b", "s3:///a", "s3://bucket/a?x=1", "s3://bucket/a#b",
    "s3://bucket/a/../b", "s3://bucket/a b", "s3://bucket//a//b", f"s3://key:{SECRET}@bucket/a", "s3://[bucket",
])  # fmt: skip
def test_other_urls_are_refused_and_secrets_in_them_not_repeated(url: str):
    with pytest.raises(InvalidArgumentError, match="must be") as found:
        Location.parse(url)
    assert SECRET not in str(found.value)


@pytest.mark.parametrize("url", ["s3://bucket/a", "gs://bucket/a", "az://container/a"])
def test_a_store_does_not_show_its_credentials(url: str):
    variables = {
        **ENVIRONMENT,
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ACCOUNT_KEY": "dmVyeS1zZWNyZXQ=",
    }
    store = RemoteObjectStore.open(url, variables, rng=random.Random(1))
    assert repr(store) == f"RemoteObjectStore({url!r})"


def test_a_store_that_cannot_be_opened_says_why():
    with pytest.raises(InvalidConfigurationError, match=r"s3://bucket cannot be opened: .*SecretAccessKey"):
        RemoteObjectStore.open("s3://bucket", {"AWS_ACCESS_KEY_ID": "key"}, rng=random.Random(1))


def test_without_the_library_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(
        UnsupportedError, match=r"s3://bucket needs obstore 0.12 or later: pip install 'engine\[cluster\]'"
    ):
        RemoteObjectStore.open("s3://bucket", ENVIRONMENT, rng=random.Random(1))


def test_a_profile_without_keys_needs_boto3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "boto3", None)
    (tmp_path / "config").write_text("[profile work]\nrole_arn = arn:aws:iam::1:role/broker\nsource_profile = base\n")
    (tmp_path / "credentials").write_text(PROFILES)  # a role comes before keys
    variables = {
        "AWS_PROFILE": "work",
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
    }
    with pytest.raises(InvalidConfigurationError, match=r"'work' of AWS has no keys .* needs boto3"):
        RemoteObjectStore.open("s3://bucket", variables, rng=random.Random(1))


PROFILES = f"""
[default]
aws_access_key_id = key-of-the-default
aws_secret_access_key = {SECRET}
[work]
aws_access_key_id = key-of-the-profile
aws_secret_access_key = {SECRET}%
aws_session_token = token=of=the=profile
"""
CONFIG = "[default]\nregion = eu-west-1\n[profile work]\nregion = eu-west-2\ns3 =\n  addressing_style = path\n"


@pytest.mark.parametrize(("variables", "key", "region"), [
    ({}, "key-of-the-default", "eu-west-1"),
    ({"AWS_PROFILE": "work"}, "key-of-the-profile", "eu-west-2"),
    ({"AWS_PROFILE": "work", "AWS_REGION": "us-east-1"}, "key-of-the-profile", None),
    ({"AWS_PROFILE": "work", "AWS_ACCESS_KEY_ID": "own"}, None, None),
    ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}, None, None),
    ({"AWS_DEFAULT_PROFILE": "work"}, "key-of-the-profile", "eu-west-2"),
    ({"AWS_PROFILE": "other"}, "", None),
])  # fmt: skip
def test_what_is_read_of_a_profile(variables: dict[str, str], key: str | None, region: str | None, tmp_path: Path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(PROFILES)
    (tmp_path / ".aws" / "config").write_text(CONFIG)
    found = profile_of({"HOME": str(tmp_path), **variables})
    assert (found is None) is (key is None)
    if found is not None:
        assert found.options.get("aws_access_key_id", "") == key
        assert found.options.get("aws_region") == region
    assert profile_of({"HOME": str(tmp_path / "none")}) is None


@pytest.mark.parametrize("how", ["role_arn = r", "sso_session = s", "credential_process = p", "sso_start_url = u"])
@pytest.mark.parametrize("name", ["default", "profile work"])
def test_a_profile_that_says_how_to_get_keys_is_not_passed_over(how: str, name: str, tmp_path: Path):
    """Old keys may lie in the other file; and the role of the instance would be another account."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(PROFILES)
    (tmp_path / ".aws" / "config").write_text(f"[{name}]\n{how}\n")
    variables = {} if name == "default" else {"AWS_PROFILE": "work"}
    found = profile_of({"HOME": str(tmp_path), **variables})
    assert found is not None
    assert not found.options


def test_keys_and_their_token_are_of_one_file(tmp_path: Path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(PROFILES)
    (tmp_path / ".aws" / "config").write_text("[default]\naws_session_token = of-other-keys\nregion = eu-west-1\n")
    found = profile_of({"HOME": str(tmp_path)})
    assert found is not None
    assert "aws_session_token" not in found.options


def test_a_left_token_of_the_environment_does_not_go_with_keys_of_a_profile(tmp_path: Path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(PROFILES)
    variables = {"HOME": str(tmp_path), "AWS_SESSION_TOKEN": "left-over"}
    store = RemoteObjectStore.open("s3://bucket", variables, rng=random.Random(1))
    assert store._store.config["access_key_id"] == "key-of-the-default"
    assert "left-over" not in str(store._store.config)


@pytest.mark.parametrize("home", ["file", "directory", "damaged"])
def test_files_that_no_profile_was_asked_of_stop_nothing(home: str, tmp_path: Path):
    if home == "file":
        (tmp_path / "home").write_text("")
    elif home == "directory":
        (tmp_path / "home" / ".aws" / "credentials").mkdir(parents=True)
    else:
        (tmp_path / "home" / ".aws").mkdir(parents=True)
        (tmp_path / "home" / ".aws" / "credentials").write_text("[work")
    assert profile_of({"HOME": str(tmp_path / "home")}) is None


@pytest.mark.parametrize(
    "text", [f"aws_secret_access_key = {SECRET}", f"[work]\n{SECRET}", f"[work\n{SECRET}", "\udcff"]
)
def test_a_file_that_has_no_profiles_is_named_and_nothing_of_it_is_shown(text: str, tmp_path: Path):
    file = tmp_path / "credentials"
    file.write_text(text, errors="surrogateescape")
    variables = {"AWS_PROFILE": "work", "AWS_SHARED_CREDENTIALS_FILE": str(file)}
    with pytest.raises(InvalidConfigurationError, match="credentials must be a file of AWS profiles") as found:
        RemoteObjectStore.open("s3://bucket", variables, rng=random.Random(1))
    assert SECRET not in str(found.value)
    assert found.value.__suppress_context__


class Amazon:
    """The metadata service of an instance, which has a role, and a store in one. `asked`: headers of requests to it."""

    ROLE: ClassVar = {
        "Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": "key-of-the-role", "SecretAccessKey": SECRET,
        "Token": "token-of-the-role", "LastUpdated": "2020-01-01T00:00:00Z", "Expiration": "2099-01-01T00:00:00Z",
    }  # fmt: skip
    NAMES = "/latest/meta-data/iam/security-credentials/"

    def __init__(self, **others: str) -> None:
        """`others`: variables of the process, which libraries read themselves."""
        self.asked: list[dict[str, str]] = []
        self._others = others

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = first.split()[1]
        given = {"/latest/api/token": "a token", self.NAMES: "broker", f"{self.NAMES}broker": json.dumps(self.ROLE)}
        if path not in given:
            self.asked.append({name.lower(): text for name, _, text in (line.partition(": ") for line in lines)})
        body = given.get(path, "stored")
        date = "Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT"
        writer.write(f'HTTP/1.1 200 OK\r\nETag: "e"\r\n{date}\r\nContent-Length: {len(body)}\r\n'.encode())
        writer.write(f"Connection: close\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    async def asked_by(self, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
        """The headers of a GET by a store of these variables."""
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        async with await asyncio.start_server(self.serve, "127.0.0.1", 0) as server:
            here = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            for name, text in {"AWS_METADATA_ENDPOINT": here, **self._others}.items():
                monkeypatch.setenv(name, text)
            variables = {"AWS_ENDPOINT_URL": here, "AWS_REGION": "eu-central-1", **environment}
            store = RemoteObjectStore.open("s3://bucket/a", variables, rng=random.Random(1))
            assert bytes(await store.get("x")) == b"stored"
        (headers,) = self.asked
        return headers


async def test_without_keys_those_of_the_instances_role_are_used(monkeypatch: pytest.MonkeyPatch):
    headers = await Amazon().asked_by({}, monkeypatch)
    assert "Credential=key-of-the-role/" in headers["authorization"]
    assert headers["x-amz-security-token"] == "token-of-the-role"


async def test_keys_of_the_environment_come_before_the_instances_role(monkeypatch: pytest.MonkeyPatch):
    headers = await Amazon().asked_by(
        {"AWS_ACCESS_KEY_ID": "own", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": "of a session"}, monkeypatch
    )
    assert "Credential=own/" in headers["authorization"]
    assert headers["x-amz-security-token"] == "of a session"


@pytest.mark.parametrize("of_all", ["", "https://127.0.0.1:1"])
async def test_the_endpoint_of_s3_alone_is_asked(of_all: str, monkeypatch: pytest.MonkeyPatch):
    amazon = Amazon()
    async with await asyncio.start_server(amazon.serve, "127.0.0.1", 0) as server:
        here = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        variables = {**ENVIRONMENT, "AWS_ENDPOINT_URL": of_all, "AWS_ENDPOINT_URL_S3": here}
        for name, text in variables.items():  # the library reads them as well
            monkeypatch.setenv(name, text)
        store = RemoteObjectStore.open("s3://bucket/a", variables, rng=random.Random(1))
        assert bytes(await store.get("x")) == b"stored"


async def test_keys_of_a_profile_are_used_without_boto3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "boto3", None)
    file = tmp_path / "credentials"
    file.write_text(PROFILES)
    variables = {"AWS_PROFILE": "work", "AWS_SHARED_CREDENTIALS_FILE": str(file)}
    headers = await Amazon().asked_by(variables, monkeypatch)
    assert "Credential=key-of-the-profile/" in headers["authorization"]
    assert headers["x-amz-security-token"] == "token=of=the=profile"


@pytest.mark.fuzz
async def test_fuzz_keys_that_a_profile_says_how_to_get_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    if find_spec("boto3") is None:
        lacking("boto3", "boto3")
    keys = {"Version": 1, "AccessKeyId": "key-of-the-program", "SecretAccessKey": SECRET}
    (tmp_path / "keys").write_text(json.dumps(keys))
    (tmp_path / "config").write_text(f"[profile work]\ncredential_process = cat {tmp_path / 'keys'}\n")
    amazon = Amazon(AWS_CONFIG_FILE=str(tmp_path / "config"))
    variables = {"AWS_PROFILE": "work", "AWS_CONFIG_FILE": str(tmp_path / "config")}
    headers = await amazon.asked_by(variables, monkeypatch)
    assert "Credential=key-of-the-program/" in headers["authorization"]


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: str, body: str) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")), 0)
    await reader.readexactly(length)
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
    await writer.drain()
    writer.close()


@pytest.mark.parametrize(("status", "error", "slow"), [
    ("409 Conflict", (ObjectExistsError, UnknownOutcomeError), False),
    ("412 Precondition Failed", ObjectExistsError, False),
    ("500 Internal Server Error", UnknownOutcomeError, False), ("503 Slow Down", UnknownOutcomeError, True),
    ("429 Too Many Requests", UnknownOutcomeError, True), ("403 Forbidden", AuthorizationError, False),
])  # fmt: skip
async def test_answers_become_typed_errors_without_what_the_body_says(status: str, error: type, slow: bool):
    body = f"<Error><Code>Whatever</Code><StringToSign>{SECRET}</StringToSign></Error>"
    server = await asyncio.start_server(lambda r, w: answered(r, w, status, body), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        variables = ENVIRONMENT | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        store = RemoteObjectStore.open("s3://bucket/a", variables, rng=random.Random(1))
        with pytest.raises(error) as found:
            await store.put_if_absent("x", [b"a", bytearray(b"b")])
        assert SECRET not in "".join([str(found.value), repr(found.value.__cause__), str(store.statistics())])
        assert found.value.__suppress_context__
        now = store.statistics()
        assert (now.requests["put"], now.slow_downs) == (1, int(slow))


async def test_a_bucket_that_is_not_there_is_named():
    body = "<Error><Code>NoSuchBucket</Code></Error>"
    server = await asyncio.start_server(lambda r, w: answered(r, w, "404 Not Found", body), "127.0.0.1", 0)
    async with server:
        variables = {"GOOGLE_BASE_URL": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
        key = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        variables["GOOGLE_SERVICE_ACCOUNT_KEY"] = json.dumps(key)
        store = RemoteObjectStore.open("gs://bucket/a", variables, rng=random.Random(1))
        puts = (
            lambda: store.put_if_absent("x", [b"a"]),
            lambda: store.put_multipart("y", [b"b"], 1),
            lambda: probe(store, random.Random(2)),
        )
        for put in puts:
            with pytest.raises(StorageError, match="gs://bucket/a: there is no 'bucket' in the store; create it first"):
                await put()
        with pytest.raises(ObjectMissingError):
            await store.get("x")


class ListsFromTheFront:
    """A library whose store lists all names, whatever they are to be behind."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self.lists = 0

    async def list(self, store: Any, prefix: str, offset: str | None, chunk_size: int):
        self.lists += 1
        for first in range(0, len(self._names), chunk_size):
            some = self._names[first : first + chunk_size]
            yield [{"path": name, "size": 1, "last_modified": datetime.fromtimestamp(0, UTC)} for name in some]


@pytest.mark.parametrize("count", [0, 999, 1_000, 1_001, 2_500])
async def test_a_list_ends_where_a_store_begins_each_at_the_front(count: int):
    names = [f"log/{n:04d}" for n in range(count)]
    library = ListsFromTheFront(names)
    requests = Requests(RequestLimits(), random.Random(1))
    store = RemoteObjectStore(Location.parse("az://box"), None, library, requests)
    assert [info.name async for info in store.list("log")] == names
    assert library.lists == count // 1_000 + 1
    assert [info.name async for info in store.list("log", after="log/0997")] == names[998:]
    assert store.statistics().requests["list"] >= library.lists


def test_a_program_that_ends_behind_a_request_gives_the_library_a_last_turn():
    """Without it the process is killed (SIGABRT) now and then."""
    code = (
        "import atexit, random, threading\n"
        "from engine.storage.objects import remote\n"
        "waits = []\n"
        "threading.Event.wait = lambda event, seconds: waits.append(seconds)\n"
        "atexit.register(lambda: print(waits))  # called last: it was registered first\n"
        "for url in ('gs://bucket', 's3://bucket'):\n"
        "    remote.RemoteObjectStore.open(url, {}, rng=random.Random(1))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[0.02]\n", "")


async def test_a_store_that_nothing_serves_is_an_error_after_the_last_attempt():
    limits = RequestLimits(attempts_max=2, retry_s_min=0.001, retry_s_max=0.001)
    store = RemoteObjectStore.open("s3://bucket/a", ENVIRONMENT, rng=random.Random(1), limits=limits)
    with pytest.raises(StorageError, match="GET x: no connection, in 2 attempts"):
        await store.get("x")


def test_the_probe_refuses_a_store_that_accepts_both():
    async def body() -> None:
        store = FaultyObjectStore(random.Random(3))
        store.accepts_both = True
        with pytest.raises(UnsupportedError, match="accepts two conditional PUTs"):
            await probe(store, random.Random(4))
        assert not store.objects

    run_virtual(body())


def test_a_put_is_measured_alone_and_nothing_is_left():
    async def body() -> None:
        store, loop = FaultyObjectStore(random.Random(3)), asyncio.get_running_loop()
        store.delay_s_max = 0.04  # of each way
        clock: Any = SimpleNamespace(monotonic=loop.time)
        assert 0.02 < await put_s(store, random.Random(4), clock) < 0.08
        assert not store.objects

    run_virtual(body())


@pytest.mark.parametrize("seed", range(20))
def test_the_probe_accepts_a_store_that_refuses_the_second_whatever_else_fails(seed: int):
    async def body() -> None:
        store = FaultyObjectStore(random.Random(seed))
        store.fail_rate = store.stored_fail_rate = 0.2
        await probe(store, random.Random(seed))

    run_virtual(body())


def test_the_library_is_imported_when_a_store_is_opened_and_not_before():
    """A broker on files and SQLite does not pay for it."""
    code = (
        "import random, sys, engine, engine.broker.server, engine.storage.objects.wal\n"
        "from engine.storage.objects.remote import RemoteObjectStore\n"
        "assert 'obstore' not in sys.modules\n"
        "RemoteObjectStore.open('gs://bucket', {}, rng=random.Random(1))\n"
        "assert 'obstore' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("refusals", [1, 3])
async def test_the_probe_believes_no_refusal_of_what_is_not_there(refusals: int):
    """R7: a store answers 409 where it stores nothing; that is no reason to refuse the store."""

    class Refusing(FaultyObjectStore):
        left = refusals

        async def put_if_absent(self, name: str, buffers: Any) -> None:
            if self.left:
                self.left -= 1
                raise ObjectExistsError("409")
            await super().put_if_absent(name, buffers)

    store = Refusing(random.Random(1))
    await probe(store, random.Random(2))
    assert store.left == 0
    assert store.objects == {}
    store.accepts_both, store.left = True, refusals
    with pytest.raises(UnsupportedError, match="accepts two conditional PUTs"):
        await probe(store, random.Random(3))
