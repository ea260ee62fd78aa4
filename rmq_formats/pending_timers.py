"""Lists the pending timer messages of a store at rest as an Arrow table.

Pending is what ``timerlog`` has a unit of that the checkpoint does not count as delivered, and what stands in
the timer topic behind it. A broker that was killed may have delivered some of it since its last checkpoint.
"""

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_formats.arrow.schema import TIMERS, TIMESTAMP
from rmq_formats.codecs.layout import PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC
from rmq_formats.codecs.paths import config_dir, parse_segment_name
from rmq_formats.codecs.timer import (
    FLAG_ROLL,
    MAX_FLAGS,
    PROPERTY_DELETED_KEY,
    PROPERTY_OUT_MS,
    TIMER_UNIT_BYTES,
    UNIT_DTYPE,
    TimerCheckpoint,
)
from rmq_formats.codecs.topics import TIMER_TOPIC
from rmq_formats.errors import StoreNotFoundError
from rmq_formats.store import Store

PENDING: Final = pa.schema([column for column in TIMERS if column.name not in {"cluster", "broker_name"}])
_COLUMNS: Final = ("queue_offset", "physical_offset", "size", "uniq_key", "properties", "store_timestamp")
_MAX_TIME_MS: Final = ((1 << 63) - 1) // 1000
_MAX_QUEUE_ID: Final = (1 << 31) - 1


def pending_timers(store: str) -> pa.Table:
    """Read the timer messages of a store that are not delivered yet, a row each, the next one first.

    Columns: ``deliver_timestamp`` (the start of the interval after which it is delivered), ``topic`` and
    ``queue_id`` of its destination, ``uniq_key``, its record's ``physical_offset``, ``size`` and
    ``store_timestamp``, ``rolls`` (it is stored again before), ``is_recalled``, ``is_taken_in`` (``timerlog`` has
    a unit of it). Recalls are no rows.

    Raises:
        StoreNotFoundError: there is no store, or no CommitLog in it.
    """
    if not Path(store).is_dir():
        raise StoreNotFoundError(f"{store}: no such directory")
    checkpoint = _checkpoint(store)
    messages = pa.Table.from_batches(Store(store).arrow(_COLUMNS, topic=TIMER_TOPIC))
    units = _units(Path(store) / "timerlog", checkpoint.last_read_time_ms)
    place = pc.index_in(messages["physical_offset"], value_set=units["physical_offset"])
    messages = messages.append_column("flags", pc.take(units["flags"], place))  # null for a message without a unit
    unread = pc.greater_equal(messages["queue_offset"], checkpoint.last_timer_queue_offset)
    waiting = messages.filter(pc.or_(pc.is_valid(messages["flags"]), unread))
    return _described(waiting).sort_by([("deliver_timestamp", "ascending"), ("physical_offset", "ascending")])


def _checkpoint(store: str) -> TimerCheckpoint:
    path = Path(config_dir(store)) / "timercheck"
    return TimerCheckpoint.decode(path.read_bytes()) if path.exists() else TimerCheckpoint()


def _units(directory: Path, read_time_ms: int) -> pa.Table:
    """Read physical offset and flags of the ``timerlog`` units due at a time or later, of each message the last."""
    parts = [np.zeros(0, dtype=UNIT_DTYPE)]
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        count = path.stat().st_size // TIMER_UNIT_BYTES
        if not count or parse_segment_name(path.name) is None:
            continue
        units = np.memmap(path, dtype=UNIT_DTYPE, mode="r", shape=(count,))
        is_unit = (units["unit_bytes"] == TIMER_UNIT_BYTES) & (units["flags"] > 0) & (units["flags"] <= MAX_FLAGS)
        parts.append(units[is_unit & (units["write_time_ms"] + units["delay_ms"] >= read_time_ms)])
    newest = np.concatenate(parts)[::-1]
    offsets, last = np.unique(newest["physical_offset"].astype(np.int64), return_index=True)
    flags = newest["flags"][last].astype(np.int32)
    return pa.table({"physical_offset": offsets, "flags": flags})


def _numbers(texts: pa.ChunkedArray, most: int) -> pa.ChunkedArray:
    """Parse numbers of up to 18 digits; null for what is none, or larger than allowed."""
    is_number = pc.match_substring_regex(texts, "^[0-9]{1,18}$")
    numbers = pc.cast(pc.if_else(is_number, texts, None), pa.int64())
    return pc.if_else(pc.less_equal(numbers, most), numbers, None)


def _described(waiting: pa.Table) -> pa.Table:
    """Build the result table from the waiting rows."""

    def property_of(name: str) -> pa.ChunkedArray:
        return pc.map_lookup(waiting["properties"], name, "first")

    topic, recalls = property_of(PROPERTY_REAL_TOPIC), property_of(PROPERTY_DELETED_KEY)
    key = pc.binary_join_element_wise(topic, waiting["uniq_key"], "+")
    due_us = pc.multiply(_numbers(property_of(PROPERTY_OUT_MS), _MAX_TIME_MS), 1000)
    is_taken_in = pc.is_valid(waiting["flags"])
    columns = {
        "deliver_timestamp": pc.cast(due_us, TIMESTAMP),
        "topic": topic,
        "queue_id": pc.cast(_numbers(property_of(PROPERTY_REAL_QUEUE_ID), _MAX_QUEUE_ID), pa.int32()),
        "uniq_key": waiting["uniq_key"],
        "physical_offset": waiting["physical_offset"],
        "size": waiting["size"],
        "store_timestamp": waiting["store_timestamp"],
        "rolls": pc.not_equal(pc.bit_wise_and(pc.fill_null(waiting["flags"], 0), FLAG_ROLL), 0),
        # Brokers from 5.4 on leave the topic out.
        "is_recalled": pc.or_(
            pc.is_in(key, value_set=pc.drop_null(recalls)),
            pc.is_in(key, value_set=pc.drop_null(pc.binary_join_element_wise(topic, recalls, "+"))),
        ),
        "is_taken_in": is_taken_in,
    }
    return pa.table(columns, schema=PENDING).filter(pc.is_null(recalls))
