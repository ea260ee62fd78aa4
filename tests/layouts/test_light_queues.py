"""Light queues (LMQ): a rebuild gives each the units that Java gives it, from the records' properties alone."""

import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_formats.codecs.properties import encode_properties
from rmq_formats.storage.rocksdb import open_rocksdb
from rmq_formats.storage.segments import LocalStorage
from rmq_offline.rebuild.tasks import RebuildOptions
from rmq_offline.tasks.store_sizes import StoreSizes
from tests.conftest import LAYOUT_STORES
from tests.support.stores.light_records import LightQueues, message, odd_records
from tests.support.stores.rebuilt_stores import (
    SMALL,
    Splits,
    built,
    by_codecs,
    commitlog_only,
    golden_options,
    live,
    rebuild,
)
from tests.support.stores.record_strategies import plain_message
from tests.support.stores.store_files import tree, write_commitlog

ODD = RebuildOptions(True, True, StoreSizes(65536, 400, 0, 50, 200, (1000,)))
Golden = Callable[[str], Path]


@pytest.mark.parametrize("splits", [1, 7])
def test_a_log_alone_gives_them_all(splits: int, golden: Golden, tmp_path: Path) -> None:
    commitlog_only(golden("lmq") / "store", tmp_path)
    report = rebuild(tmp_path, None, golden_options(LAYOUT_STORES["lmq"]), Splits(splits))
    assert (built(tmp_path), report.findings) == (built(golden("lmq") / "expected"), ())


def test_a_rebuild_in_place_replaces_them(golden_copy: Golden, golden: Golden) -> None:
    store = golden_copy("lmq")
    first = store / "consumequeue" / "%LMQ%device0" / "0" / f"{0:020d}"
    first.write_bytes(bytes(2000))
    (store / "consumequeue" / "%LMQ%device1").rename(store / "consumequeue" / "%LMQ%of nobody")
    rebuild(store, None, replace(golden_options(LAYOUT_STORES["lmq"]), from_log_alone=True))
    assert built(store) == built(golden("lmq") / "expected")


def test_a_light_queue_without_files_or_offsets_may_have_been_deleted(golden_copy: Golden, golden: Golden) -> None:
    store = golden_copy("lmq")
    shutil.rmtree(store / "consumequeue" / "%LMQ%device1")
    report = rebuild(store, None, golden_options(LAYOUT_STORES["lmq"]))
    assert [(item.kind.code, item.topic) for item in report.findings] == [("consumequeue.absent", "%LMQ%device1")]
    expected = {
        name: data for name, data in built(golden("lmq") / "expected").queues.items() if "/%LMQ%device1/" not in name
    }
    assert built(store).queues == expected


@pytest.mark.parametrize(("name", "ext_file_bytes"), [("lmq_odd", 0), ("lmq_odd_ext", 65536)])
@pytest.mark.parametrize("splits", [1, 9])
def test_odd_lists_are_read_as_java_reads_them(
    name: str, ext_file_bytes: int, splits: int, golden: Golden, tmp_path: Path
) -> None:
    options = replace(ODD, sizes=replace(ODD.sizes, consumequeue_ext_file_bytes=ext_file_bytes))
    report = rebuild(golden(name) / "store", tmp_path, options, Splits(splits))
    assert (built(tmp_path), report.findings) == (built(golden(name) / "expected"), ())


def test_the_odd_stores_are_of_the_records_in_the_tests(golden: Golden, tmp_path: Path) -> None:
    write_commitlog(tmp_path, odd_records(), 65536)
    for name in ("lmq_odd", "lmq_odd_ext"):
        assert tree(tmp_path / "commitlog") == tree(golden(name) / "store" / "commitlog")


@pytest.mark.parametrize("name", ["rocksdb_lmq", "rocksdb_crash"])
def test_the_units_are_those_of_a_broker_with_its_queues_in_rocksdb(name: str, golden: Golden, tmp_path: Path) -> None:
    commitlog_only(golden(name) / "store", tmp_path)
    rebuild(tmp_path, None, golden_options(LAYOUT_STORES[name]))
    expected = {}
    table = (golden(name) / "expected" / "rocksdb" / "rebuilt.tsv").read_text("ascii")
    for family, key, value in (line.split("\t") for line in table.splitlines()):
        if family == "default":
            topic, _, rest = bytes.fromhex(key)[5:].rpartition(b"\1" + bytes.fromhex(key)[-13:])
            queue_id, queue_offset = struct.unpack(">ixq", bytes.fromhex(key)[-13:])
            assert not rest
            expected[topic.decode(), queue_id, queue_offset] = bytes.fromhex(value)[:20]
    found = {}
    for path, data in tree(tmp_path / "consumequeue").items():
        topic, queue_id, start = path.split("/")
        for at in range(0, len(data), 20):
            if any(data[at : at + 20]):
                found[topic, int(queue_id), (int(start) + at) // 20] = data[at : at + 20]
    assert found == expected
    assert any(topic.startswith("%LMQ%") for topic, _, _ in found)


def test_light_units_live_as_the_topic_of_their_messages_does(tmp_path: Path) -> None:
    light = LightQueues()
    stored = [light.message("%LMQ%a", f"%LMQ%of{number % 2}", topic=f"Topic{number % 2}") for number in range(9)]
    write_commitlog(tmp_path / "store", [*stored, message("Topic1"), message("Topic0")], 65536)
    rebuild(tmp_path / "store", tmp_path / "out", live(SMALL, "Topic0"))
    queues = {path.rsplit("/", 1)[0] for path in built(tmp_path / "out").queues}
    assert queues == {"consumequeue/%LMQ%a/0", "consumequeue/%LMQ%of0/0", "consumequeue/Topic0/1"}
    (data,) = tree(tmp_path / "out" / "consumequeue" / "%LMQ%a").values()
    sizes = [struct.unpack_from(">i", data, at + 8)[0] for at in range(0, 9 * 20, 20)]
    assert [size == 0x7FFFFFFF for size in sizes] == [False, True] * 4 + [False], "a pre-blank where Topic1's were"


@pytest.mark.parametrize("is_database", [False, True], ids=["files", "rocksdb"])
def test_light_queues_that_stand_stay_when_the_topic_of_their_messages_is_deleted(
    tmp_path: Path, *, is_database: bool
) -> None:
    """Java deletes a topic's own queues alone (``DefaultMessageStore#deleteTopics``)."""
    store, light = tmp_path / "store", LightQueues()
    stored = [light.message("%LMQ%a", topic=f"Topic{number % 2}") for number in range(9)]
    write_commitlog(store, stored, 65536)
    options = replace(SMALL, index=False, queue_database=is_database)
    rebuild(store, None, options)

    def queues() -> dict[str, bytes]:
        return database_pairs(store) if is_database else tree(store / "consumequeue")

    before = {name: data for name, data in queues().items() if "%LMQ%a" in name}
    assert before
    rebuild(store, None, live(options, "Topic0"))
    assert {name: data for name, data in queues().items() if "%LMQ%a" in name} == before


def database_pairs(store: Path) -> dict[str, bytes]:
    """Keys, as text, and values of the database of a store's queues."""
    with open_rocksdb(LocalStorage(), str(store / "consumequeue"), str(store)) as database:
        return {f"{family} {key!r}": value for family in database.families for key, value in database.pairs(family)}


def test_topics_with_batch_queues_give_none(tmp_path: Path) -> None:
    light = LightQueues()
    stored = [light.message("%LMQ%a", topic=topic) for topic in ("Batch", "Orders", "Batch")]
    batch = {"INNER_BASE": "0", "INNER_NUM": "2", "INNER_MULTI_DISPATCH": "%LMQ%b", "INNER_MULTI_QUEUE_OFFSET": "0"}
    stored.append(plain_message("Inner", sys_flag=0xC0, properties_bytes=encode_properties(batch)))
    write_commitlog(tmp_path / "store", stored, 65536)
    (tmp_path / "store" / "batchconsumequeue" / "Batch").mkdir(parents=True)
    rebuild(tmp_path / "store", tmp_path / "out")
    (path,) = (tmp_path / "out" / "consumequeue").glob("%LMQ%*/*/*")
    assert path.parent.parent.name == "%LMQ%a"
    assert [struct.unpack_from(">i", path.read_bytes(), at)[0] for at in (8, 28, 48)] == [0x7FFFFFFF, 173, 0]


def test_names_that_no_directory_can_have_are_told(tmp_path: Path) -> None:
    write_commitlog(tmp_path, [message(names="..", places="0"), message(names="%LMQ%" + "x" * 251, places="0")], 65536)
    report = rebuild(tmp_path)
    assert report.finding_counts == {"commitlog.topic": 2}
    assert {path.split("/")[1] for path in built(tmp_path).queues} == {"Orders"}


@pytest.mark.long
def test_many_light_queues_of_few_records_are_those_of_the_codecs(tmp_path: Path) -> None:
    light = LightQueues()
    stored = [light.message(*(f"%LMQ%{first + n}" for n in range(1500))) for first in range(0, 900, 300)]
    write_commitlog(tmp_path, stored, 1 << 18)
    expected = by_codecs(tmp_path)
    rebuild(tmp_path)
    assert built(tmp_path) == expected
    assert len(expected.queues) == 2101
