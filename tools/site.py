"""What the documentation site has besides the pages below docs/: a hook of MkDocs (mkdocs.yml).

The README is its first page. The reference of the API comes from docstrings, one section for each public name; that of
the command line from the help of the commands. Links between pages are those of the repository; what they name outside
of the site (a source file) becomes text.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
HERE = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
"""Pages beside docs/, by their place in the site."""

REFERENCE = {
    "open": ("Open and connect", "open open_async Engine AsyncEngine Client AsyncClient Backoff"),
    "send": ("Send", "Producer AsyncProducer Batching"),
    "receive": (
        "Receive",
        """StreamConsumer AsyncStreamConsumer QueueConsumer AsyncQueueConsumer CheckpointConsumer
        AsyncCheckpointConsumer AsyncMultiStreamConsumer AsyncMultiQueueConsumer Checkpoint DeadLetter TopicView
        AsyncTopicView TopicWatch AsyncTopicWatch TopicsChanged""",
    ),
    "messages": ("Messages and schemas", "Message MessageBatch MessageId Schema"),
    "transactions": ("Transactions", "Transaction AsyncTransaction"),
    "administration": (
        "Administration",
        """Admin AsyncAdmin TopicMetadata Segment Migrated migrate migrate_async migrate_from_pulsar
        migrate_from_pulsar_async""",
    ),
    "backups": (
        "Backups",
        """backup backup_async list_backups verify_backup prune_backups restore BackedUp BackupGeneration VerifiedBackup
        Restored""",
    ),
    "ranges": (
        "Tables and ranges",
        "TopicReader AsyncTopicReader TableView AsyncTableView RangeReader AsyncRangeReader TopicSegments",
    ),
    "statistics": (
        "Statistics",
        """TopicStatistics BucketStatistics ConsumerStatistics MultiConsumerStatistics MultiQueueConsumerStatistics
        ProducerStatistics QueueConsumerStatistics TableViewStatistics""",
    ),
}
"""Pages of the reference: title, public names. Errors have a page of their own."""

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`(?!\]))", re.DOTALL | re.MULTILINE)
_LIST_BEHIND_TEXT = re.compile(r"^(?!\s*(?:[*\-+]|\d+\.) )(\S.*)\n(?=(?:[*\-+]|\d+\.) )", re.MULTILINE)


def errors() -> str:
    """The names of all public errors."""
    import engine

    return " ".join(name for name in engine.__all__ if name.endswith("Error"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """See the hooks of MkDocs."""
    from mkdocs.structure.files import File

    pages = {place: (ROOT / name).read_text() for name, place in HERE.items()}
    groups = REFERENCE | {"errors": ("Errors", errors())}
    pages |= {f"reference/{name}.md": _reference(title, names) for name, (title, names) in groups.items()}
    pages["reference/index.md"] = _index(groups)
    pages["reference/commands.md"] = "".join(_commands())
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of the repository become those of the site. A list needs no empty line before it, as in the repository."""
    place = page.file.src_uri
    behind = {there: here for here, there in HERE.items()}
    folder = os.path.dirname(behind.get(place, f"docs/{place}"))

    def rewritten(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if "://" in target or target.startswith("mailto:") or not target:
            return match[0]
        aim = os.path.normpath(os.path.join(folder, target))
        there = HERE.get(aim, aim.removeprefix("docs/") if aim.startswith("docs/") else "")
        if there and (ROOT / aim).is_dir():
            there += "/README.md"
        if files.get_file_from_path(there) is None:
            return match[0] if match["image"] else match["text"]
        relative = os.path.relpath(there, os.path.dirname(place) or ".")
        return f"{match['image']}[{match['text']}]({relative}{'#' if anchor else ''}{anchor})"

    parts = _CODE.split(markdown)
    for index in range(0, len(parts), 2):
        parts[index] = _LIST_BEHIND_TEXT.sub(r"\1\n\n", parts[index])
    if place.startswith("reference/"):
        return "".join(parts)
    return _outside_fences("".join(parts), lambda text: _LINK.sub(rewritten, text))


def _outside_fences(markdown: str, change) -> str:  # type: ignore[no-untyped-def]
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))


def _reference(title: str, names: str) -> str:
    return f"# {title}\n\n" + "\n".join(f"::: engine.{name}\n" for name in names.split())


def _index(groups: dict[str, tuple[str, str]]) -> str:
    rows = [
        f"| [{title}]({page}.md) | {', '.join(f'[`{name}`][engine.{name}]' for name in names.split())} |"
        for page, (title, names) in groups.items()
    ]
    said = "Everything public is a name of `engine`. What begins with `Async` is awaited; the rest blocks."
    return f"# API\n\n{said}\n\n| page | names |\n|---|---|\n" + "\n".join(rows) + "\n"


def _commands() -> Iterator[str]:
    """Sections of all commands, by their help."""
    from engine.cli.main import cli

    yield "# Command line\n\nWhat `engine COMMAND --help` says. How they are used: [operations](../operations.md).\n"
    yield from _group(cli, click.Context(cli, info_name="engine"))


def _group(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _group(command, below)
        else:
            yield f"\n## {below.command_path}\n\n```text\n{command.get_help(below)}\n```\n"
