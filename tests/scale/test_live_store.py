"""Jobs read a store that a broker appends to: each sees the log up to one record, and nothing in flight."""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from pyspark.sql import SparkSession

from jobs import export_delta
from rmq_formats.scan.splits import plan_splits
from rmq_formats.storage.segments import LocalStorage
from rmq_formats.storage.store_files import open_store
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.scale.jobs_on_cluster import ROOT
from tests.support.processes import warm_processes
from tests.support.stores.rebuilt_stores import Splits, message, small_store, stored_messages
from tests.support.stores.store_files import tree, write_commitlog

FILE_BYTES = 1 << 20
OPTIONS = RebuildOptions(True, True, StoreSizes(1 << 30, 20_000, 0, 50, 4000, (1000, 5000)))


class Bursts:
    """Counts what another process says of its writing, a byte a burst."""

    def __init__(self, said: IO[bytes]) -> None:
        self._said = said
        self._came = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._listen)
        self.thread.start()

    def _listen(self) -> None:
        while self._said.read(1):
            self._came.release()

    def wait(self) -> None:
        """Return when a burst that has not begun yet has ended."""
        while self._came.acquire(blocking=False):
            pass
        for _ in range(2):  # the first of them may have begun before
            assert self._came.acquire(timeout=60), "the writer stands still"


@contextmanager
def writing(root: Path) -> Iterator[Bursts]:
    """A store that another process writes on."""
    command = [sys.executable, "-m", "tests.scale.live_writer", str(root)]
    with warm_processes.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.read(1) == b"x"
            bursts = Bursts(process.stdout)
            yield bursts
            assert process.poll() is None
            process.stdin.close()
            bursts.thread.join()
            assert process.wait() == 0
        finally:
            process.kill()


def prefix(store: Path, count: int, target: Path) -> Path:
    """The store as it was after so many records: nothing but its log."""
    offsets = [record.physical_offset for record in stored_messages(store)]
    end = offsets[count] if count < len(offsets) else offsets[-1] + FILE_BYTES
    (target / "commitlog").mkdir(parents=True)
    for path in sorted((store / "commitlog").iterdir()):
        data = path.read_bytes()
        kept = data[: max(0, end - int(path.name))]
        if kept.strip(b"\0"):
            (target / "commitlog" / path.name).write_bytes(kept.ljust(len(data), b"\0"))
    return target


@pytest.mark.long
def test_a_rebuild_is_that_of_the_log_up_to_one_record(tmp_path: Path) -> None:
    store, counts = tmp_path / "store", []
    with writing(store) as bursts:
        for number in range(4):
            report = rebuild_store(str(store), str(tmp_path / f"out-{number}"), OPTIONS, Splits(5, ProcessRunner(2)))
            assert report.finding_counts == {}
            counts.append(report.messages)
            bursts.wait()
    assert 2000 <= counts[0] < counts[1] < counts[2] < counts[3] < sum(1 for _ in stored_messages(store))
    for number in (0, 3):
        still = prefix(store, counts[number], tmp_path / f"prefix-{number}")
        rebuild_store(str(still), str(tmp_path / f"again-{number}"), OPTIONS, ProcessRunner(1))
        assert tree(tmp_path / f"out-{number}") == tree(tmp_path / f"again-{number}")
        shutil.rmtree(still)


@pytest.mark.long
def test_verify_finds_nothing_that_is_in_flight(tmp_path: Path) -> None:
    options = VerifyOptions(delay_levels_ms=OPTIONS.sizes.delay_levels_ms)
    counts, live = [], set()
    with writing(tmp_path) as bursts:
        for _ in range(6):
            report = verify_store(str(tmp_path), options, Splits(5, ProcessRunner(2)))
            live |= {kind.code for kind in report.counts}
            counts.append(report.messages)
            bursts.wait()
    # Some of its messages have odd headers; that a broker runs is told, and it wrote no checkpoint yet.
    at_rest = {kind.code for kind in verify_store(str(tmp_path), options, ProcessRunner(1)).counts}
    assert live - at_rest == {"store.abort", "checkpoint.missing"}
    assert at_rest == {"commitlog.header", "store.layout"}
    assert counts == sorted(counts)
    assert 2000 <= counts[0] < counts[-1]


@pytest.mark.spark
@pytest.mark.long
def test_exports_land_each_message_once(tmp_path: Path, spark: SparkSession) -> None:
    store, table = tmp_path / "store", str(tmp_path / "table")
    arguments = ["--store", str(store), "--table", table, "--partition-by", "topic", "--system-topics"]
    given = export_delta.parser().parse_args(arguments)
    with writing(store):
        first, code = export_delta.main(export_delta.check(given), spark)
        assert code == 0
    second, code = export_delta.main(export_delta.check(given), spark)
    offsets = [record.physical_offset for record in stored_messages(store)]
    assert (code, second["starting_physical_offset"]) == (0, first["ending_physical_offset"])
    assert first["messages"] >= 2000
    assert first["messages"] + second["messages"] == len(offsets)
    rows = spark.read.format("delta").load(table).select("physical_offset").collect()
    assert sorted(row.physical_offset for row in rows) == offsets


def test_a_record_in_flight_is_behind_the_bound_and_a_torn_one_before_it(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", 20, 16384)
    path = store / "commitlog" / f"{0:020d}"
    whole = path.read_bytes()
    last = list(stored_messages(store))[-1]
    torn = whole[: last.physical_offset + 60].ljust(len(whole), b"\0")
    path.write_bytes(torn)
    segments = open_store(str(store)).segments
    assert [split.data_end for split in plan_splits(LocalStorage(), segments)] == [len(torn.rstrip(b"\0"))]

    def append() -> None:
        time.sleep(0.05)
        write_commitlog(store, [message(number) for number in range(20)], 16384)

    thread = threading.Thread(target=append)
    thread.start()
    splits = plan_splits(LocalStorage(), segments)
    thread.join()
    assert [split.data_end for split in splits] == [last.physical_offset]
