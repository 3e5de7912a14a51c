"""A torn tail is not damage; damage is never a torn tail (D6)."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import pytest

from engine._native.format.crc32c import crc32c
from engine.errors import CorruptionError, EngineError, UnsupportedError
from engine.storage.file.format import HEADER_SIZES, VERSION
from tests.kit.entry_images import entry, values_of
from tests.kit.stores import log_files, make_store, name, read_blocks

VALUES = [f"value-{i}".encode() * 3 for i in range(8)]


async def write_log(root: Path, *, close: str, file_size_max: int = 1 << 20) -> list[Path]:
    """Eight entries, one commit each; `close`: "crash", "clean" or "sealed"."""
    store = make_store(root, file_size_max=file_size_max)
    segment = await store.create(name())
    for i, value in enumerate(VALUES):
        await segment.append(entry(i, (value,)))
    if close == "sealed":
        await segment.seal()
    if close == "crash":
        segment.release()
        cut_padding(log_files(store, name())[-1])
    else:
        await store.close()
    return log_files(store, name())


def cut_padding(path: Path) -> None:
    """Take the zeros away that were written ahead."""
    path.write_bytes(path.read_bytes().rstrip(b"\0"))
    data = path.read_bytes()
    path.write_bytes(data + bytes(-len(data) % 8))


async def read_values(root: Path) -> list[bytes]:
    """Open and read everything, from files."""
    store = make_store(root)
    segment = await store.open(name())
    try:
        return [v for b in await read_blocks(segment) for _, v in values_of(b.data)]
    finally:
        segment.release()


async def is_harmless(root: Path, damaged: Path, expected: list[bytes]) -> bool:
    """True: all is read as it was. False: it is reported, and the report names the file."""
    try:
        values = await read_values(root)
    except (CorruptionError, UnsupportedError) as error:
        text = str(error)
    else:
        assert values == expected, "wrong bytes"
        return True
    assert damaged.name in text
    return False


async def test_torn_tail_at_every_byte_of_the_last_record_is_cut(tmp_path: Path) -> None:
    (path,) = await write_log(tmp_path / "a", close="crash")
    image = path.read_bytes()
    last = len(image) - len(entry(7, (VALUES[7],)))
    for size in range(last, len(image)):
        path.write_bytes(image[:size])
        assert await read_values(tmp_path / "a") == VALUES[:7]
        assert path.stat().st_size == last, "cut, so that nothing of it can come back"


async def test_zeroed_tail_is_cut(tmp_path: Path) -> None:
    (path,) = await write_log(tmp_path / "a", close="crash")
    image = path.read_bytes()
    path.write_bytes(image + bytes(10_000))
    assert await read_values(tmp_path / "a") == VALUES
    assert path.stat().st_size == len(image)


async def test_d6_record_below_a_later_durable_upto_is_damage(tmp_path: Path) -> None:
    (path,) = await write_log(tmp_path / "a", close="crash")
    image = path.read_bytes()
    size = len(entry(0, (VALUES[0],)))
    start = len(image) - 8 * size
    for record in range(7):  # nothing proves that the last one was durable
        for position in (0, 5, 60, 90, 110, 130, size - 1):
            at = start + record * size + position
            path.write_bytes(image[:at] + bytes([image[at] ^ 0x10]) + image[at + 1 :])
            if record < 6:
                with pytest.raises(CorruptionError, match=rf"{path.name}.*offset {record}\b"):
                    await read_values(tmp_path / "a")
                assert path.stat().st_size == len(image), "damage is never cut"


async def test_d6_record_missing_in_the_middle_is_damage(tmp_path: Path) -> None:
    (path,) = await write_log(tmp_path / "a", close="crash")
    image = path.read_bytes()
    size = len(entry(0, (VALUES[0],)))
    start = len(image) - 8 * size
    path.write_bytes(image[: start + 2 * size] + bytes(size) + image[start + 3 * size :])
    with pytest.raises(CorruptionError, match="offset 2"):
        await read_values(tmp_path / "a")


@pytest.mark.parametrize("close", ["clean", "sealed"])
async def test_d6_a_flipped_bit_anywhere_in_a_closed_file_is_reported_or_harmless(tmp_path: Path, close: str) -> None:
    """Header, closing block, body, footer and index: CorruptionError that names the file, or the right bytes."""
    (path,) = await write_log(tmp_path / "a", close=close)
    image = path.read_bytes()
    harmless = 0
    for at in range(len(image)):
        path.write_bytes(image[:at] + bytes([image[at] ^ (1 << at % 8)]) + image[at + 1 :])
        harmless += await is_harmless(tmp_path / "a", path, VALUES)
    assert harmless <= 64 + 64 + 16, "the closing block, which the footer repeats, the older witness, and padding"


async def test_d6_a_flipped_bit_in_a_rolled_file_is_reported(tmp_path: Path) -> None:
    store = make_store(tmp_path / "b", file_size_max=4096)
    segment = await store.create(name())
    for i in range(60):
        await segment.append(entry(i, (b"x" * 200,)))
    await store.close()
    paths = log_files(store, name())
    assert len(paths) > 3
    path, rng = paths[1], random.Random(5)
    image = path.read_bytes()
    expected = [b"x" * 200] * 60
    for at in sorted(rng.sample(range(len(image)), 300)):
        path.write_bytes(image[:at] + bytes([image[at] ^ 4]) + image[at + 1 :])
        if await is_harmless(tmp_path / "b", path, expected):
            assert at < HEADER_SIZES[VERSION] + 48, (
                "only what other blocks say too: the closing block, a witness and the snapshot"
            )
    path.write_bytes(image)
    assert await read_values(tmp_path / "b") == expected


async def test_d6_missing_swapped_truncated_and_foreign_files_are_reported(tmp_path: Path) -> None:
    store = make_store(tmp_path / "a", file_size_max=4096)
    segment = await store.create(name())
    other = await store.create(name(1))
    for i in range(60):
        await segment.append(entry(i, (b"x" * 200,)))
        await other.append(entry(i, (b"y" * 200,)))
    await store.close()
    paths, others = log_files(store, name()), log_files(store, name(1))
    saved = tmp_path / "saved"
    shutil.copytree(paths[0].parent, saved)

    def restore() -> None:
        shutil.rmtree(paths[0].parent)
        shutil.copytree(saved, paths[0].parent)

    async def refused(text: str) -> None:
        with pytest.raises(CorruptionError, match=text):
            await read_values(tmp_path / "a")
        restore()

    paths[1].unlink()
    await refused("next file begins")
    paths[-1].unlink()
    await refused("is missing")
    paths[1].write_bytes(others[1].read_bytes())
    await refused(paths[1].name)
    paths[1].write_bytes(paths[2].read_bytes())
    await refused(paths[1].name)
    paths[1].write_bytes(paths[1].read_bytes()[:3000])
    await refused(paths[1].name)
    paths[1].write_bytes(b"")
    await refused(paths[1].name)
    (paths[0].parent / "readme.log").write_bytes(b"")
    await refused("readme.log")
    assert len(await read_values(tmp_path / "a")) == 60


async def test_no_byte_of_noise_makes_wrong_messages(tmp_path: Path) -> None:
    """Random damage of an unclosed file: an error, or a prefix of what was written."""
    (path,) = await write_log(tmp_path / "a", close="crash")
    image, rng = path.read_bytes(), random.Random(11)
    for _ in range(300):
        damaged = bytearray(image)
        for _ in range(rng.randint(1, 20)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            values = await read_values(tmp_path / "a")
        except EngineError:
            continue
        assert values == VALUES[: len(values)]


@pytest.mark.parametrize("close", ["crash", "clean", "sealed"])
async def test_files_of_a_newer_format_are_refused_and_left_alone(tmp_path: Path, close: str) -> None:
    (path,) = await write_log(tmp_path / "a", close=close)
    image = bytearray(path.read_bytes())
    struct.pack_into("<H", image, 4, VERSION + 1)
    struct.pack_into("<I", image, 60, crc32c(image[:60]))
    path.write_bytes(image)
    with pytest.raises(UnsupportedError, match=rf"{path.name}.*format {VERSION + 1}.*formats up to {VERSION}"):
        await read_values(tmp_path / "a")
    assert path.read_bytes() == image
