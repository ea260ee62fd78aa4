"""Lists the pending timer messages of a store at rest as an Arrow table.

A message is pending if ``timerlog`` has a unit that is not delivered according to the checkpoint, or if the message
stands after the checkpoint in the timer topic. A killed broker may have delivered messages since the checkpoint.
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
    """Read the timer messages of a store that are not delivered yet, by time of delivery.

    Columns: ``deliver_timestamp`` (start of the interval after which the message is delivered), ``topic`` and
    ``queue_id`` of the destination, ``uniq_key``, the record's ``physical_offset``, ``size`` and ``store_timestamp``,
    ``rolls`` (the message is stored again before), ``is_recalled``, ``is_taken_in`` (``timerlog`` has a unit of the
    message). Recalls are no rows.

    Raises:
        StoreNotFoundError: no such store, or no CommitLog.
    """
    if not Path(store).is_dir():
        raise StoreNotFoundError(f"{store}: no such directory")
    path = Path(config_dir(store)) / "timercheck"
    checkpoint = TimerCheckpoint.decode(path.read_bytes()) if path.exists() else TimerCheckpoint()
    messages = pa.Table.from_batches(Store(store).arrow(_COLUMNS, topic=TIMER_TOPIC))
    units = _units(Path(store) / "timerlog", checkpoint.last_read_time_ms)
    place = pc.index_in(messages["physical_offset"], value_set=units["physical_offset"])
    messages = messages.append_column("flags", pc.take(units["flags"], place))  # null for a message without a unit
    unread = pc.greater_equal(messages["queue_offset"], checkpoint.last_timer_queue_offset)
    waiting = messages.filter(pc.or_(pc.is_valid(messages["flags"]), unread))
    return _described(waiting).sort_by([("deliver_timestamp", "ascending"), ("physical_offset", "ascending")])


def _units(directory: Path, read_time_ms: int) -> pa.Table:
    """Read physical offset and flags of each message's last ``timerlog`` unit that is due at a time or later."""
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
    """Parse numbers of up to 18 digits; null for other texts, and for larger numbers than ``most``."""
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
    columns = {
        "deliver_timestamp": pc.cast(due_us, TIMESTAMP),
        "topic": topic,
        "queue_id": pc.cast(_numbers(property_of(PROPERTY_REAL_QUEUE_ID), _MAX_QUEUE_ID), pa.int32()),
        **{name: waiting[name] for name in ("uniq_key", "physical_offset", "size", "store_timestamp")},
        "rolls": pc.not_equal(pc.bit_wise_and(pc.fill_null(waiting["flags"], 0), FLAG_ROLL), 0),
        # Brokers from 5.4 on leave the topic out.
        "is_recalled": pc.or_(
            pc.is_in(key, value_set=pc.drop_null(recalls)),
            pc.is_in(key, value_set=pc.drop_null(pc.binary_join_element_wise(topic, recalls, "+"))),
        ),
        "is_taken_in": pc.is_valid(waiting["flags"]),
    }
    return pa.table(columns, schema=PENDING).filter(pc.is_null(recalls))
