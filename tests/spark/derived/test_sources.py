"""``rmq_consumequeue`` and ``rmq_index``: units and entries as the files hold them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.index import IndexEntry, IndexHeader, entry_position
from rmq_formats.codecs.layout import UNIT_BYTES
from tests.conftest import GoldenSettings
from tests.spark.conftest import Load

pytestmark = pytest.mark.spark


def units(store: Path) -> list[tuple[str, int, int, int, int, int, int]]:
    found = []
    for path in (store / "consumequeue").glob("*/*/*"):
        data, base = path.read_bytes(), int(path.name) // UNIT_BYTES
        for number in range(len(data) // UNIT_BYTES):
            unit = Unit.decode(data, number * UNIT_BYTES)
            if unit.is_written and not unit.names_no_record:
                place = (path.parent.parent.name, int(path.parent.name), base + number)
                found.append((*place, unit.physical_offset, unit.size, unit.tags_code, 1))
    return sorted(found)


@pytest.mark.parametrize("name", ["mixed", "exotic_crc"])
def test_units_of_a_golden_store_are_all_there(load: Load, golden: Callable[[str], Path], name: str) -> None:
    store = golden(name) / "store"
    rows = load(store, "rmq_consumequeue", minPartitions="5").collect()
    assert sorted(tuple(row) for row in rows) == units(store)


def test_units_of_some_queues_and_offsets(load: Load, golden: Callable[[str], Path]) -> None:
    store = golden("mixed") / "store"
    frame = load(
        store,
        "rmq_consumequeue",
        assign='{"Orders":[1]}',
        startingOffsets='{"Orders":{"1":95}}',
        endingOffsets='{"Orders":{"1":130}}',
        columns="queue_offset,tags_code",
    )
    assert frame.columns == ["queue_offset", "tags_code"]
    wanted = [unit for unit in units(store) if unit[:2] == ("Orders", 1) and 95 <= unit[2] < 130]
    assert sorted(tuple(row) for row in frame.collect()) == [(unit[2], unit[5]) for unit in wanted]
    assert load(store, "rmq_consumequeue", subscribePattern="T.").select("topic").distinct().count() == 1
    assert load(store, "rmq_consumequeue", subscribe="Nope").count() == 0


@pytest.mark.long
def test_what_dispatch_never_writes_is_a_row_is_left_out_or_stops_the_read(
    load: Load, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    store = shutil.copytree(golden("mixed") / "store", tmp_path / "store")
    path = min((store / "consumequeue" / "Orders" / "1").iterdir())
    data = bytearray(path.read_bytes())
    data[60:80] = Unit(-5, 10, 7).encode()
    path.write_bytes(data)
    count = len(units(golden("mixed") / "store"))
    frame = load(store, "rmq_consumequeue")
    assert frame.count() == count
    assert [row.queue_offset for row in frame.filter("physical_offset = -5").collect()] == [3]
    assert load(store, "rmq_consumequeue", mode="DROPMALFORMED").count() == count - 1
    with pytest.raises(PySparkException, match=r"Orders/1/0{20}: not a ConsumeQueue unit at offset 60"):
        load(store, "rmq_consumequeue", mode="FAILFAST").count()


@pytest.mark.parametrize("name", ["mixed", "exotic"])
@pytest.mark.long
def test_entries_of_a_golden_store_are_all_there(
    load: Load, golden: Callable[[str], Path], name: str, golden_settings: dict[str, GoldenSettings]
) -> None:
    store, slots = golden(name) / "store", golden_settings[name].index_slots
    expected = []
    for path in (store / "index").iterdir():
        image = path.read_bytes()
        header = IndexHeader.decode(image)
        for number in range(1, header.index_count):
            entry = IndexEntry.decode(image, entry_position(number, slots))
            second = header.begin_timestamp_ms + entry.seconds * 1000
            expected.append(
                (
                    path.name,
                    number,
                    entry.key_hash % slots,
                    entry.key_hash,
                    entry.physical_offset,
                    second,
                    entry.previous,
                )
            )
    frame = load(store, "rmq_index", splitBytes="10k").withColumn("store_timestamp", sf.unix_millis("store_timestamp"))
    assert sorted(tuple(row) for row in frame.collect()) == sorted(expected)


@pytest.mark.long
def test_a_store_without_derived_files_has_no_rows(load: Load, tmp_path: Path) -> None:
    assert load(tmp_path, "rmq_consumequeue").collect() == []
    assert load(tmp_path, "rmq_index").collect() == []
    for source in ("rmq_consumequeue", "rmq_index"):
        with pytest.raises(PySparkException, match="no such store"):
            load(tmp_path / "none", source).count()


def test_index_entries_lead_to_their_records(load: Load, golden: Callable[[str], Path]) -> None:
    store = golden("mixed") / "store"
    entries = load(store, "rmq_index", columns="physical_offset,key_hash")
    messages = load(store, columns="physical_offset,topic,uniq_key")
    hashed = messages.withColumn("key_hash", sf.expr("rmq_key_hash(topic, uniq_key)"))
    without = hashed.filter("uniq_key IS NOT NULL").join(entries, ["physical_offset", "key_hash"], "left_anti")
    assert without.count() == 0
