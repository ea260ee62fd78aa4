"""Sound bytes to mutate: files of the golden stores, and records out of them."""

import tarfile
from functools import cache
from pathlib import Path

import zstandard

from tests.support.oracles.commitlog_walk import Frame, walk

_ARCHIVES = Path(__file__).parents[2] / "golden"
_MAX_BYTES = 4096  # of a record that is a sample: larger ones only take longer


@cache
def golden_files(store: str) -> dict[str, bytes]:
    """Files of a golden store, by their names in it."""
    found = {}
    with (
        (_ARCHIVES / f"{store}.tar.zst").open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as plain,
        tarfile.open(fileobj=plain, mode="r|") as tar,
    ):
        for member in tar:
            data = tar.extractfile(member)
            if data is not None and member.name.startswith(f"{store}/store/"):
                found[member.name.removeprefix(f"{store}/store/")] = data.read()
    return found


@cache
def segments(store: str) -> tuple[tuple[int, bytes], ...]:
    """Physical offset and bytes of each file of a golden log."""
    files = golden_files(store)
    return tuple((int(name[10:]), files[name]) for name in sorted(files) if name.startswith("commitlog/"))


@cache
def records(*stores: str, most: int = 60) -> tuple[tuple[int, bytes], ...]:
    """Physical offset and bytes of some records of golden stores, spread over their logs."""
    found = []
    for store in stores:
        frames = [
            (item.physical_offset, data[item.physical_offset - start :][: item.size])
            for start, data in segments(store)
            for item in walk(data, start)
            if isinstance(item, Frame) and item.size <= _MAX_BYTES
        ]
        found += frames[:: max(1, len(frames) // most)]
    return tuple(found)


def files_under(store: str, directory: str, most_bytes: int = 1 << 16) -> tuple[bytes, ...]:
    """Files of a golden store below a directory, each up to some size."""
    files = golden_files(store)
    return tuple(files[name][:most_bytes] for name in sorted(files) if name.startswith(directory))
