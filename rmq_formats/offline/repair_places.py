"""The places that lost messages had in their queues, as the units say that still name them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats import paths
from rmq_formats.errors import StoreError
from rmq_formats.layout import BLANK_BYTES, UNIT_BYTES
from rmq_formats.offline.repair_filler import MIN_BYTES, Fill, Place, Stretch, placeholder_bytes
from rmq_formats.segment import LocalStorage, Storage, list_segments, opened, read_range

_UNITS: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert _UNITS.itemsize == UNIT_BYTES
_MAX_FILE_BYTES: Final = 1 << 30  # the original's have 6 MB; one of a terabyte is none
# The broker itself consumes these, and would take a placeholder for a message of its own.
_OWN_TOPICS: Final = ("RMQ_SYS_", "SCHEDULE_TOPIC_")


def with_places(root: str, stretches: Sequence[Stretch]) -> list[Stretch]:
    """Give each stretch the places of the messages that were lost in it.

    A stretch up to its file's end becomes two where it has places: one with them, and the end behind the last.

    Args:
        root: of the store.
        stretches: in log order.
    """
    kept = [stretch for stretch in stretches if stretch.fill in {Fill.FILLER, Fill.END}]
    begins = np.array([stretch.physical_offset for stretch in kept], dtype=np.int64)
    ends = begins + np.array([stretch.size for stretch in kept], dtype=np.int64)
    found: dict[int, list[Place]] = {}
    for topic, queue_id, path, start in _queue_files(LocalStorage(), root) if kept else ():
        units = _units(path)
        offsets, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
        at = np.searchsorted(begins, offsets, side="right") - 1
        is_lost = (at >= 0) & (sizes > 0) & (offsets + sizes <= ends[at])
        for row in np.flatnonzero(is_lost).tolist():
            place = Place(int(offsets[row]), int(sizes[row]), topic, queue_id, start // UNIT_BYTES + row)
            found.setdefault(int(at[row]), []).append(place)
    numbers = {id(stretch): number for number, stretch in enumerate(kept)}
    return [part for stretch in stretches for part in _placed(stretch, found.get(numbers.get(id(stretch), -1), []))]


def _queue_files(storage: Storage, root: str) -> Iterator[tuple[str, int, str, int]]:
    """Topic, queue id, path and start of the files of queues whose places may be kept."""
    for topic in storage.entries(paths.consumequeue_dir(root)):
        if not topic.is_directory or topic.name.upper().startswith(_OWN_TOPICS):
            continue
        for queue in storage.entries(f"{paths.consumequeue_dir(root)}/{topic.name}"):
            if queue.is_directory and queue.name.isdecimal() and int(queue.name) < 1 << 31:
                directory = paths.queue_dir(paths.consumequeue_dir(root), topic.name, int(queue.name))
                for file in list_segments(storage, directory):
                    yield topic.name, int(queue.name), file.path, file.start_offset


def _units(path: str) -> NDArray[np.void]:
    """A queue file's units up to the last that is not zero; none where it is no file, as a pipe."""
    try:
        with opened(LocalStorage(), path) as file:
            data = read_range(file, 0, min(file.data_end(), _MAX_FILE_BYTES))
    except StoreError:  # verify tells of it, and a rebuild makes it anew
        return np.zeros(0, dtype=_UNITS)
    padded = data + bytes(-len(data) % UNIT_BYTES)  # the last unit may end in zeros
    return np.frombuffer(padded, dtype=_UNITS)


def _placed(stretch: Stretch, found: Sequence[Place]) -> Iterator[Stretch]:
    places = _fitting(stretch, found)
    if not places or stretch.fill is Fill.FILLER:
        yield replace(stretch, places=places)
        return
    size = places[-1].physical_offset + places[-1].size - stretch.physical_offset
    yield replace(stretch, size=size, held=min(size, stretch.held), fill=Fill.FILLER, places=places)
    yield replace(
        stretch, physical_offset=stretch.physical_offset + size, size=stretch.size - size,
        held=max(0, stretch.held - size),
    )  # fmt: skip


def _fitting(stretch: Stretch, found: Sequence[Place]) -> tuple[Place, ...]:
    """Places that leave room for fillers between them: damaged units may overlap, or name half a record."""
    places: list[Place] = []
    taken: set[tuple[str, int, int]] = set()
    at, end = stretch.physical_offset, stretch.physical_offset + stretch.size
    if stretch.fill is Fill.END:
        end -= BLANK_BYTES
    for place in sorted(found, key=lambda item: item.physical_offset):
        name = place.topic, place.queue_id, place.queue_offset
        behind = end - place.physical_offset - place.size
        fits_behind = behind >= 0 if stretch.fill is Fill.END else behind == 0 or behind >= MIN_BYTES
        before = place.physical_offset - at
        if (
            (before == 0 or before >= MIN_BYTES) and fits_behind and name not in taken
            and place.size >= placeholder_bytes(place.topic)
        ):  # fmt: skip
            places.append(place)
            taken.add(name)
            at = place.physical_offset + place.size
    return tuple(places)
