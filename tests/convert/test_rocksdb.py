"""Conversion between stores with files and stores with RocksDB, both ways: the same queues, config and messages."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from rmq_formats.codecs import fastjson, topics_json
from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.rocksdb_queue import unit_key
from rmq_formats.read import broker_config
from rmq_formats.read.config_documents import GROUPS, KINDS, OFFSETS, TOPICS, Kind, stored_document, table_of
from rmq_formats.read.queue_choice import open_queue
from rmq_formats.read.queue_databases import open_queues
from rmq_formats.read.queues import ConsumeQueue
from rmq_formats.storage.segments import LocalStorage
from rmq_formats.storage.store_files import open_store
from rmq_formats.store import Store
from tests.cli.conftest import Rmq, rmq
from tests.convert.test_classic import LEVELS, faults
from tests.interop import peer
from tests.layouts.conftest import Untouched, golden_copy, refusal, untouched
from tests.layouts.test_rocksdb_rebuild import expected, pairs
from tests.support.stores.rebuilt_stores import built
from tests.support.stores.store_lives import FIRST_MS, LogWriter, save_checkpoint

__all__ = ["golden_copy", "rmq", "untouched"]  # fixtures
SIZES = ("--consumequeue-file-bytes", 2000, "--index-slots", 500, "--index-entries", 2000)
Golden = Callable[[str], Path]


def convert(run: Rmq, store: Path, to: str, out: Path) -> list[str]:
    """Convert, and give what the report says of changes. The empty database of a crash does not tell delay levels."""
    given = LEVELS if "crash" in str(store) else ()
    result = run("convert", store, "--to", to, "--out", out, "--json", *SIZES, *given)
    assert result.exit_code == 0, result.output
    return list(json.loads(result.stdout)["changes"])


def document(store: Path, kind: Kind) -> dict[str, object]:
    return stored_document(open_store(str(store)), kind) or {}


@pytest.mark.parametrize("name", ["lmq", "mixed", "mixed_551"])
def test_files_become_rocksdb_and_files_again(
    name: str, rmq: Rmq, golden: Golden, untouched: Untouched, tmp_path: Path
) -> None:
    store, database, back = golden(name) / "store", tmp_path / "database", tmp_path / "back"
    with untouched(store):
        changes = convert(rmq, store, "rocksdb", database)
    assert any("storeType=defaultRocksDB" in change for change in changes)
    assert not faults(database)
    assert [item.body for item in Store(database).messages()] == [item.body for item in Store(store).messages()]
    with untouched(database):
        convert(rmq, database, "classic", back)
    assert built(back).queues == built(golden(name) / "expected").queues
    assert built(back).index == built(golden(name) / "expected").index
    assert not faults(back)
    for kind in KINDS:
        assert table_of(document(database, kind), kind) == table_of(document(store, kind), kind)
        assert table_of(document(back, kind), kind) == table_of(document(store, kind), kind)
        assert document(back, kind)["dataVersion"] == document(store, kind)["dataVersion"]
    names = [path.name for path in (store / "config").iterdir() if path.suffix == ".json"]
    assert sorted(names) == sorted(path.name for path in (back / "config").iterdir() if path.suffix == ".json")


@pytest.mark.parametrize("name", ["rocksdb", "rocksdb_lmq", "rocksdb_crash"])
def test_rocksdb_becomes_files_and_rocksdb_again(
    name: str, rmq: Rmq, golden: Golden, untouched: Untouched, tmp_path: Path
) -> None:
    store, files, back = golden(name) / "store", tmp_path / "files", tmp_path / "back"
    with untouched(store):
        changes = convert(rmq, store, "classic", files)
    assert not faults(files)
    assert [item.body for item in Store(files).messages()] == [item.body for item in Store(store).messages()]
    assert table_of(document(files, OFFSETS), OFFSETS) == table_of(document(store, OFFSETS), OFFSETS)
    assert table_of(document(files, GROUPS), GROUPS) == table_of(document(store, GROUPS), GROUPS)
    if name == "rocksdb":
        assert table_of(document(files, TOPICS), TOPICS) == table_of(document(store, TOPICS), TOPICS)
    else:  # of v2, which has no topics that the broker made
        assert any("no topic that the broker made by itself" in change for change in changes)
        topics = topics_json.topic_configs((files / "config" / "topics.json").read_text("utf-8"))
        assert {item.topic for item in Store(store).messages()} <= set(topics)
        assert not any(topic.startswith("%LMQ%") for topic in topics)
    convert(rmq, files, "rocksdb", back)
    assert pairs(back) == expected(golden(name))


def test_offsets_of_light_queues_stand_where_a_broker_with_them_reads_them(
    rmq: Rmq, golden: Golden, tmp_path: Path
) -> None:
    store, database, back = golden("lmq") / "store", tmp_path / "database", tmp_path / "back"
    convert(rmq, store, "rocksdb", database)
    convert(rmq, database, "classic", back)
    light = fastjson.loads((back / "config" / "lmqConsumerOffset.json").read_text("utf-8"))
    original = fastjson.loads((store / "config" / "lmqConsumerOffset.json").read_text("utf-8"))
    assert isinstance(light, dict)
    assert isinstance(original, dict)
    for table in ("offsetTable", "lmqOffsetTable"):
        assert light[table] == original[table] != {}


def test_forbidden_tables_of_groups_are_converted(rmq: Rmq, golden_copy: Golden, tmp_path: Path) -> None:
    store = golden_copy("lmq")
    path = store / "config" / "subscriptionGroup.json"
    groups = json.loads(path.read_text("utf-8"))
    groups["forbiddenTable"] = {"golden_cg": {"Orders": 4}}
    path.write_text(json.dumps(groups), "utf-8")
    convert(rmq, store, "rocksdb", tmp_path / "database")
    convert(rmq, tmp_path / "database", "classic", tmp_path / "back")
    for out in ("database", "back"):
        assert document(tmp_path / out, GROUPS)["forbiddenTable"] == groups["forbiddenTable"]


def test_a_newer_file_is_laid_over_rocksdb(rmq: Rmq, golden_copy: Golden, tmp_path: Path) -> None:
    store = golden_copy("rocksdb")
    newer = {"dataVersion": {"counter": 1 << 30}, "topicConfigTable": {"Fresh": {"topicName": "Fresh", "perm": 4}}}
    (store / "config" / "topics.json").write_text(json.dumps(newer), "utf-8")
    convert(rmq, store, "classic", tmp_path / "files")
    topics = broker_config.stored_topics(open_store(str(tmp_path / "files")))
    assert topics == broker_config.stored_topics(open_store(str(store)))
    assert topics is not None
    assert {"Fresh", "Orders"} <= set(topics)


def test_files_about_the_log_are_copied_and_others_are_reported(rmq: Rmq, golden_copy: Golden, tmp_path: Path) -> None:
    store = golden_copy("lmq")
    (store / "timerlog").mkdir()
    (store / "timerlog" / "00000000000000000000").write_bytes(b"timers")
    (store / "timerwheel").write_bytes(b"wheel")
    (store / "notes").write_bytes(b"mine")
    changes = convert(rmq, store, "rocksdb", tmp_path / "out")
    assert (tmp_path / "out" / "timerlog" / "00000000000000000000").read_bytes() == b"timers"
    assert (tmp_path / "out" / "timerwheel").read_bytes() == b"wheel"
    assert not (tmp_path / "out" / "notes").exists()
    assert any(change.endswith(": notes") for change in changes)


def test_what_cannot_be_in_rocksdb_is_refused(
    rmq: Rmq, golden: Golden, golden_copy: Golden, untouched: Untouched, tmp_path: Path
) -> None:
    batch, alone = golden("bcq") / "store", golden_copy("bcq")
    shutil.rmtree(alone / "batchconsumequeue")
    (alone / "config" / "topics.json").write_text('{"topicConfigTable":{}}', "utf-8")
    both = golden_copy("mixed")  # two brokers' offsets, of which nothing tells whose count
    (both / "config" / "lmqConsumerOffset.json").write_text('{"offsetTable":{}}', "utf-8")
    broken = golden_copy("lmq")
    (broken / "config" / "topics.json").write_text("{", "utf-8")
    for store, words in (
        (golden("rocksdb") / "store", "has its ConsumeQueue in RocksDB already"),
        (batch, "has batch queues (BatchConsumeQueue), which no RocksDB has"),
        (alone, "has batch queues (BatchConsumeQueue), which no RocksDB has"),  # told by its records alone
        (broken, "topics.json"),
        (both, "move away the file that the broker does not read"),
    ):
        with untouched(store):
            assert words in refusal(rmq, "convert", store, "--to", "rocksdb", "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("*.rmq-convert"))


def store_of_lives(root: Path) -> tuple[Path, dict[tuple[str, int, int], Unit]]:
    """Write a store whose queues differ from the log, and return the units.

    Idle has expired, Orders was deleted and made again, a broker closed the gap of Gaps and skipped a repeat there.
    """
    log = LogWriter(file_bytes=16_384)
    for number in range(8):
        log.add("Idle", number, "idle", FIRST_MS + number)
    for number in range(200):
        log.add("Busy", number, "busy", FIRST_MS + 10 + number)
    for number in range(10):
        log.add("Orders", number, "old", FIRST_MS + 300 + number)
    log.forget("Orders")
    for number in range(5):
        log.add("Orders", number, "new", FIRST_MS + 400 + number)
    for place, number in enumerate((0, 1, 2, 5, 6, 9)):
        log.add("Gaps", number, "gap", FIRST_MS + 500 + number, place=place)
    log.add("Gaps", 3, "repeat", FIRST_MS + 600, place=99)
    del log.units["Gaps", 0, 99]
    log.add("Gaps", 10, "last", FIRST_MS + 601, place=6)
    log.add("Busy", 200, "busy", FIRST_MS + 602)
    store = log.save(root, topics=dict.fromkeys(("Idle", "Busy", "Orders", "Gaps"), 1))
    save_checkpoint(store, FIRST_MS + 602)
    (store / "commitlog" / f"{0:020d}").unlink()
    assert log.units["Idle", 0, 7].physical_offset < log.file_bytes < log.units["Orders", 0, 0].physical_offset
    return store, log.units


def convert_with_warnings(run: Rmq, store: Path, out: Path) -> None:
    result = run("convert", store, "--to", "rocksdb", "--out", out, "--json", *SIZES)
    kinds = {finding["code"] for finding in json.loads(result.stdout)["findings"]}
    assert (result.exit_code, kinds) == (1, {"commitlog.queue_offset.gap", "commitlog.queue_offset.repeated"})


def test_rocksdb_has_units_and_ends_of_queue_files(rmq: Rmq, untouched: Untouched, tmp_path: Path) -> None:
    store, units = store_of_lives(tmp_path / "store")
    with untouched(store):
        convert_with_warnings(rmq, store, tmp_path / "new")
    assert faults(tmp_path / "new") <= {"commitlog.queue_offset.repeated"}
    with open_queues(LocalStorage(), str(tmp_path / "new" / "consumequeue")) as database:
        for topic, end in (("Idle", 8), ("Busy", 201), ("Orders", 5), ("Gaps", 7)):
            bound = database.bound(topic, 0)
            assert bound is not None
            assert bound.queue_offset == end - 1
            places = [int(place) for offsets, _ in database.units(topic, 0) for place in offsets]
            offsets = [int(value) for _, values in database.units(topic, 0) for value in values["physical_offset"]]
            assert places == list(range(end))
            assert offsets == [units[topic, 0, place].physical_offset for place in places]


@pytest.mark.parametrize("has_units", [True, False])  # a compaction of RocksDB removes units of expired records
def test_expired_queues_keep_their_ends_in_files(rmq: Rmq, tmp_path: Path, has_units: bool) -> None:
    log = LogWriter(file_bytes=16_384)
    for number in range(8):
        log.add("Idle", number, "idle", FIRST_MS + number)
    for number in range(200):
        log.add("Busy", number, "busy", FIRST_MS + 10 + number)
    store = log.save(tmp_path / "store", topics={"Idle": 1, "Busy": 1})
    save_checkpoint(store, FIRST_MS + 209)
    (store / "commitlog" / f"{0:020d}").unlink()
    convert(rmq, store, "rocksdb", tmp_path / "new")
    if not has_units:
        database = Rdict(str(tmp_path / "new" / "consumequeue"), Options(raw_mode=True))
        for place in range(8):
            database.delete(unit_key("Idle", 0, place))
        database.close()
    with open_queues(LocalStorage(), str(tmp_path / "new" / "consumequeue")) as opened:
        assert (opened.first_offset("Idle", 0) is not None) == has_units
    convert(rmq, tmp_path / "new", "classic", tmp_path / "files")
    queue = open_queue(ConsumeQueue, open_store(str(tmp_path / "files")), "Idle", 0)
    assert queue is not None
    assert (queue.first_since(16_384), queue.max_offset()) == (None, 8)
    assert faults(tmp_path / "files") == set()


def test_a_queue_that_would_end_lower_in_files_is_refused(rmq: Rmq, tmp_path: Path) -> None:
    """RocksDB keeps the places of a gap, and files made of the log close it."""
    log = LogWriter(file_bytes=16_384)
    for number in (0, 1, 2, 5, 6):
        log.add("Gaps", number, "gap", FIRST_MS + number)
    store = log.save(tmp_path / "store", topics={"Gaps": 1})
    save_checkpoint(store, FIRST_MS + 6)
    shutil.rmtree(store / "consumequeue")
    assert rmq("convert", store, "--to", "rocksdb", "--out", tmp_path / "new", *SIZES).exit_code == 1
    error_line = refusal(rmq, "convert", tmp_path / "new", "--to", "classic", "--out", tmp_path / "files")
    assert "Gaps/0 ends at 7, and at 5 in the new store" in error_line
    assert not (tmp_path / "files").exists()


def test_a_link_out_of_the_store_is_not_copied(rmq: Rmq, golden: Golden, tmp_path: Path) -> None:
    store = Path(shutil.copytree(golden("mixed") / "store", tmp_path / "store"))
    (tmp_path / "secret").write_text("of the operator's")
    (store / "config" / "notes.json").symlink_to(tmp_path / "secret")
    done = rmq("convert", store, "--to", "rocksdb", "--out", tmp_path / "new")
    assert done.exit_code == 2
    assert "notes.json: a symbolic link out of the store" in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.peer
@pytest.mark.xdist_group("rocksdb_against_java")
@pytest.mark.long
def test_java_opens_what_was_made_of_files(rmq: Rmq, golden: Golden, tmp_path: Path) -> None:
    store = tmp_path / "store"
    convert(rmq, golden("lmq") / "store", "rocksdb", store)
    before = pairs(store)
    told = peer.run(
        "variant-rebuild",
        str(store),
        "storeType=defaultRocksDB",
        "mappedFileSizeCommitLog=262144",
        "maxHashSlotNum=500",
        "maxIndexNum=2000",
        "enableLmq=true",
        "enableMultiDispatch=true",
        java_options=f"{peer.QUICK_START} -Dvariant.settle.ms=500",
    )
    assert '"loaded": true' in told
    dumped = set(peer.run("rocks-dump", str(store / "consumequeue"), java_options=peer.QUICK_START).splitlines())
    assert {line for line in dumped if b"min".hex() not in line.split("\t")[1]} == before
    for kind in (TOPICS, GROUPS):
        # Of 5.3.3 this command alone works: rocksDBConfigToJson looks for a directory named TOPICS.
        told = peer.command("exportMetadataInRocksDB", "-p", str(store / "config"), "-t", kind.database, "-j", "true")
        assert json.loads(told[told.index("{\n") :])[kind.table] == table_of(
            document(golden("lmq") / "store", kind), kind
        )


@pytest.mark.peer
@pytest.mark.xdist_group("rocksdb_against_java")
@pytest.mark.long
def test_java_leaves_units_and_ends_of_queue_files(rmq: Rmq, tmp_path: Path) -> None:
    store, _ = store_of_lives(tmp_path / "store")
    convert_with_warnings(rmq, store, tmp_path / "new")
    before = pairs(tmp_path / "new")
    report = peer.run(
        "variant-rebuild",
        str(tmp_path / "new"),
        "storeType=defaultRocksDB",
        "mappedFileSizeCommitLog=16384",
        "maxHashSlotNum=500",
        "maxIndexNum=2000",
        java_options=f"{peer.QUICK_START} -Dvariant.settle.ms=500",
    )
    assert '"loaded": true' in report
    lines = peer.run("rocks-dump", str(tmp_path / "new" / "consumequeue"), java_options=peer.QUICK_START).splitlines()
    assert {line for line in lines if b"min".hex() not in line.split("\t")[1]} == before
