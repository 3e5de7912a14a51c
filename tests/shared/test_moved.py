"""A directory that is moved, deleted or replaced while it is open: a clear error, and never an empty one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import engine
from tests.shared.conftest import Start
from tests.shared.members import Member, Told

MOVED = "DataDirectoryError: .* must be the directory that this process has opened"


async def stored(first: Member, second: Member) -> None:
    await first.do("keep.update(p=e.producer('t')), keep['p'].send(b'1')")
    await second.do("e.admin.list_topics()")


async def refuses(one: Member, path: Path) -> None:
    """However often it is asked."""
    for _ in range(2):
        with pytest.raises(Told, match=MOVED):
            await one.do("e.admin.list_topics()")
    assert not os.path.exists(path / "metadata.db")  # noqa: ASYNC240


async def test_a_directory_that_is_moved_is_not_taken_over_elsewhere_and_goes_on_when_it_is_back(
    tmp_path: Path, member: Start
):
    first, second = await member(), await member()
    await stored(first, second)
    (tmp_path / "data").rename(tmp_path / "moved")
    assert await second.do("e.admin.list_topics()") == ["topic://public/default/t"]
    await first.kill()
    await refuses(second, tmp_path / "data")
    (tmp_path / "moved").rename(tmp_path / "data")
    await second.do("found(e)")
    assert await second.do("e.admin.list_topics()") == ["topic://public/default/t"]
    await second.do("keep.update(c=e.stream_consumer('t', 's', initial_position='earliest'))")
    assert await second.do("values(keep['c'], 1)") == ["1"]


async def test_a_directory_that_is_deleted_or_replaced_is_not_begun_anew(tmp_path: Path, member: Start):
    first, second = await member(), await member()
    await stored(first, second)
    shutil.rmtree(tmp_path / "data")
    await first.kill()
    await refuses(second, tmp_path / "data")
    (tmp_path / "data").mkdir()
    await refuses(second, tmp_path / "data")
    with engine.open(tmp_path / "data") as new:  # one that is opened on purpose
        assert new.admin.list_topics() == []


async def test_a_link_that_leads_elsewhere_later_changes_nothing(tmp_path: Path, member: Start):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    first, second = await member(tmp_path / "link" / "data"), await member(tmp_path / "link" / "data")
    await stored(first, second)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    await first.kill()
    assert await second.do("e.admin.list_topics()") == ["topic://public/default/t"]
    assert not (tmp_path / "other" / "data").exists()
