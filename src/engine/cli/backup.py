"""`engine backup`: copies of a data directory while it is served, and what is done with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from engine.cli import lines, output
from engine.cli.connection import connect, connection_options, json_option
from engine.cli.groups import Group, examples
from engine.errors import DataDirectoryBusyError
from engine.model.units import size_text

if TYPE_CHECKING:
    from engine.backups import BackupGeneration
    from engine.sync import Client

STEPS = {"copy": "copying", "verify": "verifying", "restore": "restoring"}
DAMAGED = 1  # the exit code where the source has damage, which the backup names


class _Backups(Group):
    """A group whose command `create` goes without its name: `engine backup DEST`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Whatever is no command is the destination, or an option, of a backup."""
        if args and self.get_command(ctx, args[0]) is None:
            args = ["create", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options may come before the destination."""
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = ["create", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_Backups,
    epilog=examples(
        "engine backup /mnt/backups --data /var/lib/engine --keep 14",
        "engine backup s3://backups/engine --url engine://broker --token-file token --verify",
        "engine backup list /mnt/backups",
        "engine backup verify /mnt/backups",
    ),
)
def command() -> None:
    """Back up a data directory while it is served.

    `engine backup DESTINATION` is `engine backup create DESTINATION`. A destination that has the name of a command is
    written with its folder: ./list.
    """


@command.command(
    epilog=examples(
        "engine backup create /mnt/backups --data /var/lib/engine --keep 14",
        "engine backup create s3://backups/engine --url engine://broker --verify",
    )
)
@click.argument("destination")
@connection_options
@click.option(
    "--keep", type=click.IntRange(min=1), metavar="N", help="Afterwards, delete all but the newest N backups."
)
@click.option("--verify", is_flag=True, help="Read the backup back, and check every byte.")
@json_option
def create(destination: str, url: str, data: str | None, keep: int | None, verify: bool, as_json: bool) -> None:
    """Back up all that there is, as it is at one moment.

    DESTINATION is a directory, or s3://bucket/prefix, gs://bucket/prefix or az://container/prefix, with the credentials
    of the environment. What an earlier backup there has is not written again. With --data the directory may be served
    by another process, or by none. The role needs the right `superuser`.
    """
    from engine.backups import backup

    with _connected(url, data) as client:
        done = with_progress(
            lambda progress: backup(client, destination, keep=keep, verify=verify, on_progress=progress)
        )
    if as_json:
        output.print_json(dataclasses.asdict(done))
    else:
        facts = [*facts_of(done.generation), ("verified", done.verified or None), ("deleted", ", ".join(done.deleted))]
        output.print_facts(facts, title=f"Backed up to {destination}")
    for place in done.generation.damaged:
        lines.say(f"the source is damaged: {place}")
    if done.generation.damaged:
        raise click.exceptions.Exit(DAMAGED)


@command.command("list", epilog=examples("engine backup list /mnt/backups"))
@click.argument("destination")
@json_option
def list_(destination: str, as_json: bool) -> None:
    """List the backups at a destination."""
    from engine.backups import list_backups

    found = list_backups(destination)
    if as_json:
        output.print_json([dataclasses.asdict(each) for each in found])
        return
    rows = [
        (
            g.name,
            f"{g.taken:%Y-%m-%d %H:%M:%S} UTC",
            g.topics,
            g.messages,
            size_text(g.size),
            size_text(g.added),
            len(g.damaged),
        )
        for g in found
    ]
    output.print_table(["generation", "taken", "topics", "messages", "size", "added", "damaged"], rows)


@command.command(epilog=examples("engine backup verify s3://backups/engine"))
@click.argument("destination")
@click.option("--generation", metavar="NAME", help="Only this one.  [default: all]")
@json_option
def verify(destination: str, generation: str | None, as_json: bool) -> None:
    """Read backups, and check every byte.

    Damage is named with its place, and the exit code is 1 then.
    """
    from engine.backups import verify_backup

    done = with_progress(lambda progress: verify_backup(destination, generation=generation, on_progress=progress))
    if as_json:
        output.print_json(dataclasses.asdict(done))
    else:
        what = output.plural(done.generations, "backup")
        lines.line(f"{what} verified: {output.plural(done.files, 'file')}, {size_text(done.size)}, no damage")


@command.command(epilog=examples("engine backup prune /mnt/backups --keep 14 --yes"))
@click.argument("destination")
@click.option("--keep", type=click.IntRange(min=1), required=True, metavar="N", help="How many of the newest stay.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def prune(destination: str, keep: int, yes: bool, as_json: bool) -> None:
    """Delete all backups but the newest.

    What a backup that stays needs is not deleted.
    """
    from engine.backups import prune_backups

    if not yes:
        lines.confirm(f"Delete all backups at {destination} but the newest {keep}?")
    deleted = prune_backups(destination, keep)
    if as_json:
        output.print_json({"deleted": deleted})
    else:
        lines.line(f"deleted {output.plural(len(deleted), 'backup')}")


def _connected(url: str, data: str | None) -> Client:
    try:
        return connect(url, data)
    except DataDirectoryBusyError as e:
        raise DataDirectoryBusyError(f"{e}; what `engine serve` serves is backed up with --url") from None


def with_progress(work: Callable[[Callable[[str, int, int], None]], Any]) -> Any:
    """Run `work` under a progress bar for each of its steps."""
    with output.progress() as bar:
        steps: dict[str, Any] = {}

        def progressed(step: str, done: int, total: int) -> None:
            if step not in steps:
                steps[step] = bar.add_task(STEPS[step], total=total, note="")
            note = output.plural(done, "segment") if step == "copy" else size_text(done)
            bar.update(steps[step], completed=done, note=note)

        return work(progressed)


def facts_of(generation: BackupGeneration) -> list[tuple[str, Any]]:
    """What people are shown of it; last, what it has added."""
    return [
        ("generation", generation.name),
        ("taken", f"{generation.taken:%Y-%m-%d %H:%M:%S} UTC"),
        ("topics", generation.topics),
        ("segments", generation.segments),
        ("messages", generation.messages),
        ("size", size_text(generation.size)),
        ("added", size_text(generation.added)),
    ]
