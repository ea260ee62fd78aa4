"""Recovers the queue places of lost messages from the ConsumeQueue units that still name them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue import UNIT_DTYPE
from rmq_formats.codecs.layout import BLANK_BYTES, UNIT_BYTES
from rmq_formats.errors import StoreError
from rmq_formats.repair.filler import MIN_BYTES, Fill, Place, Stretch, placeholder_bytes
from rmq_formats.storage.queue_files import walk_queues
from rmq_formats.storage.segments import LocalStorage, Segment, Storage, opened, read_range

_MAX_FILE_BYTES: Final = 1 << 30  # the original's have 6 MB; one of a terabyte is none
# The broker itself consumes these, and would take a placeholder for a message of its own.
_OWN_TOPICS: Final = ("RMQ_SYS_", "SCHEDULE_TOPIC_")


def with_places(root: str, stretches: Sequence[Stretch]) -> list[Stretch]:
    """Add to each stretch the places of the messages that were lost in it.

    A stretch up to its file's end is split in two if it has places: one with them, and the end behind the last.

    Args:
        root: of the store.
        stretches: in log order.
    """
    kept = [stretch for stretch in stretches if stretch.fill in {Fill.FILLER, Fill.END}]
    begins = np.array([stretch.physical_offset for stretch in kept], dtype=np.int64)
    ends = begins + np.array([stretch.size for stretch in kept], dtype=np.int64)
    found: dict[int, list[Place]] = {}
    for topic, queue_id, file in _queue_files(LocalStorage(), root) if kept else ():
        units = _units(file.path)
        offsets, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
        at = np.searchsorted(begins, offsets, side="right") - 1
        is_lost = (at >= 0) & (sizes > 0) & (offsets + sizes <= ends[at])
        for row in np.flatnonzero(is_lost).tolist():
            place = Place(int(offsets[row]), int(sizes[row]), topic, queue_id, file.start_offset // UNIT_BYTES + row)
            found.setdefault(int(at[row]), []).append(place)
    numbers = {id(stretch): number for number, stretch in enumerate(kept)}
    return [part for stretch in stretches for part in _placed(stretch, found.get(numbers.get(id(stretch), -1), []))]


def _queue_files(storage: Storage, root: str) -> Iterator[tuple[str, int, Segment]]:
    """Topic, queue id and files of queues whose places may be kept."""
    for queue in walk_queues(storage, paths.consumequeue_dir(root)):
        if not queue.topic.upper().startswith(_OWN_TOPICS):
            yield from ((queue.topic, queue.queue_id, file) for file in queue.segments)


def _units(path: str) -> NDArray[np.void]:
    """Read a queue file's units up to the last that is not zero; none where it is no file, as a pipe."""
    try:
        with opened(LocalStorage(), path) as file:
            data = read_range(file, 0, min(file.data_end(), _MAX_FILE_BYTES))
    except StoreError:  # verify tells of it, and a rebuild makes it anew
        return np.zeros(0, dtype=UNIT_DTYPE)
    padded = data + bytes(-len(data) % UNIT_BYTES)  # the last unit may end in zeros
    return np.frombuffer(padded, dtype=UNIT_DTYPE)


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
    """Select the places that leave room for fillers between them: damaged units may overlap, or name half a record."""
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
