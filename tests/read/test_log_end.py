"""The log's end where records of an earlier recovery stand behind it."""

from pathlib import Path

import pytest

from rmq_formats import Store
from rmq_formats.read.log_end import Leftovers, find_leftovers
from rmq_formats.repair.job import repair_store
from rmq_formats.storage.commitlog import commitlog_segments
from rmq_formats.storage.segments import open_storage
from rmq_formats.tasks.runner import ProcessRunner
from rmq_formats.verify.job import verify_store
from rmq_formats.verify.phases.plan import VerifyOptions
from rmq_formats.write.log_end import log_end, log_segments
from tests.rebuilt_stores import snapshot
from tests.store_lives import FIRST_MS, LOG_FILE_BYTES, LogWriter, recovered_log
from tests.verified_stores import codes, flip_at, only


def leftovers(root: Path) -> Leftovers | None:
    storage, path = open_storage(str(root))
    return find_leftovers(storage, path, commitlog_segments(storage, path))


@pytest.fixture
def log() -> LogWriter:
    return recovered_log()


def test_a_log_ends_where_its_queues_end_and_its_leftovers_begin(tmp_path: Path, log: LogWriter) -> None:
    root = log.save(tmp_path / "store")
    found = leftovers(root)
    assert found is not None
    assert found.log_end == log.end
    assert found.size_bytes > 1000
    report = verify_store(str(root), VerifyOptions(), ProcessRunner(1))
    assert (report.messages, codes(report)) == (60, {"index.missing": 60})
    finding = only(report, "commitlog.leftover")
    assert (finding.physical_offset, finding.size) == (log.end, found.size_bytes)
    assert f"the log ends at {log.end}, 29 records of an earlier life are behind it" in finding.detail


def test_readers_end_at_the_logs_end(tmp_path: Path, log: LogWriter) -> None:
    root = log.save(tmp_path / "store")
    store = Store(str(root))
    assert len(list(store.messages())) == store.count_rows() == 60
    assert [message.body[:4] for message in store.messages("Orders", from_offset=58)] == [b"new ", b"new "]
    assert store.query(topic="Orders", queue_id=0, offset=70) == []


def test_a_repair_has_nothing_to_do_and_a_rebuild_keeps_the_units(tmp_path: Path, log: LogWriter) -> None:
    root = log.save(tmp_path / "store")
    before = snapshot(root / "consumequeue"), snapshot(root / "commitlog")
    # an Index is missing, so that the repair makes one: of the 60 messages
    repair_store(str(root), VerifyOptions(consumequeue_file_bytes=2000), ProcessRunner(1), apply=True)
    after = snapshot(root / "consumequeue"), snapshot(root / "commitlog")
    assert [[item[-1] for item in part.values()] for part in before] == [
        [item[-1] for item in part.values()] for part in after
    ]
    assert Store(str(root)).count_rows() == 60


def test_a_write_goes_on_at_the_logs_end(tmp_path: Path, log: LogWriter) -> None:
    root = log.save(tmp_path / "store")
    assert log_end(str(root), log_segments(str(root)), LOG_FILE_BYTES).physical_offset == log.end


def test_damage_before_records_that_queues_name_is_no_end(tmp_path: Path) -> None:
    log = LogWriter()
    placed = [log.add("Orders", number, f"order {number:03}", FIRST_MS + number) for number in range(60)]
    log.write(placed[20] + 4, b"\0\0\0\0")
    root = log.save(tmp_path / "store")
    assert leftovers(root) is None
    report = verify_store(str(root), VerifyOptions(), ProcessRunner(1))
    assert codes(report)["commitlog.magic"] == 1
    assert Store(str(root)).count_rows() == 60  # 59 records, and a row of the damage


def test_leftovers_are_known_behind_a_damaged_last_record(tmp_path: Path, log: LogWriter) -> None:
    root = log.save(tmp_path / "store")
    flip_at(root / "commitlog" / f"{0:020d}", log.end - 30)
    behind = leftovers(root)
    assert behind is not None
    assert behind.log_end == log.end


@pytest.mark.parametrize("byte", [0, 3, 7])  # far behind the log, in another file, in the middle of a record
def test_leftovers_are_known_where_the_last_unit_is_damaged(tmp_path: Path, log: LogWriter, byte: int) -> None:
    root = log.save(tmp_path / "store")
    flip_at(root / "consumequeue" / "Orders" / "0" / f"{0:020d}", 59 * 20 + byte)
    behind = leftovers(root)
    assert behind is not None
    assert behind.log_end == log.end


@pytest.mark.parametrize("damaged", [29, 40])  # the last record that a queue names, and one that none names
def test_damage_before_newer_undispatched_records_is_no_end(tmp_path: Path, damaged: int) -> None:
    """As a power loss leaves a log: queues end early, pages of the log are lost, and newer records stand behind."""
    log = LogWriter()
    placed = [log.add("Orders", number, f"order {number:03}", FIRST_MS + number) for number in range(60)]
    for number in range(30, 60):
        del log.units["Orders", 0, number]
    log.write(placed[damaged] + 4, b"\0\0\0\0")
    assert leftovers(log.save(tmp_path / "stopped")) is None
    assert leftovers(log.save(tmp_path / "killed", is_running=True)) is None


def test_a_broker_killed_after_a_recovery_has_leftovers_behind_what_it_had_not_dispatched(
    tmp_path: Path, log: LogWriter
) -> None:
    for number in range(56, 60):
        del log.units["Orders", 0, number]
    found = leftovers(log.save(tmp_path / "store", is_running=True))
    assert found is not None
    assert found.log_end == log.end


def test_old_records_directly_at_the_end_are_taken_up_as_a_broker_takes_them(tmp_path: Path) -> None:
    log, now = LogWriter(), FIRST_MS
    for number in range(20):
        log.add("Orders", number, f"body {number:03}", now + number)
    cut = log.end
    for number in range(20, 40):
        log.add("Orders", number, f"LOST {number:03}", now + number)
    old_end = log.end
    log.cut(cut)
    for number in range(20, 25):
        log.add("Orders", number, f"new  {number:03}", now + 60_000 + number)
    root = log.save(tmp_path / "whole")
    assert leftovers(root) is None
    assert Store(str(root)).count_rows() == 40
    log.write(old_end, b"half of a record" + bytes(100))
    log.write(old_end + 200, bytes(log.files[0][cut : cut + 300]))
    root = log.save(tmp_path / "broken")
    assert leftovers(root) is None  # no sound record is behind the break: these bytes are a tail


def test_leftovers_reach_over_files_that_a_recovery_did_not_delete(tmp_path: Path) -> None:
    log = recovered_log(kept=20, lost=60, new=5, file_bytes=4096)
    root = log.save(tmp_path / "store")
    assert len(log.files) == 3
    found = leftovers(root)
    assert found is not None
    assert (found.log_end, found.data_end > 8192) == (log.end, True)
    assert Store(str(root)).count_rows() == 25
    assert codes(verify_store(str(root), VerifyOptions(), ProcessRunner(1))) == {"index.missing": 25}


def test_a_log_that_ends_with_a_file_has_leftovers_in_the_next(tmp_path: Path) -> None:
    log = recovered_log(kept=20, lost=60, new=5, file_bytes=4096)
    number = 25
    while log.end < 4096:
        end = log.end
        log.add("Orders", number, "x" * 50, FIRST_MS + 10_000_000)
        number += 1
    log.cut(4096)
    log.write(4096, b"half a record")
    root = log.save(tmp_path / "store")
    assert end < 4096
    found = leftovers(root)
    assert found is not None
    assert found.log_end == 4096
    assert Store(str(root)).count_rows() == number - 1


def test_a_log_without_queues_is_read_whole(tmp_path: Path, log: LogWriter) -> None:
    log.units = {}
    root = log.save(tmp_path / "store")
    assert leftovers(root) is None
    assert Store(str(root)).count_rows() > 80
