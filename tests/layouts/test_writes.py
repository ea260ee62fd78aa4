"""Nothing is written into a store whose layouts rmq does not write: no repair, no job, no sink, no broker."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs import import_delta, replay
from rmq_core.store.store import MessageStore
from rmq_formats.errors import RmqError, StoreLayoutError
from rmq_formats.spark.options import schemas
from rmq_offline.spark.consumequeue_source import ConsumeQueueSource
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.write.commitlog import WriteOptions, begin_write
from rmq_offline.write.log_end import list_log_segments, queue_ends
from tests.cli.conftest import Rmq
from tests.conftest import LAYOUT_STORES
from tests.layouts.conftest import Untouched, refusal
from tests.store.small_stores import NOW_MS, config_of

CLOSED = {
    "dledger": "DLedger",
    "dledger_mixed": "DLedger",
    "lmq": "LMQ",
    "bcq": "BatchCons",
    "rocksdb": "RocksDB",
    "rocksdb_crash": "RocksDB",
    "rocksdb_lmq": "RocksDB",
}
OPEN = {"tiered": "tiered storage", "compaction": "compacted topics", "controller": "controller mode"}
Golden = Callable[[str], Path]


@pytest.mark.parametrize("name", [*CLOSED, *OPEN])
def test_generate_is_refused(name: str, rmq: Rmq, golden_copy: Golden, untouched: Untouched) -> None:
    store = golden_copy(name)
    for directory in {"commitlog", "consumequeue", "index"} & {path.name for path in store.iterdir()}:
        (store / directory).rename(store / f"{directory}.aside")
    with untouched(store):
        refusal(rmq, "generate", store, "--messages", 10)


@pytest.mark.parametrize("name", [*CLOSED, *OPEN])
@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "overwrite"])
def test_sinks_write_only_beside_what_they_know(
    name: str, *, overwrite: bool, golden_copy: Golden, untouched: Untouched
) -> None:
    store = golden_copy(name)
    if name in OPEN and not overwrite:
        begin_write(WriteOptions(str(store), overwrite=False)).job.abort()
        return
    given = import_delta.parser().parse_args(
        ["--table", "/none", "--store", str(store), "--mode", "overwrite" if overwrite else "append"]
    )
    with untouched(store):
        for write in (lambda: begin_write(WriteOptions(str(store), overwrite)), lambda: import_delta.check(given)):
            with pytest.raises(StoreLayoutError, match=CLOSED.get(name) or OPEN[name]):
                write()


def test_replay_into_such_a_store_is_refused(golden: Golden, golden_copy: Golden, untouched: Untouched) -> None:
    store = golden_copy("lmq")
    arguments = ["--store", str(golden("tiered") / "store"), "--to-store", str(store)]
    with untouched(store), pytest.raises(StoreLayoutError, match="light queues"):
        replay.check(replay.parser().parse_args(arguments))


@pytest.mark.parametrize("name", [name for name in CLOSED if name != "lmq" and not name.startswith("dledger")])
def test_derived_sinks_replace_no_other_queues(name: str, golden_copy: Golden, untouched: Untouched) -> None:
    store = golden_copy(name)
    source = ConsumeQueueSource({"path": str(store), "consumequeueFileBytes": "2000"})
    with untouched(store), pytest.raises(StoreLayoutError, match=CLOSED[name]):
        source.writer(schemas.CONSUMEQUEUE, overwrite=True)


@pytest.mark.parametrize(("name", "words"), [("lmq", "light queues"), ("bcq", "inner batches")])
def test_records_tell_an_append_what_directories_do_not(name: str, words: str, golden: Golden, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    for path in (golden(name) / "store" / "commitlog").iterdir():
        os.link(path, tmp_path / "commitlog" / path.name)
    with pytest.raises(StoreLayoutError, match=words):
        queue_ends(str(tmp_path), list_log_segments(str(tmp_path)), 1 << 40, 1)


@pytest.mark.parametrize("name", [name for name in CLOSED if name != "bcq"])
def test_a_broker_does_not_open_it(name: str, golden_copy: Golden, untouched: Untouched) -> None:
    store = golden_copy(name)
    settings = LAYOUT_STORES[name]
    config = config_of(
        store,
        commitlog_file_bytes=settings.commitlog_file_bytes,
        consumequeue_file_bytes=settings.consumequeue_file_bytes,
        index_slots=500,
        index_entries=2000,
    )
    with untouched(store), pytest.raises(RmqError, match=CLOSED[name]) as caught:
        MessageStore.open(config, NOW_MS)
    assert "\n" not in str(caught.value)
    assert not (store / "lock").exists()


@pytest.mark.parametrize("lost", [["config"], ["config", "consumequeue"]], ids=["tail", "whole log"])
def test_a_broker_does_not_guess_which_topics_have_batch_queues(lost: list[str], golden_copy: Golden) -> None:
    store = golden_copy("bcq")
    for name in ("batchconsumequeue", *lost):
        shutil.rmtree(store / name)
    config = config_of(
        store, commitlog_file_bytes=262_144, consumequeue_file_bytes=2000, index_slots=500, index_entries=2000
    )
    with pytest.raises(StoreLayoutError, match="topic BatchClicks has inner batches"):
        MessageStore.open(config, NOW_MS)
    assert not (store / "abort").exists()
    assert not (store / "batchconsumequeue").exists()
    assert not list((store / "consumequeue").glob("Batch[!e]*"))


def test_the_command_says_so_in_one_line(rmq: Rmq, golden_copy: Golden, untouched: Untouched) -> None:
    store = golden_copy("lmq")
    with untouched(store):
        result = rmq("broker", "--store", store, "--listen", "127.0.0.1:0")
    assert result.exit_code == 2
    assert "a broker writes with enableLmq=true and enableMultiDispatch=true" in result.stderr.splitlines()[-1]


def test_a_repair_does_not_cut_what_epochs_speak_of(rmq: Rmq, golden_copy: Golden, untouched: Untouched) -> None:
    store = golden_copy("controller")
    path = store / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    end = len(data.rstrip(b"\0"))
    data[end - 40 : end + 3000] = b"\xff" * 3040  # the last record, and a torn write behind it
    path.write_bytes(data)
    for apply in ((), ("--apply",)):
        with untouched(store):
            line = refusal(rmq, "repair", store, *apply)
        assert "controller mode" in line
        assert "epochs" in line
    assert ProcessRunner(1).parallelism == 1
