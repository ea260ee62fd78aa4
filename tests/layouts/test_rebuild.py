"""Rebuilds of other layouts: equal to Java where rmq makes them, refused in one line where it would lose something."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_formats.errors import OptionError, RmqError, StoreLayoutError
from rmq_offline.rebuild.options import options_from_arguments
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.cli.conftest import Rmq
from tests.conftest import LAYOUT_STORES
from tests.layouts.conftest import Untouched, refusal
from tests.support.stores.rebuilt_stores import Splits, built, golden_options, rebuild, small_store
from tests.support.stores.store_files import tree

DATABASES = ("rocksdb", "rocksdb_crash", "rocksdb_lmq")  # tests/layouts/test_rocksdb_rebuild.py
Golden = Callable[[str], Path]


def test_what_rmq_makes_is_java_s(layout_name: str, golden: Golden, untouched: Untouched, tmp_path: Path) -> None:
    directory = golden(layout_name)
    options = golden_options(LAYOUT_STORES[layout_name])
    expected = built(directory / "expected")
    with untouched(directory / "store"):
        if layout_name in DATABASES:
            rebuild(directory / "store", tmp_path, replace(options, consumequeue=False))
            assert built(tmp_path).index == expected.index
            assert not (tmp_path / "consumequeue").exists()
            return
        rebuild(directory / "store", tmp_path, options)
        assert built(tmp_path) == expected


@pytest.mark.parametrize("name", ["tiered", "compaction", "controller", "bcq"])
def test_a_rebuild_in_place_leaves_the_other_layouts_files(name: str, golden_copy: Golden, golden: Golden) -> None:
    store = golden_copy(name)
    before = tree(store)
    rebuild(store, None, golden_options(LAYOUT_STORES[name]))
    assert built(store) == built(golden(name) / "expected")
    after = tree(store)
    made, former = ("consumequeue/", "batchconsumequeue/", "index/", "lock"), "quarantine/0001/"
    assert {path: data for path, data in after.items() if not path.startswith((*made, former))} == {
        path: data for path, data in before.items() if not path.startswith(made)
    }
    replaced = {path.removeprefix(former): data for path, data in after.items() if path.startswith(former)}
    assert replaced
    assert replaced.items() <= {path: data for path, data in before.items() if path.startswith(made)}.items()


@pytest.mark.parametrize(("name", "words"), [("bcq", "inner batches")])
@pytest.mark.parametrize("splits", [1, 7])
def test_a_log_alone_tells_by_its_records(
    name: str, words: str, splits: int, golden: Golden, untouched: Untouched, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)
    for path in (golden(name) / "store" / "commitlog").iterdir():
        (store / "commitlog" / path.name).write_bytes(path.read_bytes())
    options = golden_options(LAYOUT_STORES[name])
    for out in (None, tmp_path / "out"):
        with untouched(store), pytest.raises(StoreLayoutError, match=words) as caught:
            rebuild(store, out, options, Splits(splits))
        assert "\n" not in str(caught.value)
    assert sorted(path.name for path in store.iterdir()) == ["commitlog", "lock"]
    assert not any((tmp_path / "out").iterdir())
    rebuild(store, None, replace(options, consumequeue=False))
    assert built(store).index == built(golden(name) / "expected").index


def test_classic_records_have_no_marks(golden_name: str, golden: Golden, golden_settings: dict, tmp_path: Path) -> None:
    rebuild(golden(golden_name) / "store", tmp_path, golden_options(golden_settings[golden_name]))


def test_double_written_queues_are_refused(tmp_path: Path, untouched: Untouched) -> None:
    store = small_store(tmp_path / "store")
    rebuild(store)
    for name in ("CURRENT", "MANIFEST-000005", "000010.sst"):
        (store / "consumequeue" / name).write_bytes(b"x")
    with untouched(store), pytest.raises(StoreLayoutError, match="CURRENT: the ConsumeQueue is in RocksDB"):
        rebuild(store)


SIZES = VerifyOptions(None, 2000, None, 500, 2000, ())


@pytest.mark.parametrize("name", ["rocksdb_crash", "rocksdb_lmq"])
def test_topics_in_rocksdb_are_not_taken_for_none(name: str, golden: Golden) -> None:
    store = golden(name) / "store"
    with pytest.raises(StoreLayoutError, match="config/rdb: config in RocksDB of v2 has no topic that the broker made"):
        options_from_arguments("index", SIZES, str(store), f"{store}/config/topics.json")
    with pytest.raises(OptionError, match="no such file") as caught:
        options_from_arguments("index", SIZES, str(golden("tiered")), f"{store}/config/none.json")
    assert isinstance(caught.value, RmqError)


@pytest.mark.parametrize("place", ["raft", "raft/dledger-n0"])
def test_a_dledger_log_that_was_moved_is_known(
    place: str, rmq: Rmq, golden_copy: Golden, golden: Golden, untouched: Untouched, tmp_path: Path
) -> None:
    """By ``storePathDLedgerCommitLog``, or by somebody: half a log must not be taken for the whole one."""
    store = golden_copy("dledger_mixed")
    (store / place).parent.mkdir(exist_ok=True)
    (store / "dledger-n0").rename(store / place)
    first = min((store / place / "data").iterdir())
    head = first.read_bytes()
    first.write_bytes(head[:100] + bytes(100) + head[200:])
    with untouched(store):
        line = refusal(rmq, "repair", store, "--apply")
    first.write_bytes(head)
    with untouched(store):
        rebuild(store, tmp_path / "out", golden_options(LAYOUT_STORES["dledger_mixed"]))
    assert f"move {place} out of the store, and the leader sends the log anew" in line
    assert built(tmp_path / "out") == built(golden("dledger_mixed") / "expected")


def test_two_dledger_logs_are_not_taken_for_one(
    rmq: Rmq, golden_copy: Golden, untouched: Untouched, tmp_path: Path
) -> None:
    store = golden_copy("dledger_mixed")
    shutil.copytree(store / "dledger-n0" / "data", store / "dledger-n1" / "data")
    with untouched(store):
        for command in (("rebuild", store), ("rebuild", store, "--out", tmp_path / "out"), ("verify", store),
                        ("dump", store), ("repair", store)):  # fmt: skip
            line = refusal(rmq, *command)
            assert "dledger-n1/data" in line, line
