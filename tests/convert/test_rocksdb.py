"""Conversion between stores with files and stores with RocksDB, both ways: the same queues, config and messages."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.codecs import config_json
from rmq_formats.read import broker_config
from rmq_formats.read.config_documents import GROUPS, KINDS, OFFSETS, TOPICS, Kind, stored_document, table_of
from rmq_formats.storage.segments import LocalStorage
from rmq_formats.store import Store
from tests.cli.conftest import Rmq, rmq
from tests.convert.test_classic import LEVELS, faults
from tests.interop import peer
from tests.rebuilt_stores import built
from tests.store_lives import FIRST_MS, LogWriter
from tests.variants.conftest import Untouched, refusal, untouched, variant
from tests.variants.test_rocksdb_rebuild import expected, pairs

__all__ = ["rmq", "untouched", "variant"]  # fixtures
SIZES = ("--consumequeue-file-bytes", 2000, "--index-slots", 500, "--index-entries", 2000)
Golden = Callable[[str], Path]


def convert(run: Rmq, store: Path, to: str, out: Path) -> list[str]:
    """Convert, and give what the report says of changes. The empty database of a crash does not tell delay levels."""
    given = LEVELS if "crash" in str(store) else ()
    result = run("convert", store, "--to", to, "--out", out, "--json", *SIZES, *given)
    assert result.exit_code == 0, result.output
    return list(json.loads(result.stdout)["changes"])


def document(store: Path, kind: Kind) -> dict[str, object]:
    return stored_document(LocalStorage(), str(store), kind) or {}


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
        topics = config_json.topic_configs((files / "config" / "topics.json").read_text("utf-8"))
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
    light = config_json.loads((back / "config" / "lmqConsumerOffset.json").read_text("utf-8"))
    original = config_json.loads((store / "config" / "lmqConsumerOffset.json").read_text("utf-8"))
    assert isinstance(light, dict)
    assert isinstance(original, dict)
    for table in ("offsetTable", "lmqOffsetTable"):
        assert light[table] == original[table] != {}


def test_forbidden_tables_of_groups_are_converted(rmq: Rmq, variant: Golden, tmp_path: Path) -> None:
    store = variant("lmq")
    path = store / "config" / "subscriptionGroup.json"
    groups = json.loads(path.read_text("utf-8"))
    groups["forbiddenTable"] = {"golden_cg": {"Orders": 4}}
    path.write_text(json.dumps(groups), "utf-8")
    convert(rmq, store, "rocksdb", tmp_path / "database")
    convert(rmq, tmp_path / "database", "classic", tmp_path / "back")
    for out in ("database", "back"):
        assert document(tmp_path / out, GROUPS)["forbiddenTable"] == groups["forbiddenTable"]


def test_a_newer_file_is_laid_over_rocksdb(rmq: Rmq, variant: Golden, tmp_path: Path) -> None:
    store = variant("rocksdb")
    newer = {"dataVersion": {"counter": 1 << 30}, "topicConfigTable": {"Fresh": {"topicName": "Fresh", "perm": 4}}}
    (store / "config" / "topics.json").write_text(json.dumps(newer), "utf-8")
    convert(rmq, store, "classic", tmp_path / "files")
    found = broker_config.stored_topics(LocalStorage(), str(tmp_path / "files"))
    assert found == broker_config.stored_topics(LocalStorage(), str(store))
    assert found is not None
    assert {"Fresh", "Orders"} <= set(found)


def test_files_about_the_log_are_copied_and_others_are_reported(rmq: Rmq, variant: Golden, tmp_path: Path) -> None:
    store = variant("lmq")
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
    rmq: Rmq, golden: Golden, variant: Golden, untouched: Untouched, tmp_path: Path
) -> None:
    batch, alone = golden("bcq") / "store", variant("bcq")
    shutil.rmtree(alone / "batchconsumequeue")
    (alone / "config" / "topics.json").write_text('{"topicConfigTable":{}}', "utf-8")
    both = variant("mixed")  # two brokers' offsets, of which nothing tells whose count
    (both / "config" / "lmqConsumerOffset.json").write_text('{"offsetTable":{}}', "utf-8")
    broken = variant("lmq")
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


def test_a_topic_made_again_is_not_converted_to_its_former_life(rmq: Rmq, untouched: Untouched, tmp_path: Path) -> None:
    log = LogWriter()
    for number in range(10):
        log.add("Orders", number, "old", FIRST_MS + number)
    log.forget("Orders")
    for number in range(5):
        log.add("Orders", number, "new", FIRST_MS + 100 + number)
    store = log.save(tmp_path / "store")
    with untouched(store):
        done = rmq("convert", store, "--to", "rocksdb", "--out", tmp_path / "new")
    assert done.exit_code == 2
    assert "consumers get 5 messages of Orders/0, and 10 of the new store" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


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
def test_java_opens_what_was_made_of_files(rmq: Rmq, golden: Golden, tmp_path: Path) -> None:
    store = tmp_path / "store"
    convert(rmq, golden("lmq") / "store", "rocksdb", store)
    before = pairs(store)
    told = peer.run(
        "variant-rebuild", str(store), "storeType=defaultRocksDB", "mappedFileSizeCommitLog=262144",
        "maxHashSlotNum=500", "maxIndexNum=2000", "enableLmq=true", "enableMultiDispatch=true",
        java_options=f"{peer.QUICK_START} -Dvariant.settle.ms=500",
    )  # fmt: skip
    assert '"loaded": true' in told
    dumped = set(peer.run("rocks-dump", str(store / "consumequeue"), java_options=peer.QUICK_START).splitlines())
    assert {line for line in dumped if b"min".hex() not in line.split("\t")[1]} == before
    for kind in (TOPICS, GROUPS):
        # Of 5.3.3 this command alone works: rocksDBConfigToJson looks for a directory named TOPICS.
        told = peer.command("exportMetadataInRocksDB", "-p", str(store / "config"), "-t", kind.database, "-j", "true")
        assert json.loads(told[told.index("{\n") :])[kind.table] == table_of(
            document(golden("lmq") / "store", kind), kind
        )
