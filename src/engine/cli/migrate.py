"""`engine migrate`: copies topics from one server, cluster or data directory to another."""

from __future__ import annotations

import dataclasses
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from engine.cli import lines, output
from engine.cli.connection import connect, json_option
from engine.cli.groups import examples
from engine.cli.message_options import compression_option, decrypt_option, encrypt_option
from engine.cli.secrets import read_token
from engine.cli.values import checked, key_files, namespace_name, service_url, topic_name
from engine.errors import NotFoundError
from engine.model.names import TopicName
from engine.model.text import plain

if TYPE_CHECKING:
    from engine.migration import Migrated
    from engine.sync import Client

STEPS = {"copy": "copying", "verify": "comparing"}
PULSAR = ("pulsar://", "pulsar+ssl://")


def source_topic(text: str) -> str:
    """A topic, or a URL of Apache Pulsar with one behind it."""
    return text if text.startswith(PULSAR) else topic_name(text)


@click.command(
    epilog=examples(
        "engine migrate orders --from /var/lib/engine --to engine://a,b,c --verify",
        "engine migrate --namespace public/default --pattern 'orders.*' --from engine://old --to engine://new",
        "engine migrate orders --from engine://a,b,c --to ./data --as orders-copy --subscriptions --verify",
        "engine migrate pulsar://old:6650/public/default/orders --to engine://a,b,c --verify",
    )
)
@click.argument("topic", type=source_topic, required=False)
@click.option("--from", "source", metavar="WHERE", help="A broker's URL, or a data directory; pulsar://HOST:PORT.")
@click.option(
    "--to", "destination", required=True, metavar="WHERE", help="Likewise; a directory that does not exist is begun."
)
@click.option(
    "--from-token-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="File with the token of the source, or - for a line of standard input.",
)
@click.option(
    "--to-token-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="File with the token of the destination, or - for a line of standard input.",
)
@click.option("--from-tls-ca", type=click.Path(exists=True, dir_okay=False), help="TLS to the source, by this PEM file")
@click.option(
    "--to-tls-ca", type=click.Path(exists=True, dir_okay=False), help="TLS to the destination, by this PEM file."
)
@click.option("--namespace", type=namespace_name, metavar="NAMESPACE", help="All topics of it, in place of one.")
@click.option("--pattern", metavar="RE2", help="With --namespace: only topics whose own name this matches as a whole.")
@click.option("--as", "copy_name", type=topic_name, metavar="TOPIC", help="The name of the copy.  [default: the same]")
@click.option(
    "--to-namespace", type=namespace_name, metavar="NAMESPACE", help="The namespace of copies.  [default: the same]"
)
@click.option("--verify", is_flag=True, help="Read both, and compare counts, contents and the order of each key.")
@click.option("--subscriptions", is_flag=True, help="Subscriptions, too, with what they have acknowledged.")
@compression_option("Of the copy.")
@decrypt_option
@encrypt_option("A public key in PEM: encrypt the copy for it.")
@json_option
def command(
    topic: str | None,
    source: str | None,
    destination: str,
    namespace: str | None,
    pattern: str | None,
    copy_name: str | None,
    to_namespace: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Copy topics, as far as they go when this begins.

    It may be interrupted at any moment, or killed: run it again, and it sends what is missing, and nothing twice. Run
    it once more when producers have stopped, to copy what they have sent meanwhile.

    TOPIC may be pulsar://HOST:PORT/TENANT/NAMESPACE/NAME: a topic of Apache Pulsar, with its partitions.
    """
    source, topic = places(source, topic)
    check(topic, namespace, pattern, copy_name, to_namespace)
    access = {name: options.pop(name) for name in ("from_token_file", "from_tls_ca", "to_token_file", "to_tls_ca")}
    if source.startswith(PULSAR):
        if topic is None or any(options.pop(name) for name in ("subscriptions", "decrypt_with", "encrypt_for")):
            raise click.UsageError(
                "of Apache Pulsar, one TOPIC is copied: --namespace, --subscriptions, --decrypt-with and --encrypt-for "
                "are for a source of Engine"
            )
        copy_name = copy_name or (moved(classic_name(topic), to_namespace) if to_namespace else None)
        finish(copied_from_pulsar(source, destination, topic, copy_name, access, options), as_json)
        return
    keys = {
        "decryption_keys": key_files(options.pop("decrypt_with")),
        "encryption_keys": key_files(options.pop("encrypt_for")),
    }
    if keys["encryption_keys"]:
        keys["copy_decryption_keys"] = keys["decryption_keys"]
    with ExitStack() as stack:
        here = stack.enter_context(
            client_of(source, "--from-token-file", access["from_token_file"], access["from_tls_ca"], create=False)
        )
        there = stack.enter_context(
            client_of(destination, "--to-token-file", access["to_token_file"], access["to_tls_ca"], create=True)
        )
        topics = [topic] if topic is not None else here.list_topics(namespace or "", pattern=pattern)
        if not topics:
            raise NotFoundError(f"{namespace} has no such topic")
        done = [one(here, there, name, copy_name or moved(name, to_namespace), {**options, **keys}) for name in topics]
    finish(done, as_json)


def places(source: str | None, topic: str | None) -> tuple[str, str | None]:
    """Where the source is, and the topic there. Raises a usage error where it is said twice or not at all."""
    if topic is not None and topic.startswith(PULSAR):
        scheme, _, rest = topic.partition("://")
        hosts, _, name = rest.partition("/")
        if source is not None:
            raise click.UsageError(f"a TOPIC with a URL excludes --from, got {source}")
        if not name:
            raise click.UsageError(f"a URL must be pulsar://HOST:PORT/TENANT/NAMESPACE/NAME, got {plain(topic)}")
        return f"{scheme}://{hosts}", classic_name(name)
    if source is None:
        raise click.UsageError("--from must say where the source is")
    return source, topic


def classic_name(text: str) -> str:
    """The full name of a topic of Apache Pulsar."""
    from engine.pulsar.names import topic_of

    return checked(str(topic_of(text)), TopicName.parse)


def finish(done: list[Migrated], as_json: bool) -> None:
    """Say what was done."""
    if as_json:
        output.print_json([dataclasses.asdict(migrated) for migrated in done])
    else:
        show(done)


def copied_from_pulsar(
    source: str, destination: str, topic: str, copy_name: str | None, access: dict[str, Any], options: dict[str, Any]
) -> list[Migrated]:
    """Copy a topic of Apache Pulsar."""
    from engine.migration import migrate_from_pulsar

    token_file, ca = access["from_token_file"], access["from_tls_ca"]
    token = None if token_file is None else read_token("--from-token-file", token_file)
    if ca is not None and not source.startswith("pulsar+ssl://"):
        raise click.UsageError("--from-tls-ca is for pulsar+ssl://HOST:PORT")
    access["tls"] = None if ca is None else trusting(ca)
    with (
        client_of(destination, "--to-token-file", access["to_token_file"], access["to_tls_ca"], create=True) as there,
        output.progress() as bar,
    ):
        return migrate_from_pulsar(
            source, there, topic, to=copy_name, token=token, tls=access["tls"], on_progress=shown(bar, topic), **options
        )


def check(
    topic: str | None, namespace: str | None, pattern: str | None, copy_name: str | None, to_namespace: str | None
) -> None:
    """Raise a usage error for contradictory options."""
    if (topic is None) == (namespace is None):
        raise click.UsageError("give a TOPIC, or --namespace for all of its topics")
    if pattern is not None and namespace is None:
        raise click.UsageError("--pattern chooses topics of a --namespace")
    if copy_name is not None and (topic is None or to_namespace is not None):
        raise click.UsageError("--as names the copy of one TOPIC, and excludes --namespace and --to-namespace")


def moved(topic: str, namespace: str | None) -> str:
    """The full name of a topic's copy. `namespace`: None for its own."""
    name = TopicName.parse(topic)
    return str(name) if namespace is None else str(TopicName.parse(f"{namespace}/{name.local}"))


def client_of(where: str, option: str, token_file: str | None, tls_ca: str | None, *, create: bool) -> Client:
    """Of a URL, or of a data directory. `option`: what says `token_file`. Raises a usage error for a token in a URL."""
    if "://" not in where:
        if token_file is not None or tls_ca is not None:
            raise click.UsageError(f"a token and TLS are for a broker's URL, got the directory {where}")
        return connect("", where, create=create)
    from engine.client.base.endpoint import ServiceUrl
    from engine.sync import Client

    if ServiceUrl.parse(service_url(where)).token is not None:
        raise click.UsageError("a URL must have no token here: give --from-token-file or --to-token-file")
    token = None if token_file is None else read_token(option, token_file)
    return Client(where, token=token, tls=None if tls_ca is None else trusting(tls_ca))


def trusting(ca: str) -> ssl.SSLContext:
    """TLS by the certificates of a PEM file. Raises a usage error."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as e:
        raise click.UsageError(f"{ca} is no PEM file of certificates: {e.strerror or e}") from e


def one(here: Client, there: Client, topic: str, to: str, options: dict[str, Any]) -> Migrated:
    """Copy one topic, under a progress bar."""
    from engine.migration import migrate

    with output.progress() as bar:
        return migrate(here, there, topic, to=to, on_progress=shown(bar, topic), **options)


def shown(bar: Any, topic: str) -> Callable[[str, int, int], None]:
    """What to call with the progress of a topic."""
    steps: dict[str, Any] = {}
    name = topic.rpartition("/")[2]

    def progressed(step: str, done: int, total: int) -> None:
        if step not in steps:
            steps[step] = bar.add_task(f"{STEPS[step]} {name}", total=total or None, note="")
        bar.update(steps[step], completed=done, note=f"{done:,} messages")

    return progressed


def show(done: list[Migrated]) -> None:
    """A row for each topic, and what is left."""
    rows = [
        (
            m.topic,
            m.sent,
            None if m.verified is None else m.verified.messages,
            None if m.verified is None else m.verified.checksum,
            ", ".join(m.subscriptions),
        )
        for m in done
    ]
    output.print_table(["copy", "sent", "compared", "checksum", "subscriptions"], rows)
    for migrated in done:
        if migrated.open_transactions:
            held = ", ".join(migrated.open_transactions)
            lines.say(f"{migrated.topic} ends before what waits for {held}: run again when that has ended")
