"""Repair of stores of other layouts: their queues keep their places; what cannot be repaired stays as it is."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.codecs.record import StoredMessage
from rmq_formats.store import Store
from rmq_offline.spark.consumequeue_source import ConsumeQueueSource
from tests.cli.conftest import Rmq, rmq
from tests.conftest import MIXED_DELAY_LEVELS
from tests.interop import peer
from tests.layouts.conftest import Untouched, golden_copy, held, refusal, untouched
from tests.layouts.test_rocksdb_rebuild import pairs
from tests.layouts.test_sources import rows_of
from tests.support.stores.rebuilt_stores import built

__all__ = ["golden_copy", "rmq", "untouched"]  # fixtures
SIZES = (
    "--consumequeue-file-bytes", 2000, "--index-slots", 500, "--index-entries", 2000, "--delay-levels",
    MIXED_DELAY_LEVELS,
)  # fmt: skip
TOPICS = {"lmq": "Payments", "bcq": "BatchOrders", "rocksdb": "Orders", "rocksdb_lmq": "Payments"}
Golden = Callable[[str], Path]
Row = dict[str, object]


def damage(store: Path, topic: str) -> list[int]:
    """Overwrite some bytes of a few records of a topic; their physical offsets."""
    own = [item for item in Store(store).messages() if item.topic == topic]
    lost: list[StoredMessage] = [*own[3:6], own[-4]]
    for item in lost:
        for path in (store / "commitlog").iterdir():
            at = item.physical_offset - int(path.name)
            if 0 <= at < path.stat().st_size:
                with path.open("r+b") as file:
                    file.seek(at + item.size // 2)
                    file.write(b"\xff\x00\xff\x01")
    return [item.physical_offset for item in lost]


def units(store: Path, lost: list[int]) -> list[Row]:
    """The store's units; those of lost messages without a tags code, which their placeholders do not have."""
    rows = rows_of(ConsumeQueueSource, store)
    return [row | {"tags_code": 0} if row["physical_offset"] in lost else row for row in rows]


@pytest.mark.parametrize("name", TOPICS)
@pytest.mark.long
def test_queues_retain_their_offsets(name: str, rmq: Rmq, golden_copy: Golden) -> None:
    store = golden_copy(name)
    lost = damage(store, TOPICS[name])
    before = units(store, lost)
    assert rmq("repair", store, *SIZES).exit_code == 1
    result = rmq("repair", store, "--apply", *SIZES)
    assert result.exit_code == 0, result.output
    assert units(store, lost) == before
    assert rmq("verify", store, *SIZES).exit_code == 0
    assert rmq("repair", store, "--apply", *SIZES).exit_code == 0


@pytest.mark.parametrize("name", ["lmq", "bcq", "rocksdb_lmq"])
def test_what_is_derived_is_made_anew(name: str, rmq: Rmq, golden_copy: Golden, golden: Golden) -> None:
    store = golden_copy(name)
    if name == "rocksdb_lmq":
        for path in (store / "consumequeue").glob("*.sst"):
            path.write_bytes(path.read_bytes()[:100])
        before = pairs(golden(name) / "store")
    else:
        kind = "batchconsumequeue" if name == "bcq" else "consumequeue"
        topic = "BatchOrders" if name == "bcq" else "%LMQ%device8"
        for path in (store / kind / topic).glob("*/*"):
            path.write_bytes(path.read_bytes()[::-1])
    result = rmq("repair", store, "--apply", *SIZES)
    assert result.exit_code == 0, result.output
    if name == "rocksdb_lmq":
        assert {pair for pair in before if b"min".hex() not in pair.split("\t")[1]} == pairs(store)
    else:
        assert built(store) == built(golden(name) / "expected")


@pytest.mark.parametrize("name", ["lmq", "rocksdb"])
def test_holes_of_what_was_quarantined_are_no_finding(name: str, rmq: Rmq, golden_copy: Golden) -> None:
    store = golden_copy(name)
    damage(store, TOPICS[name])
    if name == "rocksdb":
        for path in (store / "consumequeue").glob("*.sst"):
            path.write_bytes(path.read_bytes()[:100])
    else:
        shutil.rmtree(store / "consumequeue")
    result = rmq("repair", store, "--apply", "--json", *SIZES)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["messages_quarantined"] >= 2


@pytest.mark.parametrize("apply", [(), ("--apply",)], ids=["plan", "apply"])
def test_what_is_not_repaired_is_refused(apply: tuple, rmq: Rmq, golden_copy: Golden, untouched: Untouched) -> None:
    names = ["rocksdb", "rocksdb", "bcq", "rocksdb"]
    moved, strange, untold, broken = (
        (found := golden_copy(name)).rename(found.with_name(f"{number}-{name}")) for number, name in enumerate(names)
    )
    (moved / "consumequeue").rename(moved / "consumequeue_rocksdb")
    (strange / "consumequeue" / "notes.txt").write_text("mine")
    shutil.rmtree(untold / "config")
    shutil.rmtree(untold / "batchconsumequeue")
    for path in (broken / "config" / "topics").iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for store, words in (
        (moved, "consumequeue_rocksdb: the ConsumeQueue is in RocksDB"),
        (strange, "notes.txt: no file of a RocksDB"),
        (untold, "nothing tells which other topics have batch queues"),
        (broken, "config/topics"),
    ):
        (store / "index" / "20260101000000000").write_bytes(b"junk")
        with untouched(store):
            assert words in refusal(rmq, "repair", store, *apply)
        assert not (store / "quarantine").exists()


def test_a_database_that_a_broker_has_open_is_refused(rmq: Rmq, golden_copy: Golden, untouched: Untouched) -> None:
    store = golden_copy("rocksdb")
    damage(store, "Orders")
    for name in ("consumequeue", "config/topics"):
        with held(store / name / "LOCK"), untouched(store):
            assert "a running broker has this RocksDB open" in refusal(rmq, "repair", store, "--apply")
        (store / name / "LOCK").unlink()
    assert not (store / "quarantine").exists()


SETTINGS = {
    "lmq": ("enableLmq=true", "enableMultiDispatch=true"),
    "bcq": ("mapperFileSizeBatchConsumeQueue=920",),
    "rocksdb_lmq": ("storeType=defaultRocksDB", "enableLmq=true", "enableMultiDispatch=true"),
}


@pytest.mark.peer
@pytest.mark.xdist_group("rocksdb_against_java")
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.long
def test_java_makes_the_same_queues_of_the_repaired_log(
    name: str, rmq: Rmq, golden_copy: Golden, tmp_path: Path
) -> None:
    store, java = golden_copy(name), tmp_path / "java"
    damage(store, TOPICS[name])
    assert rmq("repair", store, "--apply", *SIZES).exit_code == 0
    for part in ("commitlog", "config"):
        shutil.copytree(store / part, java / part)
    (java / "abort").touch()
    told = peer.run(
        "variant-rebuild",
        str(java),
        "mappedFileSizeCommitLog=262144",
        "mappedFileSizeConsumeQueue=2000",
        "maxHashSlotNum=500",
        "maxIndexNum=2000",
        f"messageDelayLevel={MIXED_DELAY_LEVELS}",
        *SETTINGS[name],
        java_options=f"{peer.QUICK_START} -Dvariant.settle.ms=500",
    )
    assert '"loaded": true' in told
    for path in (store / "commitlog").iterdir():
        assert (java / "commitlog" / path.name).read_bytes() == path.read_bytes()
    if name == "rocksdb_lmq":
        dumped = set(peer.run("rocks-dump", str(java / "consumequeue"), java_options=peer.QUICK_START).splitlines())
        assert {line for line in dumped if b"min".hex() not in line.split("\t")[1]} == pairs(store)
    else:
        assert built(java).queues == built(store).queues
