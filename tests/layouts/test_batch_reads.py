"""Messages of batch queues by their queue offsets: the record whose messages hold the offset, and its messages."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rmq_formats.codecs.batch_consumequeue import (
    BATCH_UNIT_BYTES,
    BATCH_UNIT_DTYPE,
    count_messages,
    inner_messages,
    is_inner_batch,
    used_count,
)
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.errors import FormatError
from rmq_formats.store import Store
from rmq_offline.spark.commitlog_source import CommitLogSource
from rmq_offline.spark.consumequeue_source import ConsumeQueueSource
from tests.layouts.test_sources import rows_of
from tests.read.test_lag import lag

Golden = Callable[[str], Path]


def units(queue: Path) -> np.ndarray:
    """The units of a batch queue, as Java wrote them."""
    found = [np.frombuffer(path.read_bytes(), dtype=BATCH_UNIT_DTYPE) for path in sorted(queue.iterdir())]
    return np.concatenate([part[: used_count(part)] for part in found])


def queues(store: Path) -> list[tuple[str, int, np.ndarray]]:
    found = sorted((store / "batchconsumequeue").glob("*/*"))
    return [(queue.parent.name, int(queue.name), units(queue)) for queue in found]


@pytest.mark.long
def test_each_offset_gives_the_record_whose_unit_holds_it(golden: Golden) -> None:
    store = golden("bcq") / "store"
    for topic, queue_id, own in queues(store):
        ends = own["base_offset"] + own["batch_size"]
        assert own["batch_size"].max() > 1
        for offset in range(0, int(ends[-1]), 5):
            (record,) = Store(store).query(topic=topic, queue_id=queue_id, offset=offset)
            assert record.physical_offset == own["physical_offset"][np.searchsorted(ends, offset, side="right")]
        assert Store(store).query(topic=topic, queue_id=queue_id, offset=int(ends[-1])) == []


def test_ranges_take_the_batches_that_reach_into_them(golden: Golden) -> None:
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


def test_inner_messages_are_numbered_and_whole(golden: Golden) -> None:
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


def test_a_batch_that_is_cut_anywhere_is_an_error(golden: Golden) -> None:
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


def test_each_unit_of_a_batch_queue_is_a_row(golden: Golden) -> None:
    store = golden("bcq") / "store"
    found = rows_of(ConsumeQueueSource, store)
    assert {row["batch_size"] for row in found if not row["topic"].startswith("Batch")} == {1}
    for topic, queue_id, own in queues(store):
        rows = [row for row in found if (row["topic"], row["queue_id"]) == (topic, queue_id)]
        assert [row["queue_offset"] for row in rows] == own["base_offset"].tolist()
        for name in ("physical_offset", "size", "tags_code", "batch_size"):
            assert [row[name] for row in rows] == own[name].tolist()


def test_units_are_chosen_by_the_places_of_their_messages(golden: Golden) -> None:
    store = golden("bcq") / "store"
    topic, queue_id, own = queues(store)[0]
    batch = own[own["batch_size"] > 2][1]
    begin = int(batch["base_offset"]) + 1
    options = {
        "assign": json.dumps({topic: [queue_id]}), "startingOffsets": json.dumps({topic: {str(queue_id): begin}}),
        "endingOffsets": json.dumps({topic: {str(queue_id): begin + 1}}),
    }  # fmt: skip
    rows = rows_of(ConsumeQueueSource, store, **options)
    assert [row["queue_offset"] for row in rows] == [batch["base_offset"]]


@pytest.mark.parametrize("tasks", ["1", "1000"])
def test_a_unit_that_is_none_ends_the_file_or_is_an_error(tasks: str, golden_copy: Golden) -> None:
    store = golden_copy("bcq")
    topic, queue_id, own = queues(store)[0]
    path = min((store / "batchconsumequeue" / topic / str(queue_id)).iterdir())
    data = bytearray(path.read_bytes())
    data[2 * BATCH_UNIT_BYTES : 2 * BATCH_UNIT_BYTES + 8] = b"\xff" * 8
    path.write_bytes(data)
    options = {"assign": json.dumps({topic: [queue_id]}), "minPartitions": tasks}
    offsets = [row["queue_offset"] for row in rows_of(ConsumeQueueSource, store, **options)]
    assert offsets == [*own["base_offset"][:2].tolist(), *own["base_offset"][len(data) // BATCH_UNIT_BYTES :].tolist()]
    with pytest.raises(FormatError, match="not a BatchConsumeQueue unit"):
        rows_of(ConsumeQueueSource, store, mode="FAILFAST", **options)


@pytest.mark.parametrize("is_dirty", [False, True], ids=["closed", "killed"])
def test_groups_are_behind_by_messages_of_batch_queues(golden_copy: Golden, *, is_dirty: bool) -> None:
    store = golden_copy("bcq")
    topic, queue_id, own = queues(store)[0]
    ends = own["base_offset"] + own["batch_size"]
    middle = own[own["batch_size"] > 2][-1]  # the group has read a part of a batch
    committed = int(middle["base_offset"]) + 1
    table = {f"{topic}@g": {str(queue_id): committed}}
    (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}), "utf-8")
    if is_dirty:
        (store / "abort").touch()
        (store / "checkpoint").write_bytes(Checkpoint(1, 1, 1, 0, 0).encode())
        for path in sorted((store / "batchconsumequeue" / topic / str(queue_id)).iterdir())[1:]:
            path.unlink()  # what was not forced
    (row,) = [row for row in lag(store) if row["queue_id"] == queue_id]
    assert (row["min_offset"], row["max_offset"]) == (int(own["base_offset"][0]), int(ends[-1]))
    assert (row["committed_offset"], row["lag_messages"]) == (committed, int(ends[-1]) - committed)
    assert (row["next_timestamp"], row["max_timestamp"]) == (middle["store_timestamp"], own["store_timestamp"][-1])


def test_the_messages_of_a_batch_are_counted_and_cut_ones_are_not(golden: Golden) -> None:
    bodies = [one.body for one in Store(golden("bcq") / "store").messages() if is_inner_batch(one)]
    assert [count_messages(body, 999) for body in bodies] == [
        len(inner_messages(one)) for one in Store(golden("bcq") / "store").messages() if is_inner_batch(one)
    ]
    body = max(bodies, key=lambda body: count_messages(body, 999))
    first = int.from_bytes(body[:4], "big")
    assert count_messages(body, 999) > 1
    assert [count_messages(body[:cut], 999) for cut in range(first + 1)] == [0] * first + [1]
    for at in (0, 16):  # the sizes of the first message and of its body
        for wrong in (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"):
            assert count_messages(body[:at] + wrong + body[at + 4 :], 999) == 0
