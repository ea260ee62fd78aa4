"""Recovers the queue places of lost messages from the units that still name them: in files, or in RocksDB."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue import UNIT_DTYPE
from rmq_formats.codecs.layout import BLANK_BYTES, UNIT_BYTES
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.codecs.variants.batch_consumequeue import split_file
from rmq_formats.errors import FormatError, StoreError
from rmq_formats.read.variants.rocksdb_queues import opened_queues
from rmq_formats.repair.filler import MIN_BYTES, Fill, Place, Stretch, placeholder_bytes
from rmq_formats.storage import store_variants
from rmq_formats.storage.queue_files import walk_queues
from rmq_formats.storage.segments import LocalStorage, opened, read_range

_MAX_FILE_BYTES: Final = 1 << 30  # the original's have 6 MB; one of a terabyte is none
# The broker itself consumes these, and would take a placeholder for a message of its own.
_OWN_TOPICS: Final = ("RMQ_SYS_", "SCHEDULE_TOPIC_")


class _Units(NamedTuple):
    """Units of one queue.

    Attributes:
        topic: of the queue.
        queue_id: of the queue.
        queue_offsets: int64[n], in messages.
        physical_offsets: int64[n], of the records.
        sizes: int64[n], of the records, in bytes.
        batch_sizes: int64[n], messages of a unit of a batch queue; 0 in any other.
        is_of_batches: whether it is a batch queue.
    """

    topic: str
    queue_id: int
    queue_offsets: NDArray[np.int64]
    physical_offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    batch_sizes: NDArray[np.int64]
    is_of_batches: bool


@dataclass(frozen=True, slots=True)
class _Lost:
    """Places of the lost messages of a stretch: those of own queues, and those of light queues."""

    own: list[Place]
    light: list[Place]


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
    found: dict[int, _Lost] = {}
    for units in read_all_units(root) if kept else ():
        if not _may_keep(units):
            continue
        at = np.searchsorted(begins, units.physical_offsets, side="right") - 1
        is_lost = (at >= 0) & (units.sizes > 0) & (units.physical_offsets + units.sizes <= ends[at])
        for row in np.flatnonzero(is_lost).tolist():
            place = Place(
                int(units.physical_offsets[row]), int(units.sizes[row]), units.topic, units.queue_id,
                int(units.queue_offsets[row]), int(units.batch_sizes[row]),
            )  # fmt: skip
            lost = found.setdefault(int(at[row]), _Lost([], []))
            (lost.light if units.topic.startswith(LIGHT_QUEUE_PREFIX) else lost.own).append(place)
    places = {id(kept[number]): _with_light(lost) for number, lost in found.items()}
    return [part for stretch in stretches for part in _placed(stretch, places.get(id(stretch), []))]


def _with_light(lost: _Lost) -> list[Place]:
    """Join the places in light queues (LMQ) to those of the same record in its own queue.

    Where that has none, as where the broker consumes it itself, the record becomes one of the first light queue.
    """
    light: dict[tuple[int, int], list[Place]] = {}
    for place in lost.light:
        light.setdefault((place.physical_offset, place.size), []).append(place)
    joined = [_joined(place, light.pop((place.physical_offset, place.size), [])) for place in lost.own]
    return joined + [_joined(first, others) for first, *others in light.values()]


def _joined(place: Place, light: Iterable[Place]) -> Place:
    joined = replace(place, light=tuple((other.topic, other.queue_offset) for other in light))
    return joined if placeholder_bytes(joined) <= joined.size else place


def read_all_units(root: str) -> Iterator[_Units]:
    """Read the units of all queues, some at a time."""
    storage = LocalStorage()
    found = store_variants.recognise(storage, root)
    for queue in walk_queues(storage, paths.consumequeue_dir(root)):
        for file in queue.segments:
            units = _file_units(file.path)
            offsets = file.start_offset // UNIT_BYTES + np.arange(len(units), dtype=np.int64)
            yield _units_of(queue.topic, queue.queue_id, offsets, units)
    for queue in walk_queues(storage, paths.batch_consumequeue_dir(root)):
        for file in queue.segments:
            units, _ = split_file(np.frombuffer(_data(file.path), dtype=np.uint8))
            counts = units["batch_size"].astype(np.int64)
            yield _units_of(queue.topic, queue.queue_id, units["base_offset"].astype(np.int64), units, counts)
    database = store_variants.queue_database(root, found)
    if database is not None:
        with suppress(FormatError):  # verify tells of it, and a rebuild makes it anew
            yield from _database_units(storage, database)


def _database_units(storage: LocalStorage, path: str) -> Iterator[_Units]:
    with opened_queues(storage, path) as database:
        for topic, queue_id in database.queues():
            for offsets, units in database.units(topic, queue_id):
                yield _units_of(topic, queue_id, offsets, units)


def _may_keep(units: _Units) -> bool:
    return units.is_of_batches or not units.topic.upper().startswith(_OWN_TOPICS)


def _units_of(
    topic: str,
    queue_id: int,
    offsets: NDArray[np.int64],
    units: NDArray[np.void],
    batch_sizes: NDArray[np.int64] | None = None,
) -> _Units:
    counts = np.zeros(len(units), dtype=np.int64) if batch_sizes is None else batch_sizes
    physical_offsets, sizes = (units[name].astype(np.int64) for name in ("physical_offset", "size"))
    return _Units(topic, queue_id, offsets, physical_offsets, sizes, counts, batch_sizes is not None)


def _file_units(path: str) -> NDArray[np.void]:
    data = _data(path)
    padded = data + bytes(-len(data) % UNIT_BYTES)  # the last unit may end in zeros
    return np.frombuffer(padded, dtype=UNIT_DTYPE)


def _data(path: str) -> bytes:
    """Read a queue file up to its last byte that is not zero; nothing where it is no file, as a pipe."""
    try:
        with opened(LocalStorage(), path) as file:
            return read_range(file, 0, min(file.data_end(), _MAX_FILE_BYTES))
    except StoreError:  # verify tells of it, and a rebuild makes it anew
        return b""


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
            and place.size >= placeholder_bytes(place)
        ):  # fmt: skip
            places.append(place)
            taken.add(name)
            at = place.physical_offset + place.size
    return tuple(places)
