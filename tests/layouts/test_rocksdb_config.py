"""Topics, groups and consumer offsets of brokers that keep them in RocksDB, as any tool asks for them."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs import replay
from rmq_formats.codecs import rocksdb_config as codec
from rmq_formats.errors import FormatError, StoreLayoutError
from rmq_formats.read import broker_config
from rmq_formats.read.config_documents import KINDS, stored_document
from rmq_formats.read.lag import group_queues
from rmq_formats.storage.rocksdb import Pairs, make_rocksdb, open_rocksdb
from rmq_formats.storage.segments import LocalStorage
from rmq_formats.storage.store_files import open_store
from rmq_lakehouse.broker_state.sources import GroupsSource, TopicsSource
from rmq_offline.rebuild.options import options_from_arguments
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.cli.conftest import Rmq
from tests.layouts.conftest import Untouched
from tests.layouts.test_sources import rows_of

Golden = Callable[[str], Path]
OFFSETS_OF_LMQ = {
    ("%LMQ%device0", "%LMQ%group0"): {0: 5},
    ("%LMQ%device6", "%LMQ%group0"): {0: 11},
    ("%LMQ%device3", "%LMQ%group1"): {0: 8},
    ("%LMQ%device9", "%LMQ%group1"): {0: 14},
    ("RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"): {0: 6},
    ("RMQ_SYS_TRANS_OP_HALF_TOPIC", "CID_RMQ_SYS_TRANS"): {0: 1},
}


def names(golden: Golden, table: str) -> set[str]:
    lines = (golden("rocksdb") / "expected" / "rocksdb" / f"config-{table}.tsv").read_text("ascii").splitlines()
    return {bytes.fromhex(key).decode() for family, key, _ in map(str.split, lines) if family == "default"}


def tables(store: Path) -> tuple[dict, dict, dict]:
    files = open_store(str(store))
    return (
        broker_config.stored_topics(files),
        broker_config.stored_groups(files),
        broker_config.stored_offsets(files),
    )


def test_v1_has_what_java_lists(golden: Golden, untouched: Untouched) -> None:
    with untouched(golden("rocksdb") / "store"):
        topics, groups, offsets = tables(golden("rocksdb") / "store")
    assert set(topics) == names(golden, "topics")
    assert set(groups) == names(golden, "subscriptionGroups")
    assert {"@".join(key) for key in offsets} == names(golden, "consumerOffsets")
    assert offsets["Orders", "golden_cg_ok"] == {0: 30, 1: 16, 2: 30, 3: 17}
    assert (topics["Batched"].read_queue_nums, topics["Batched"].perm) == (4, 6)


@pytest.mark.parametrize("name", ["rocksdb_lmq", "rocksdb_crash"])
def test_v2_has_the_offsets_and_not_all_topics(name: str, golden: Golden) -> None:
    store = golden(name) / "store"
    assert tables(store) == ({}, {}, OFFSETS_OF_LMQ)
    assert not broker_config.lists_all_topics(open_store(str(store)))
    rows = list(group_queues(OFFSETS_OF_LMQ, {}, is_whole=False))
    assert [row.queue_id for row in rows] == [0] * len(OFFSETS_OF_LMQ)
    assert {row.topic for row in group_queues(OFFSETS_OF_LMQ, {})} == {
        topic for topic, _ in OFFSETS_OF_LMQ if topic.startswith("%LMQ%")
    }


def test_sources_have_a_row_each(golden: Golden, untouched: Untouched) -> None:
    store = golden("rocksdb") / "store"
    with untouched(store):
        assert {row["topic"] for row in rows_of(TopicsSource, store)} == names(golden, "topics")
        assert {row["group"] for row in rows_of(GroupsSource, store)} == names(golden, "subscriptionGroups")
        assert rows_of(TopicsSource, golden("rocksdb_lmq") / "store") == []


def test_live_topics_are_those_of_v1(golden: Golden) -> None:
    store = golden("rocksdb") / "store"
    options = options_from_arguments("index", VerifyOptions(), str(store), f"{store}/config/topics.json")
    assert options.live_topics == names(golden, "topics")


def test_a_group_of_v2_is_replayed(golden: Golden) -> None:
    store = golden("rocksdb_lmq") / "store"
    arguments = ["--store", str(store), "--to-namesrv", "127.0.0.1:1", "--group", "%LMQ%group0"]
    replay.check(replay.parser().parse_args(arguments))


def test_inspect_counts_and_lists_them(golden: Golden, rmq: Rmq, untouched: Untouched) -> None:
    store = golden("rocksdb") / "store"
    with untouched(store):
        found = json.loads(rmq("inspect", store, "--json").stdout)
        assert found["rocksdb_config"] == {"topics": 26, "groups": 10, "group_topics": 4}
        assert "26 topics, 10 consumer groups" in " ".join(rmq("inspect", store).stdout.split())
        listed = json.loads(rmq("inspect", store / "config" / "topics", "--json").stdout)["config"]
        dumped = json.loads(rmq("dump", store / "config" / "topics", "--json").stdout)
    assert set(listed["topicConfigTable"]) == names(golden, "topics")
    assert dumped == listed
    assert set(listed["dataVersion"]) == {"counter", "stateVersion", "timestamp"}
    rdb = golden("rocksdb_lmq") / "store" / "config" / "rdb"
    listed = json.loads(rmq("inspect", rdb, "--json").stdout)["config"]
    assert listed["consumerOffset.json"]["offsetTable"]["%LMQ%device0@%LMQ%group0"] == {"0": 5}


def test_a_newer_file_beside_v1_is_laid_over_it(golden_copy: Golden) -> None:
    store = golden_copy("rocksdb")
    path = store / "config" / "consumerOffset.json"
    for counter, expected in ((0, 30), (1 << 40, 7)):
        text = {"dataVersion": {"counter": counter}, "offsetTable": {"Orders@golden_cg_ok": {"0": 7}}}
        path.write_text(json.dumps(text))
        assert tables(store)[2]["Orders", "golden_cg_ok"][0] == expected


def test_databases_of_both_versions_are_refused(golden_copy: Golden, golden: Golden) -> None:
    store = golden_copy("rocksdb")
    shutil.copytree(golden("rocksdb_lmq") / "store" / "config" / "rdb", store / "config" / "rdb")
    with pytest.raises(StoreLayoutError, match="config in RocksDB of v1 beside rdb of v2"):
        tables(store)


def in_one_database(store: Path) -> None:
    """Put the databases of v1 into one, as of ``useSingleRocksDBForAllConfigs``."""
    families = {codec.FORBIDDEN_FAMILY_V1: encoded([]), "default": encoded([])}
    for kind in KINDS:
        path = store / "config" / kind.database
        with open_rocksdb(LocalStorage(), str(path), str(store)) as database:
            rows, version = codec.FAMILIES_OF_ALL[kind.database]
            families[rows] = encoded(list(database.pairs("default")))
            families[version] = encoded(list(database.pairs(codec.VERSION_FAMILY_V1)))
        shutil.rmtree(path)
    make_rocksdb(store / "config" / codec.DATABASE_OF_ALL, families)


def encoded(rows: list[tuple[bytes, bytes]]) -> Iterator[Pairs]:
    return (Pairs(key, len(key), value, len(value)) for key, value in rows)


def test_one_database_has_what_three_have(golden_copy: Golden, rmq: Rmq, untouched: Untouched, tmp_path: Path) -> None:
    store = golden_copy("rocksdb")
    before, documents = tables(store), [stored_document(open_store(str(store)), kind) for kind in KINDS]
    apart = store / "config" / "topics"
    shutil.copytree(apart, tmp_path / "topics")
    in_one_database(store)
    with untouched(store):
        assert tables(store) == before
        assert [stored_document(open_store(str(store)), kind) for kind in KINDS] == documents
        dumped = json.loads(rmq("dump", store / "config" / "metadata", "--json").stdout)
        assert [dumped[kind.files[-1]] for kind in KINDS] == documents
        assert json.loads(rmq("inspect", store, "--json").stdout)["rocksdb_config"]["topics"] == len(before[0])
    shutil.copytree(tmp_path / "topics", apart)
    with pytest.raises(StoreLayoutError, match="of v1 beside metadata of v1 with one database for all"):
        tables(store)


def verified(store: Path) -> dict[str, str]:
    report = verify_store(str(store), VerifyOptions(), ProcessRunner(1))
    return {item.kind.code: item.detail for item in report.findings if item.kind.code.startswith("config.")}


@pytest.mark.parametrize("name", ["rocksdb", "rocksdb_lmq", "rocksdb_crash"])
def test_sound_config_is_no_finding(name: str, golden: Golden) -> None:
    assert verified(golden(name) / "store") == {}


def bend(database: Path) -> None:
    largest = max(database.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[20] ^= 0x5A
    largest.write_bytes(data)


def lose_current(database: Path) -> None:
    (database / "CURRENT").unlink()


@pytest.mark.parametrize("damage", [bend, lose_current])
@pytest.mark.parametrize(("name", "database"), [("rocksdb", "topics"), ("rocksdb", "consumerOffsets"),
                                                ("rocksdb_lmq", "rdb")])  # fmt: skip
def test_a_damaged_database_is_a_finding(
    name: str, database: str, damage: Callable[[Path], None], golden_copy: Golden, rmq: Rmq
) -> None:
    store = golden_copy(name)
    damage(store / "config" / database)
    assert "cannot be read" in verified(store)["config.database"]
    with pytest.raises(FormatError, match=f"config/{database}: "):
        tables(store)
    result = rmq("inspect", store, "--json")
    assert result.exit_code == 1
    assert any(f"config/{database}" in line for line in json.loads(result.stdout)["errors"])


def test_without_the_library_config_is_not_checked(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rocksdict", None)
    assert "rmq-lake[rocksdb]" in verified(golden("rocksdb") / "store")["config.not_checked"]
