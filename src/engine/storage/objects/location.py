"""`Location`: an object store as a URL names it, and the variables of the environment that its ecosystem uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from engine.errors import InvalidArgumentError

SCHEMES = ("s3", "gs", "az")

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_PREFIX = re.compile(r"(?:[A-Za-z0-9._=-]+/)*[A-Za-z0-9._=-]+|")

# Read from the environment, in lower case options of the store. Others that the library knows, it reads itself.
VARIABLES = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
           "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_UNSIGNED_PAYLOAD"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY",
           "GOOGLE_BASE_URL"),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_ID",
           "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID", "AZURE_STORAGE_ENDPOINT"),
}  # fmt: skip
_ENDPOINTS = {  # the first that is set counts
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), "gs": ("GOOGLE_BASE_URL",), "az": ("AZURE_STORAGE_ENDPOINT",),
}  # fmt: skip


class Location(NamedTuple):
    """A bucket (in Azure a container) and the prefix of all names in it, without slashes at its ends."""

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    @staticmethod
    def parse(url: str) -> Location:
        """Of `s3://bucket/prefix`, `gs://…` or `az://container/prefix`. Raises InvalidArgumentError.

        Credentials in a URL are refused, and not repeated in the error: URLs are logged.
        """
        wanted = "the URL of an object store must be s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
        try:
            parts = urlsplit(url)
        except ValueError:
            raise InvalidArgumentError(f"{wanted}, got what is no URL") from None
        if "@" in parts.netloc:
            raise InvalidArgumentError(f"{wanted}, got one with credentials; set them in the environment")
        if parts.scheme not in SCHEMES:
            raise InvalidArgumentError(f"{wanted}, got the scheme {parts.scheme!r}")
        if parts.query or parts.fragment:
            raise InvalidArgumentError(f"{wanted}, got one with a query or a fragment")
        if not _BUCKET.fullmatch(parts.netloc):
            raise InvalidArgumentError(f"{wanted}, got the bucket {parts.netloc!r}")
        prefix = parts.path.strip("/")
        if not _PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/")):
            raise InvalidArgumentError(
                f"the prefix of a store must be of letters, digits and . _ = - /, got {prefix!r}"
            )
        return Location(parts.scheme, parts.netloc, prefix)

    def options(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The options of the store that the environment sets, by their names there in lower case.

        Where TLS, or this machine itself, keeps others from the bytes, the signature of a PUT to S3 leaves out the
        SHA-256 of its body, which costs more than all else that the client does; AWS_UNSIGNED_PAYLOAD says otherwise.
        """
        known = VARIABLES[self.scheme]
        found = {name.lower(): environment[name] for name in known if environment.get(name)}
        if self.scheme == "s3":
            if (endpoint := found.pop("aws_endpoint_url_s3", None)) is not None:
                found["aws_endpoint_url"] = endpoint
            if not self.is_plain(environment) or _is_here(found["aws_endpoint_url"]):
                found.setdefault("aws_unsigned_payload", "true")
        return found

    def is_plain(self, environment: Mapping[str, str]) -> bool:
        """Whether the environment sets an endpoint without TLS."""
        set_ = (environment[name] for name in _ENDPOINTS[self.scheme] if environment.get(name))
        return next(set_, "").startswith("http://")


def _is_here(endpoint: str) -> bool:
    """Whether an endpoint is an address of this machine's loopback."""
    try:
        host = urlsplit(endpoint).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
