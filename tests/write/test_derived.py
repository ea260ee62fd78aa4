"""ConsumeQueue and Index out of tables: the bytes that Java makes of the same log."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rmq_formats import Store
from rmq_formats.arrow.schema import CONSUMEQUEUE, TIMESTAMP, Mode
from rmq_formats.codecs.index import NO_TAGS
from rmq_formats.errors import StoreError, StoreSizeError
from rmq_formats.read.derived import plan_units, read_unit_ranges
from rmq_formats.read.query import Query
from rmq_formats.storage.store_files import open_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.write.derived import begin_derived, commit_derived, write_keys, write_units
from tests.conftest import GoldenSettings
from tests.support.oracles.index import index_keys
from tests.support.stores.rebuilt_stores import built, rebuild, small_store, snapshot, stored_messages
from tests.support.stores.store_files import tree

KEYS = pa.schema(
    [("topic", pa.string()), ("key", pa.string()), ("physical_offset", pa.int64()), ("store_timestamp", TIMESTAMP)]
)
QUEUES_ONLY = RebuildOptions(True, False, StoreSizes(1 << 30, 400, 0, 50, 20, ()))
INDEX_ONLY = RebuildOptions(False, True, StoreSizes(1 << 30, 400, 0, 50, 20, ()))


def sizes(settings: GoldenSettings, what: RebuildOptions) -> RebuildOptions:
    return RebuildOptions(
        what.consumequeue,
        what.index,
        StoreSizes(1 << 30, settings.consumequeue_file_bytes, 0, settings.index_slots, settings.index_entries, ()),
    )


def units_of(root: Path) -> list[pa.RecordBatch]:
    files = open_store(str(root))
    return [
        batch
        for ranges in plan_units(files, Query(), 1 << 20, 1)
        for batch in read_unit_ranges(files.root, ranges, tuple(CONSUMEQUEUE.names), Mode.PERMISSIVE)
    ]


def keys_of(store: Path, tags_from: int = NO_TAGS) -> pa.RecordBatch:
    found = [
        (message.topic, key, message.physical_offset, message.store_timestamp_ms * 1000)
        for message in stored_messages(store)
        for key in index_keys(message, tags_from)
    ]
    columns = zip(*found, strict=True)
    return pa.record_batch([pa.array(column, field.type) for column, field in zip(columns, KEYS, strict=True)], KEYS)


def write(root: Path, options: RebuildOptions, tasks: list[list[pa.RecordBatch]], *, overwrite: bool = False) -> int:
    begun = begin_derived(str(root), options, overwrite=overwrite)
    task = write_units if options.consumequeue else write_keys
    return commit_derived(begun, [piece for batches in tasks for piece in task(batches, begun)])


def parts(batches: list[pa.RecordBatch], seed: int) -> list[list[pa.RecordBatch]]:
    """The rows in some order, in three tasks."""
    table = pa.Table.from_batches(batches)
    shuffled = table.take(np.random.default_rng(seed).permutation(len(table))).combine_chunks().to_batches()
    third = len(table) // 3
    return [[b.slice(n * third, third if n < 2 else None) for b in shuffled] for n in range(3)]


def test_units_read_and_written_are_java_s(
    golden: Callable[[str], Path], golden_name: str, golden_settings: dict[str, GoldenSettings], tmp_path: Path
) -> None:
    expected = golden(golden_name) / "expected"
    options = sizes(golden_settings[golden_name], QUEUES_ONLY)
    batches = units_of(expected)
    count = write(tmp_path, options, parts(batches, 1))
    assert count == sum(map(len, batches))
    assert tree(tmp_path / "consumequeue") == tree(expected / "consumequeue")
    assert {path.name for path in tmp_path.iterdir()} == {"consumequeue", "lock"}


def test_keys_written_are_java_s_index(
    golden: Callable[[str], Path], golden_name: str, golden_settings: dict[str, GoldenSettings], tmp_path: Path
) -> None:
    directory = golden(golden_name)
    settings = golden_settings[golden_name]
    write(tmp_path, sizes(settings, INDEX_ONLY), [[keys_of(directory / "store", settings.tags_from)]])
    assert built(tmp_path).index == built(directory / "expected").index


def test_keys_are_put_into_the_order_of_the_log(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", 120)
    rebuild(store)
    write(tmp_path / "out", INDEX_ONLY, parts([keys_of(store)], 2))
    assert built(tmp_path / "out").index == built(store).index


def test_units_are_appended_to_queues_that_are_there(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", 120)
    rebuild(store)
    (whole,) = pa.Table.from_batches(units_of(store)).sort_by("physical_offset").combine_chunks().to_batches()
    write(tmp_path / "out", QUEUES_ONLY, [[whole.slice(0, 70)]])
    assert write(tmp_path / "out", QUEUES_ONLY, [[whole.slice(70)]]) == 120
    assert tree(tmp_path / "out" / "consumequeue") == tree(store / "consumequeue")
    before = snapshot(tmp_path / "out" / "consumequeue")
    with pytest.raises(StoreError, match=r"topic 'Topic\d', queue \d, queue offset \d+: .* has no place"):
        write(tmp_path / "out", QUEUES_ONLY, [[whole.slice(70, 1)]])
    assert snapshot(tmp_path / "out" / "consumequeue") == before
    write(tmp_path / "out", QUEUES_ONLY, [[whole.slice(70)]], overwrite=True)
    assert sum(map(len, units_of(tmp_path / "out"))) == 50


def test_queue_offsets_without_a_row_stay_a_gap(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", 120)
    rebuild(store)
    (whole,) = pa.Table.from_batches(units_of(store)).sort_by("physical_offset").combine_chunks().to_batches()
    rows = whole.filter(pa.array([not 40 <= number < 44 for number in range(len(whole))]))
    assert write(tmp_path / "out", QUEUES_ONLY, [[rows]]) == 116
    written = pa.Table.from_batches(units_of(tmp_path / "out")).sort_by("physical_offset")
    assert written.combine_chunks().to_batches()[0].equals(rows)


def test_keys_are_appended_in_files_of_their_own(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", 120)
    keys = keys_of(store)
    write(tmp_path / "out", INDEX_ONLY, [[keys.slice(0, 70)]])
    before = tree(tmp_path / "out" / "index")
    assert write(tmp_path / "out", INDEX_ONLY, [[keys.slice(70)]]) == len(keys) - 70
    after = tree(tmp_path / "out" / "index")
    assert {name: after[name] for name in before} == before
    assert min(after.keys() - before.keys()) > max(before)

    for path in (store / "commitlog").iterdir():
        (tmp_path / "out" / "commitlog").mkdir(exist_ok=True)
        (tmp_path / "out" / "commitlog" / path.name).write_bytes(path.read_bytes())
    for number in (0, 69, 70, 119):
        query = Query(topics=frozenset([f"Topic{number % 3}"]), key=f"key{number}")
        (found,) = Store(str(tmp_path / "out")).arrow(["keys"], query=query)
        assert found.column("keys").to_pylist() == [[f"key{number}"]]
    with pytest.raises(StoreError, match="an Index is in the order of the log"):
        write(tmp_path / "out", INDEX_ONLY, [[keys.slice(0, 1)]])


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("topic", None, "column topic: null in a row"),
        ("topic", "a/b", "topic 'a/b' cannot name a directory"),
        ("topic", "a b", "topic 'a b' has other characters than"),
        ("queue_id", -1, "queue_id -1 is negative"),
        ("queue_offset", -1, "column queue_offset: -1 is negative"),
        ("tags_code", None, "column tags_code: null in a row"),
    ],
)
def test_a_row_that_is_no_unit_is_reported(tmp_path: Path, column: str, value: object, told: str) -> None:
    row = {"topic": "T", "queue_id": 0, "queue_offset": 0, "physical_offset": 0, "size": 100, "tags_code": 0}
    batch = pa.RecordBatch.from_pylist([{**row, column: value}], CONSUMEQUEUE)
    with pytest.raises(StoreError, match=told):
        write(tmp_path, QUEUES_ONLY, [[batch]])
    assert not (tmp_path / "consumequeue").exists()


def test_files_of_another_size_are_not_added_to(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", 60)
    rebuild(store)
    before = snapshot(store)
    with pytest.raises(StoreSizeError, match="has 400 bytes, not 800"):
        begin_derived(str(store), RebuildOptions(True, False, StoreSizes(1 << 30, 800, 0, 50, 20, ())), overwrite=False)
    with pytest.raises(StoreSizeError, match=r"has 640 bytes, not \d+"):
        begin_derived(str(store), RebuildOptions(False, True, StoreSizes(1 << 30, 400, 0, 51, 20, ())), overwrite=False)
    assert snapshot(store) == before
