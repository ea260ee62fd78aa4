"""The units of a queue by one port, whatever the layout: ends, and the message at an offset, as all units tell them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rmq_formats.read.queue_choice import StoreQueues, choose_queues, open_units
from rmq_formats.read.queue_units import QueueUnits
from rmq_formats.storage.store_files import open_store
from rmq_offline.spark.consumequeue_source import ConsumeQueueSource
from tests.layouts.test_sources import rows_of

Golden = Callable[[str], Path]
LAYOUTS = ["mixed_551", "bcq", "rocksdb", "lmq"]


def each_queue(store: Path, queues: StoreQueues) -> Iterator[tuple[QueueUnits, np.ndarray]]:
    """The units of each queue, with rows of queue offset, end offset and physical offset of all its messages."""
    units: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for row in rows_of(ConsumeQueueSource, store):
        begin = row["queue_offset"]
        queue = units.setdefault((row["topic"], row["queue_id"]), [])
        queue.append((begin, begin + row["batch_size"], row["physical_offset"]))
    for name, rows in units.items():
        queue = queues.units_of(*name)
        assert queue is not None
        yield queue, np.array(sorted(rows))


@pytest.mark.parametrize("name", LAYOUTS)
def test_both_ends_and_each_message_are_those_of_all_units(name: str, golden: Golden) -> None:
    files = open_store(str(golden(name) / "store"))
    count = 0
    with open_units(files, choose_queues(files, wants_light=True)) as queues:
        for queue, units in each_queue(golden(name) / "store", queues):
            begins, ends, places = units.T
            last = queue.last_unit()
            assert last is not None
            assert (last.queue_offset, last.end_offset, last.physical_offset) == tuple(units[-1])
            assert queue.max_offset() == ends[-1]
            assert queue.max_offset(int(places[-1])) == ends[places < places[-1]].max(initial=0)
            for bound in (0, int(places[len(places) // 2]), int(places[-1])):
                first = queue.first_since(bound)
                assert first is not None
                assert (first.queue_offset, first.physical_offset) == tuple(units[places >= bound][0][[0, 2]])
            assert queue.first_since(int(places[-1]) + 1) is None
            for offset in range(int(begins[0]), int(ends[-1])):
                message = queue.first_message(offset, int(ends[-1]))
                assert message is not None
                assert message.physical_offset == places[np.searchsorted(ends, offset, side="right")]
            records, record_places = queue.named_records(int(places[0]), int(places[-1]) + 1)
            assert list(zip(records.tolist(), record_places.tolist(), strict=True)) == list(
                zip(places.tolist(), begins.tolist(), strict=True)
            )
            count += 1
    assert count > 4


def test_a_queue_that_is_not_there_has_no_units(golden: Golden) -> None:
    for name in ("mixed_551", "bcq"):
        files = open_store(str(golden(name) / "store"))
        with open_units(files, choose_queues(files)) as queues:
            assert queues.units_of("Orders", 4000) is None
            assert queues.units_of("../config", 0) is None
