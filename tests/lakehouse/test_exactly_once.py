"""Each record lands once: killed before its commit and after it, without its checkpoint, against another exporter."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmq_formats.errors import StoreError
from rmq_lakehouse.delta import table as delta
from rmq_lakehouse.delta.table import DeltaTransaction
from rmq_lakehouse.exports import ExportCounts, ExportLoop
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.stores import StoreLogs
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import plain, write
from tests.support.torture import rounds

pytestmark = pytest.mark.spark

JOB = Path(__file__).parents[2] / "jobs" / "export_delta.py"
ONCE = ("--mode", "available-now")
MODES = pytest.mark.parametrize("mode", [(), ONCE], ids=["batch", "available-now"])


@pytest.mark.long
def test_micro_batches_and_batches_go_on_from_one_another(exporter: Exporter) -> None:
    placed = write(exporter.store, plain(40))
    first, code = exporter.run(*ONCE, "--max-bytes-per-trigger", "3000")
    assert (first["messages"], code) == (len(placed), 0)
    assert first["batches"] > 1
    placed = write(exporter.store, plain(60))
    second, _ = exporter.run()
    assert second["starting_physical_offset"] == first["ending_physical_offset"]
    placed = write(exporter.store, plain(70))
    third, _ = exporter.run(*ONCE)
    assert (second["messages"], third["messages"]) == (20, 10)
    assert exporter.offsets() == placed


@pytest.mark.long
def test_a_lost_checkpoint_repeats_nothing_and_a_lost_table_is_filled_again(exporter: Exporter) -> None:
    write(exporter.store, plain(20))
    checkpoint = exporter.work / "checkpoint"
    exporter.run(*ONCE, "--checkpoint", str(checkpoint))
    shutil.rmtree(checkpoint)
    placed = write(exporter.store, plain(30))
    report, _ = exporter.run(*ONCE, "--checkpoint", str(checkpoint))
    assert report["messages"] == 10
    assert exporter.offsets() == placed
    shutil.rmtree(exporter.table)
    placed = write(exporter.store, plain(35))
    exporter.run(*ONCE, "--checkpoint", str(checkpoint))
    assert exporter.offsets() == placed


@pytest.mark.long
def test_topics_whose_names_joined_are_one_are_other_selections(exporter: Exporter) -> None:
    placed = write(exporter.store, [(topic, b"1") for topic in ("A", "B", "A|B", "C")])
    landed = [exporter.run("--topics", topics)[0]["messages"] for topics in ("A,B", "A|B", "A,B", "A|B", "A|B,C")]
    assert landed == [2, 1, 0, 0, 1]
    assert exporter.offsets() == placed


@MODES
@pytest.mark.long
def test_what_dies_before_its_commit_leaves_nothing_and_is_made_good(
    exporter: Exporter, mode: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise StoreError("killed")

    placed = write(exporter.store, plain(30))
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTransaction, "commit", die)
        with pytest.raises(Exception, match="killed"):
            exporter.run(*mode)
    assert list(exporter.table.rglob("topic=*/*/*.parquet"))  # files are there, and nobody sees them
    assert exporter.offsets() == []
    exporter.run(*mode)
    assert exporter.offsets() == placed


def test_files_are_forced_before_the_commit_that_names_them(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    force, seen = delta.sync_file_system, []

    def noted(table: Path) -> None:
        seen.append((len(list(table.glob("_delta_log/*.json"))), len(list(table.rglob("topic=*/*/*.parquet")))))
        force(table)

    monkeypatch.setattr(delta, "sync_file_system", noted)
    write(exporter.store, plain(30))
    exporter.run()
    assert seen == [(0, 0), (1, 2), (2, 2)]  # before the table's commit, before the rows', and when all is done


@contextmanager
def dying_after_a_commit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the export within die after its first commit."""
    export_round = ExportLoop.export_round

    def die(self: ExportLoop[Any, Any]) -> tuple[ExportCounts, bool]:
        outcome = export_round(self)
        if self.source.rounds:
            raise StoreError("killed")
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(ExportLoop, "export_round", die)
        with pytest.raises(Exception, match="killed"):
            yield


@MODES
@pytest.mark.long
def test_what_dies_after_its_commit_repeats_nothing(
    exporter: Exporter, mode: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = write(exporter.store, plain(30))
    with dying_after_a_commit(monkeypatch):
        exporter.run(*mode)
    assert exporter.offsets() == placed
    report, _ = exporter.run(*mode)
    assert report["messages"] == 0
    assert exporter.offsets() == placed


def meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Have ``action`` run once, when an export has read where it stands and has not committed yet."""
    read_options, waiting = ExportSelection.read_options, [action]

    def with_action(self: ExportSelection, *arguments: Any) -> dict[str, str]:
        options = read_options(self, *arguments)
        if waiting:
            waiting.pop()()
        return options

    monkeypatch.setattr(ExportSelection, "read_options", with_action)


@pytest.mark.long
@pytest.mark.parametrize(
    ("mine", "others"),
    [
        ((), ()),
        (ONCE, ()),
        (ONCE, (*ONCE, "--checkpoint", "{work}/other")),
        ((), ("--topics", "Odd")),
        (("--topics", "Odd"), ()),
    ],
    ids=["batches", "stream_and_batch", "streams", "a_part_meanwhile", "all_meanwhile"],
)
def test_of_two_that_race_each_row_is_one_s(
    exporter: Exporter, mine: tuple[str, ...], others: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = write(exporter.store, plain(30))
    exporter.run("--ending-physical-offset", str(placed[10]))  # the table is there, with rows
    reports = []
    given = [text.format(work=exporter.work) for text in others]
    meanwhile(monkeypatch, lambda: reports.append(exporter.run(*given)[0]))
    reports.append(exporter.run(*mine)[0])
    assert reports[0]["messages"] > 0
    if "--topics" in mine:
        assert reports[1]["messages"] == 0
    assert sum(report["messages"] for report in reports) == len(placed) - 10
    assert exporter.offsets() == placed


@pytest.mark.long
@MODES
def test_one_that_began_before_the_log_grew_is_not_refused_where_another_has_landed_more(
    exporter: Exporter, mode: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(exporter.store, plain(10))
    prepare, placed = StoreLogs.prepare, []

    def with_another(self: StoreLogs[Any, Any]) -> None:
        prepare(self)
        if not placed:
            placed.extend(write(exporter.store, plain(20)))
            assert exporter.run()[0]["messages"] == 20

    monkeypatch.setattr(StoreLogs, "prepare", with_another)
    report, code = exporter.run(*mode)
    assert (report["messages"], code) == (0, 0)
    assert exporter.offsets() == placed


@pytest.mark.torture
@pytest.mark.parametrize("number", rounds(1))
def test_a_stream_is_killed_and_another_is_stopped_by_sigterm(exporter: Exporter, number: int) -> None:
    def start() -> subprocess.Popen[str]:
        arguments = ["--store", exporter.store, "--table", exporter.table, "--mode", "stream"]
        patient = "--conf spark.python.authenticate.socketTimeout=120s pyspark-shell"  # as in conftest
        return subprocess.Popen(
            [sys.executable, JOB, *arguments, "--trigger-interval", "1 second"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": patient},
            start_new_session=True,
        )

    def wait_for_commit(process: subprocess.Popen[str], version: int) -> None:
        while not (exporter.table / "_delta_log" / f"{version:020d}.json").exists():
            assert process.poll() is None
            time.sleep(0.1)

    write(exporter.store, plain(20))
    with start() as killed:
        try:
            wait_for_commit(killed, 1)  # 0 makes the table
        finally:
            os.killpg(killed.pid, signal.SIGKILL)  # its JVM, too, which would plan a batch while messages are written
    placed = write(exporter.store, plain(50))
    with start() as stopped:
        try:
            wait_for_commit(stopped, 2)
            stopped.send_signal(signal.SIGTERM)
            output, _ = stopped.communicate(timeout=300)
        finally:
            stopped.kill()
    report = json.loads(output.splitlines()[-1])
    assert (stopped.returncode, report["mode"], report["messages"]) == (0, "stream", 30)
    assert exporter.offsets() == placed
