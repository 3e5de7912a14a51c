"""Damage of a backup, of its source and of a restoration: named with its place, and nothing wrong is ever restored."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import engine
from engine.backups import restoring
from engine.backups.manifest import Manifest, unpack
from engine.storage.disk.disk import OsDisk
from tests.backups.scenes import everything, opened, send

FLIPS = 60


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A destination with two generations. Tests copy it."""
    at = tmp_path_factory.mktemp("whole")
    with opened(at / "data") as e:
        send(e, "orders", "first", 300)
        engine.backup(e, at / "backups")
        e.admin.split_segment("orders", 0)
        send(e, "orders", "second", 100)
        engine.backup(e, at / "backups")
    return at / "backups"


@pytest.fixture
def where(whole: Path, tmp_path: Path) -> Path:
    return copied(whole, tmp_path / "backups")


def copied(source: Path, to: Path) -> Path:
    for path in source.rglob("*"):
        if path.is_file():
            target = to / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return to


def manifests(where: Path) -> list[Manifest]:
    return [unpack(path.read_bytes(), path.name) for path in sorted((where / "generations").iterdir())]


def test_each_flipped_bit_is_found_and_named(where: Path) -> None:
    """In packs, with pack and byte, file and position; in manifests."""
    rng = random.Random(5)
    used = [
        (where / found.packs[part.pack][0], part.at, part.size, entry.path)
        for found in manifests(where)
        for entry in found.files
        for part in entry.parts
    ]
    for path, at, size, file in [*used, *rng.choices(used, k=FLIPS)]:
        image = path.read_bytes()
        flip(path, at + rng.randrange(size), rng)
        with pytest.raises(engine.CorruptionError) as caught:
            engine.verify_backup(where)
        for word in (f"packs/{path.name}", f"byte {at}", file, "fail their checksum"):
            assert word in str(caught.value)
        path.write_bytes(image)
    for path in sorted((where / "generations").iterdir()):
        image = path.read_bytes()
        for _ in range(FLIPS):
            flip(path, rng.randrange(len(image)), rng)
            with pytest.raises((engine.CorruptionError, engine.UnsupportedError), match=path.name):
                engine.verify_backup(where)
            path.write_bytes(image)
    assert engine.verify_backup(where).generations == 2


def flip(path: Path, at: int, rng: random.Random) -> None:
    image = bytearray(path.read_bytes())
    image[at] ^= 1 << rng.randrange(8)
    path.write_bytes(image)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("harm", [cut, Path.unlink], ids=["cut", "missing"])
def test_a_pack_that_is_not_whole_is_named(where: Path, harm: Callable[[Path], object], tmp_path: Path) -> None:
    pack = sorted((where / "packs").iterdir())[0]
    harm(pack)
    with pytest.raises(engine.CorruptionError, match=pack.name):
        engine.verify_backup(where)
    with pytest.raises(engine.CorruptionError, match=pack.name):
        engine.restore(where, tmp_path / "restored")
    with pytest.raises(engine.DataDirectoryError, match="engine restore"):
        engine.open(tmp_path / "restored")


def test_a_further_backup_does_not_build_on_a_pack_that_is_not_whole(where: Path, whole: Path, tmp_path: Path) -> None:
    cut(sorted((where / "packs").iterdir())[0])
    with opened(whole.parent / "data") as e:
        engine.backup(e, where, verify=True)
        values = everything(e, "orders")
    engine.restore(where, tmp_path / "restored")
    with opened(tmp_path / "restored") as e:
        assert everything(e, "orders") == values


def test_a_damaged_manifest_hides_no_other_generation(where: Path, whole: Path, tmp_path: Path) -> None:
    old, new = sorted((where / "generations").iterdir())
    cut(new)
    with pytest.raises(engine.CorruptionError, match=new.name):
        engine.restore(where, tmp_path / "restored")
    engine.restore(where, tmp_path / "restored", generation=old.stem)
    with opened(tmp_path / "restored") as e:
        assert everything(e, "orders").total() == 300
    with opened(whole.parent / "data") as e:
        engine.backup(e, where)  # on the older one
        with pytest.raises(engine.CorruptionError, match=new.name):
            engine.prune_backups(where, 2)  # what that one needs is not known
    assert old.exists()
    engine.verify_backup(where, generation=old.stem)


def test_a_format_of_the_future_is_refused(where: Path) -> None:
    (where / "engine-backup.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(engine.UnsupportedError, match="format 2"):
        engine.list_backups(where)
    (where / "engine-backup.json").write_text("{")
    with pytest.raises(engine.CorruptionError, match=r"engine-backup\.json"):
        engine.list_backups(where)


def test_damage_of_the_source_is_named_and_kept(tmp_path: Path) -> None:
    """A backup of a damaged log has what is good, says what is not, and the restored log says the same."""
    with opened(tmp_path / "data") as e:
        values = send(e, "orders", "first", 200)
        send(e, "whole", "first", 20)
    log = next((tmp_path / "data" / "segments" / "public" / "default" / "orders").rglob("*.log"))
    image = bytearray(log.read_bytes())
    image[len(image) // 2] ^= 4
    log.write_bytes(image)
    with opened(tmp_path / "data") as e:
        (place,) = engine.backup(e, tmp_path / "backups", verify=True).generation.damaged
    assert "orders/0000-ffff-0/0.log, position " in place
    engine.restore(tmp_path / "backups", tmp_path / "restored")
    with opened(tmp_path / "restored") as e:
        assert everything(e, "whole").total() == 20
        with pytest.raises(engine.CorruptionError, match=r"0\.log"):
            assert everything(e, "orders").total() == len(values)


# -- restoration -------------------------------------------------------------------------------------------------------


def test_only_an_empty_directory_is_restored_to(where: Path, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "letter").write_text("to somebody")
    with pytest.raises(engine.InvalidArgumentError, match="must be an empty directory, got one with letter"):
        engine.restore(where, tmp_path / "used")
    engine.restore(where, tmp_path / "restored")
    with pytest.raises(engine.InvalidArgumentError, match="must be an empty directory"):
        engine.restore(where, tmp_path / "restored")
    with opened(tmp_path / "open") as e:
        send(e, "orders", "own", 1)
        with pytest.raises(engine.DataDirectoryBusyError):
            engine.restore(where, tmp_path / "open")
    with pytest.raises(engine.NotFoundError, match="must be one of those there"):
        engine.restore(where, tmp_path / "other", generation="yesterday")


class Power(OsDisk):
    """It fails with the n-th change, and everything behind it: as of a process that is killed there."""

    def __init__(self, changes: int) -> None:
        super().__init__()
        self.changes = changes

    def _change(self) -> None:
        self.changes -= 1
        if self.changes < 0:
            raise KeyboardInterrupt

    def create(self, path):  # type: ignore[no-untyped-def]
        self._change()
        return super().create(path)

    def rename(self, old: str, new: str) -> None:
        self._change()
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self._change()
        super().unlink(path)


def test_a_restoration_that_is_cut_short_goes_on(where: Path, tmp_path: Path) -> None:
    """At each of its changes; what is there is opened only when all is there."""
    changes, kept = 0, []
    while True:
        data = tmp_path / f"restored-{changes}"
        try:
            _restore(where, data, Power(changes))
            break
        except KeyboardInterrupt:
            if not (data / "metadata.db").exists() and (data / "restoring.json").exists():
                with pytest.raises(engine.DataDirectoryError, match="engine restore"):
                    engine.open(data)
        kept.append(_restore(where, data, OsDisk()).kept)
        with opened(data) as e:
            assert everything(e, "orders").total() == 400
        changes += 1
    assert max(kept) >= 3
    assert changes > 8


def test_a_restoration_does_not_trust_what_is_there(where: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _restore(where, tmp_path / "restored", Power(8))
    for log in (tmp_path / "restored").rglob("*.log"):
        flip(log, log.stat().st_size // 2, random.Random(1))
    with pytest.raises(engine.InvalidArgumentError, match="was cut short"):
        engine.restore(where, tmp_path / "restored", generation=engine.list_backups(where)[0].name)
    engine.restore(where, tmp_path / "restored")
    with opened(tmp_path / "restored") as e:
        assert everything(e, "orders").total() == 400


def _restore(where: Path, data: Path, disk: OsDisk) -> engine.Restored:
    from engine.backups.destination import open_destination

    rng = random.Random(3)
    with open_destination(str(where), OsDisk(), {}, rng) as found:
        return restoring.restore(found, data, generation=None, disk=disk, rng=rng, progress=lambda *_: None)


def test_a_restored_directory_is_another_one(where: Path, whole: Path, tmp_path: Path) -> None:
    """Files of it and of the original cannot be mixed unnoticed, in either direction, nor those of two copies."""
    for name in ("a", "b"):
        engine.restore(where, tmp_path / name)
    copied(whole.parent / "data", tmp_path / "original")
    for metadata_of, logs_of in (("a", "original"), ("original", "a"), ("a", "b")):
        mixed = tmp_path / f"{metadata_of}-{logs_of}"
        copied(tmp_path / logs_of, mixed)
        for name in ("metadata.db", "metadata.mark"):
            (mixed / name).unlink(missing_ok=True)
            if (tmp_path / metadata_of / name).exists():
                (mixed / name).write_bytes((tmp_path / metadata_of / name).read_bytes())
        with pytest.raises(engine.CorruptionError, match="log files were written under the metadata"):
            engine.open(mixed, config={"scalable_topic_auto_scale_enabled": False})
