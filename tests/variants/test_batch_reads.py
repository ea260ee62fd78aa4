"""Messages of batch queues by their queue offsets: the record whose messages hold the offset, and its messages."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rmq_formats.codecs.variants.batch_consumequeue import BATCH_UNIT_DTYPE, used_count
from rmq_formats.codecs.variants.inner_batch import inner_messages, is_inner_batch
from rmq_formats.errors import FormatError
from rmq_formats.spark.commitlog.source import CommitLogSource
from rmq_formats.store import Store
from tests.variants.test_sources import rows_of

Variant = Callable[[str], Path]


def units(queue: Path) -> np.ndarray:
    """The units of a batch queue, as Java wrote them."""
    found = [np.frombuffer(path.read_bytes(), dtype=BATCH_UNIT_DTYPE) for path in sorted(queue.iterdir())]
    return np.concatenate([part[: used_count(part)] for part in found])


def queues(store: Path) -> list[tuple[str, int, np.ndarray]]:
    found = sorted((store / "batchconsumequeue").glob("*/*"))
    return [(queue.parent.name, int(queue.name), units(queue)) for queue in found]


def test_each_offset_gives_the_record_whose_unit_holds_it(golden: Variant) -> None:
    store = golden("bcq") / "store"
    for topic, queue_id, own in queues(store):
        ends = own["base_offset"] + own["batch_size"]
        assert own["batch_size"].max() > 1
        for offset in range(0, int(ends[-1]), 5):
            (record,) = Store(store).query(topic=topic, queue_id=queue_id, offset=offset)
            assert record.physical_offset == own["physical_offset"][np.searchsorted(ends, offset, side="right")]
        assert Store(store).query(topic=topic, queue_id=queue_id, offset=int(ends[-1])) == []


def test_ranges_take_the_batches_that_reach_into_them(golden: Variant) -> None:
    store = golden("bcq") / "store"
    topic, queue_id, own = queues(store)[0]
    batch = own[own["batch_size"] > 2][0]
    begin, end = int(batch["base_offset"]) + 1, int(batch["base_offset"]) + 2
    expected = [int(batch["physical_offset"])]
    assert [message.physical_offset for message in Store(store).messages(topic, queue_id, begin, end)] == expected
    options = {
        "assign": json.dumps({topic: [queue_id]}), "startingOffsets": json.dumps({topic: {str(queue_id): begin}}),
        "endingOffsets": json.dumps({topic: {str(queue_id): end}}),
    }  # fmt: skip
    assert [row["physical_offset"] for row in rows_of(CommitLogSource, store, **options)] == expected


def test_inner_messages_are_numbered_and_whole(golden: Variant) -> None:
    store = golden("bcq") / "store"
    checked = 0
    for message in Store(store).messages():
        if not is_inner_batch(message):
            continue
        found = inner_messages(message)
        assert len(found) == int(message.properties["INNER_NUM"])
        assert [one.queue_offset - int(message.properties["INNER_BASE"]) for one in found] == list(range(len(found)))
        assert all(one.properties["UNIQ_KEY"] and one.body for one in found)
        checked += len(found)
    assert checked > 100


def test_a_batch_that_is_cut_anywhere_is_an_error(golden: Variant) -> None:
    message = next(filter(is_inner_batch, Store(golden("bcq") / "store").messages()))
    whole = inner_messages(message)
    ends = {0}
    for size in range(len(message.body)):
        try:
            part = inner_messages(replace(message, body=message.body[:size]))
        except FormatError:
            continue
        assert part == whole[: len(part)]
        ends.add(size)
    assert len(ends) == len(whole)
    with pytest.raises(FormatError, match="at byte 0 of the body has a length that lies"):
        inner_messages(replace(message, body=b"\xff" * len(message.body)))
