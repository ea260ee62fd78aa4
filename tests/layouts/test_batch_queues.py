"""Batch queues (BatchConsumeQueue): rebuilt to Java's bytes, verified, and each damaged byte of a unit found."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rmq_formats.codecs.batch_consumequeue import BATCH_UNIT_DTYPE, used_count
from rmq_formats.codecs.layout import BATCH_UNIT_BYTES
from rmq_formats.errors import StoreLayoutError, StoreSizeError
from rmq_offline.rebuild.options import options_from_arguments
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from rmq_offline.verify.report import VerifyReport
from tests.cli.conftest import Rmq
from tests.conftest import LAYOUT_STORES
from tests.layouts.conftest import refusal
from tests.support.stores.rebuilt_stores import Splits, built, golden_options, rebuild
from tests.support.stores.store_files import tree

Golden = Callable[[str], Path]
OPTIONS = golden_options(LAYOUT_STORES["bcq"])
FILE = f"batchconsumequeue/BatchOrders/1/{0:020d}"


def verify(store: Path, workers: int = 1) -> VerifyReport:
    return verify_store(str(store), VerifyOptions(), ProcessRunner(workers))


def codes(store: Path) -> set[str]:
    return {item.kind.code for item in verify(store).findings} - {"store.layout"}


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("splits", [1, 7])
def test_a_rebuild_is_java_s(splits: int, golden: Golden, tmp_path: Path) -> None:
    rebuild(golden("bcq") / "store", tmp_path, OPTIONS, Splits(splits))
    assert built(tmp_path) == built(golden("bcq") / "expected")


def test_units_are_those_of_the_messages(golden: Golden) -> None:
    lines = (golden("bcq") / "expected" / "messages.jsonl").read_text("utf-8").splitlines()
    stored = {record["physical_offset"]: record for record in map(json.loads, lines)}
    for directory in (golden("bcq") / "store" / "batchconsumequeue").glob("*/*"):
        end = 0
        for path in sorted(directory.iterdir()):
            units = np.frombuffer(path.read_bytes(), dtype=BATCH_UNIT_DTYPE)
            for unit in units[: used_count(units)]:
                record = stored[int(unit["physical_offset"])]
                assert unit["base_offset"] == end == record["queue_offset"]
                assert int(unit["batch_size"]) == int(record["properties"].get("INNER_NUM", 1))
                end += int(unit["batch_size"])
        assert end


def test_queues_that_are_lost_come_back(golden_copy: Golden, golden: Golden) -> None:
    """By topics.json alone: nothing else says that a topic of single messages has batch queues."""
    store = golden_copy("bcq")
    for name in ("consumequeue", "batchconsumequeue", "index"):
        shutil.rmtree(store / name)
    rebuild(store, None, OPTIONS)
    assert built(store) == built(golden("bcq") / "expected")
    assert not (store / ".rmq-rebuild").exists()


def test_the_directory_alone_tells_the_topics(golden_copy: Golden, golden: Golden) -> None:
    store = golden_copy("bcq")
    shutil.rmtree(store / "config")
    rebuild(store, None, OPTIONS)
    assert built(store) == built(golden("bcq") / "expected")


def test_plain_queues_of_a_batch_topic_go(golden_copy: Golden, golden: Golden) -> None:
    """A tool that knows no batch queues made them, and RocketMQ refuses to load the store."""
    store = golden_copy("bcq")
    (store / "consumequeue" / "BatchOrders" / "1").mkdir(parents=True)
    assert "consumequeue.kind" in codes(store)
    rebuild(store, None, OPTIONS)
    assert built(store) == built(golden("bcq") / "expected")
    assert codes(store) == set()


def test_the_size_of_files_is_that_of_the_store_s_own(golden: Golden, tmp_path: Path) -> None:
    store = str(golden("bcq") / "store")

    def given(size: int | None) -> int:
        options = options_from_arguments("all", VerifyOptions(batchconsumequeue_file_bytes=size), store)
        return options.sizes.batchconsumequeue_file_bytes

    assert (given(None), given(460)) == (920, 460)
    with pytest.raises(StoreSizeError, match="--batchconsumequeue-file-bytes 45: must be a multiple of 46"):
        rebuild(Path(store), tmp_path, replace(OPTIONS, sizes=replace(OPTIONS.sizes, batchconsumequeue_file_bytes=45)))


def test_a_rebuild_in_place_keeps_the_size(golden_copy: Golden) -> None:
    store = golden_copy("bcq")
    before = tree(store)
    with pytest.raises(StoreSizeError, match="BatchConsumeQueue files here have 920 bytes, not 460"):
        rebuild(store, None, replace(OPTIONS, sizes=replace(OPTIONS.sizes, batchconsumequeue_file_bytes=460)))
    assert tree(store) == before


def test_what_is_no_batch_queue_s_file_stays(golden_copy: Golden, rmq: Rmq) -> None:
    store = golden_copy("bcq")
    (store / "batchconsumequeue" / "BatchOrders" / "notes.txt").write_text("keep me")
    line = refusal(
        rmq, "rebuild", store, "--consumequeue-file-bytes", 2000, "--index-slots", 500, "--index-entries", 2000
    )
    assert "notes.txt" in line
    assert (store / "batchconsumequeue" / "BatchOrders" / "notes.txt").read_text() == "keep me"


def test_records_alone_do_not_tell_all_topics(golden: Golden, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden("bcq") / "store" / "commitlog", store / "commitlog")
    with pytest.raises(StoreLayoutError, match=r"without config/topics\.json nothing tells"):
        rebuild(store, None, OPTIONS)
    assert sorted(path.name for path in store.iterdir()) == ["commitlog", "lock"]


@pytest.mark.parametrize("workers", [1, 4])
def test_java_s_queues_are_sound(workers: int, golden: Golden) -> None:
    report = verify(golden("bcq") / "store", workers)
    assert report.is_clean, report.counts
    assert not any(kind.code.endswith("not_checked") for kind in report.counts)


@pytest.mark.parametrize("at", range(BATCH_UNIT_BYTES))
def test_each_byte_of_a_unit_counts(at: int, golden_copy: Golden) -> None:
    store = golden_copy("bcq")
    place = 3 * BATCH_UNIT_BYTES + at
    change(store / FILE, place, bytes([(store / FILE).read_bytes()[place] ^ 0x5A]))
    found = [item for item in verify(store).findings if item.kind.code != "store.layout"]
    assert found
    assert all(item.topic == "BatchOrders" and item.queue_id == 1 for item in found)
    assert any(item.path == str(store / FILE) for item in found)


def test_files_that_are_missing_cut_or_foreign_are_told(golden_copy: Golden) -> None:
    store = golden_copy("bcq")
    files = sorted((store / FILE).parent.iterdir())
    files[2].unlink()
    assert codes(store) == {"consumequeue.file.missing", "consumequeue.unit.missing"}
    files[2].write_bytes(b"")
    assert codes(store) == {"consumequeue.file.size", "consumequeue.unit.zero", "consumequeue.unit.missing"}
    files[2].unlink()
    files[2].with_name("notes.txt").write_bytes(b"x")
    assert "consumequeue.foreign" in codes(store)


def test_a_queue_that_begins_late_came_back_after_its_topic_was_deleted(golden_copy: Golden) -> None:
    store = golden_copy("bcq")
    files = sorted((store / FILE).parent.iterdir())
    size = files[0].stat().st_size
    units = b"".join(file.read_bytes() for file in files)[5 * BATCH_UNIT_BYTES :].ljust(size * len(files), b"\0")
    for number, file in enumerate(files):
        file.write_bytes(units[number * size : (number + 1) * size])
    assert codes(store) == {"consumequeue.begins_late"}
    topics = json.loads((store / "config" / "topics.json").read_text())
    del topics["topicConfigTable"]["BatchOrders"]
    (store / "config" / "topics.json").write_text(json.dumps(topics))
    counts = {item.kind.code: item.count for item in verify(store).findings if item.queue_id == 1}
    assert counts == {"consumequeue.topic.deleted": 5}
    change(store / FILE, 3, b"\x01")
    assert "consumequeue.unit.missing" in codes(store)


def test_messages_lost_in_the_log_are_told_by_their_units(golden_copy: Golden) -> None:
    store = golden_copy("bcq")
    unit = np.frombuffer((store / FILE).read_bytes(), dtype=BATCH_UNIT_DTYPE)[5]
    change(store / "commitlog" / f"{0:020d}", int(unit["physical_offset"]) + 4, b"\xff" * 8)
    lost = [item for item in verify(store).findings if item.kind.code == "consumequeue.unit.lost"]
    assert [item.queue_offset for item in lost if item.topic == "BatchOrders"] == [int(unit["base_offset"])]


def test_units_beyond_the_log_s_end_are_told(golden_copy: Golden) -> None:
    store = golden_copy("bcq")
    sorted((store / "commitlog").iterdir())[-1].unlink()
    assert "consumequeue.unit.beyond" in codes(store)
