"""Options that commands with messages share: formats of files, compression, keys to encrypt and decrypt with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from engine.cli.transfer.formats import ENCODINGS, FORMATS

F = TypeVar("F", bound=Callable[..., Any])


def file_format_option(command: F) -> F:
    """`--format` of a FILE, whose name says it as well."""
    return click.option(
        "--format", "form", type=click.Choice(FORMATS), help="What FILE is.  [default: as it is called]"
    )(command)


def encoding_option(what: str) -> Callable[[F], F]:
    """`--encoding`. `what`: is encoded."""
    return click.option(
        "--encoding",
        type=click.Choice(ENCODINGS),
        default="utf-8",
        show_default=True,
        help=f"How {what} stand in CSV and JSON lines.",
    )


def compression_option(text: str = "How batches of messages are compressed.") -> Callable[[F], F]:
    """`--compression` of what is sent. `text`: its help."""
    return click.option(
        "--compression", type=click.Choice(["none", "lz4", "zstd"]), default="none", show_default=True, help=text
    )


def encrypt_option(text: str = "A public key in PEM that messages are encrypted for.") -> Callable[[F], F]:
    """`--encrypt-for`, repeatable; key_files() reads it. `text`: its help."""
    return click.option("--encrypt-for", multiple=True, metavar="NAME=FILE", help=text)


def decrypt_option(command: F) -> F:
    """`--decrypt-with`, repeatable; key_files() reads it."""
    return click.option(
        "--decrypt-with",
        multiple=True,
        metavar="NAME=FILE",
        help="A private key in PEM of messages that are encrypted.",
    )(command)
