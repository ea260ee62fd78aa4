"""Infers a broker's ``messageDelayLevel`` from the queues of delayed messages.

A unit of ``SCHEDULE_TOPIC_XXXX`` has the delivery time as its tags code; the record has its store timestamp. A few
units of each queue are sampled, so that levels other than the default ones are no wrong tags codes without the option.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.layout import MAX_RECORD_BYTES, SCHEDULE_TOPIC, UNIT_BYTES
from rmq_formats.codecs.record import decode_record
from rmq_formats.codecs.record_layout import RECORD_FIXED_BYTES_V1
from rmq_formats.errors import FormatError, RmqError
from rmq_formats.read.queue_databases import open_queues
from rmq_formats.read.queue_units import QueueDatabase
from rmq_formats.storage.segments import Segment, Storage, list_segments, read_range
from rmq_formats.storage.store_files import StoreFiles

SAMPLED_UNITS: Final = 8  # units sampled of each level, in a row
_SAMPLED_FILES: Final = 8  # files sampled of each level: the records of its last units may be lost
MAX_DELAY_MS: Final = 366 * 86_400_000
MAX_LEVELS: Final = 1000


def infer_delay_levels(store: StoreFiles, segments: Sequence[Segment], default: tuple[int, ...]) -> tuple[int, ...]:
    """Infer the levels, in ms: the default ones, unless half the queues of delayed messages agree on others.

    The queues are files, or a RocksDB; one that cannot be opened is passed over.
    """
    delays: Mapping[int, Iterable[int]] = sample_file_delays(store, segments)
    database = store.layouts.only_queue_database
    if database is not None:
        with suppress(RmqError), open_queues(store.storage, database) as opened_database:
            delays = sample_database_delays(opened_database)
    return infer_levels_from_delays(delays, default)


def sample_file_delays(store: StoreFiles, segments: Sequence[Segment]) -> dict[int, list[int]]:
    """Return the delays of a few messages of each level, in ms, by the files of their queues."""
    try:
        entries = store.storage.entries(f"{paths.consumequeue_dir(store.root)}/{SCHEDULE_TOPIC}")
    except RmqError:
        return {}
    numbers = (paths.parse_queue_id(entry.name) for entry in entries if entry.is_directory)
    queue_ids = sorted(number for number in numbers if number is not None and number < MAX_LEVELS)
    return {queue_id: list(_delays(store, segments, queue_id)) for queue_id in queue_ids}


def sample_database_delays(database: QueueDatabase) -> dict[int, list[int]]:
    """Return the delays of the last messages of each level, in ms. Raises FormatError: a damaged database."""
    levels = [level for _, level in database.queues(SCHEDULE_TOPIC) if 0 <= level < MAX_LEVELS]
    delays_ms: dict[int, list[int]] = {level: [] for level in levels}
    for level in levels:
        begin = max(0, (database.last_offset(SCHEDULE_TOPIC, level) or 0) - SAMPLED_UNITS)
        for _, units in database.units(SCHEDULE_TOPIC, level, begin):
            delays = units["tags_code"].astype(np.int64) - units["store_timestamp"].astype(np.int64)
            delays_ms[level] += delays[(delays > 0) & (delays <= MAX_DELAY_MS)].tolist()
    return delays_ms


def infer_levels_from_delays(delays: Mapping[int, Iterable[int]], default: tuple[int, ...]) -> tuple[int, ...]:
    """Infer the levels from delays of messages, in ms, by level; the default ones, unless half of them agree."""
    counts = {level: Counter(level_delays) for level, level_delays in delays.items()}
    commonest = {level: delay_counts.most_common(1)[0] for level, delay_counts in counts.items() if delay_counts}
    deviating = {
        level: delay for level, (delay, _) in commonest.items() if level >= len(default) or default[level] != delay
    }
    units = sum(commonest[level][1] for level in deviating)
    if 2 * len(deviating) < len(commonest) or units < 2:  # the first levels of many are the default ones
        return default
    levels = [*default, *([default[-1]] * (max(deviating) + 1 - len(default)))]
    for level, delay in deviating.items():
        levels[level] = delay
    return tuple(levels)


def _delays(store: StoreFiles, segments: Sequence[Segment], queue_id: int) -> Iterator[int]:
    """Read the delays of a few messages of one level: the last messages whose records are still in the log."""
    sample_count = 0
    try:
        directory = paths.queue_dir(paths.consumequeue_dir(store.root), SCHEDULE_TOPIC, queue_id)
        files = list_segments(store.storage, directory)
        for file in [*reversed(files[1 - _SAMPLED_FILES :]), *files[: 1 - _SAMPLED_FILES][:1]]:
            for unit in _some_units(store.storage, file.path):
                stored_ms = _stored_ms(store.storage, segments, unit)
                if stored_ms is not None and 0 < unit.tags_code - stored_ms <= MAX_DELAY_MS:
                    sample_count += 1
                    yield unit.tags_code - stored_ms
                    if sample_count == SAMPLED_UNITS:
                        return
            if sample_count:
                return
    except RmqError:
        return


def _some_units(storage: Storage, path: str) -> Iterator[Unit]:
    """Sample units of a file at four places, from its end on."""
    with storage.open(path) as file:
        units = file.data_end() // UNIT_BYTES
        for end in dict.fromkeys([units, units * 2 // 3, units // 3, min(units, SAMPLED_UNITS)]):
            begin = max(0, end - SAMPLED_UNITS)
            data = read_range(file, begin * UNIT_BYTES, (end - begin) * UNIT_BYTES)
            for at in range(0, len(data) // UNIT_BYTES * UNIT_BYTES, UNIT_BYTES):
                yield Unit.decode(data, at)


def _stored_ms(storage: Storage, segments: Sequence[Segment], unit: Unit) -> int | None:
    """Read the store timestamp of the record that a unit names, if it is a sound one of that queue's topic."""
    if not RECORD_FIXED_BYTES_V1 <= unit.size <= MAX_RECORD_BYTES:
        return None
    for segment in segments:  # a misplaced file may overlap the right one
        if segment.start_offset <= unit.physical_offset and unit.physical_offset + unit.size <= segment.end_offset:
            with storage.open(segment.path) as file:
                data = read_range(file, unit.physical_offset - segment.start_offset, unit.size)
            try:
                message = decode_record(data, physical_offset=unit.physical_offset)
            except FormatError:
                continue
            if message.topic == SCHEDULE_TOPIC:
                return message.store_timestamp_ms
    return None
