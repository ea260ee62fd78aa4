"""The log's end where records of an earlier recovery stand behind it."""

from pathlib import Path

import pytest

from rmq_formats import Store
from rmq_formats.codecs.rocksdb_queue import OFFSETS_FAMILY, UNITS_FAMILY
from rmq_formats.read.log_end import Leftovers, find_leftovers
from rmq_formats.storage.rocksdb import make_rocksdb
from rmq_formats.storage.store_files import open_store
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.repair.job import repair_store
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from rmq_offline.write.log_end import list_log_segments, log_end
from tests.support.stores.rebuilt_stores import snapshot
from tests.support.stores.store_lives import FIRST_MS, LOG_FILE_BYTES, LogWriter, recovered_log, save_checkpoint
from tests.support.stores.verified_stores import codes, flip_at, only


def leftovers(root: Path) -> Leftovers | None:
    files = open_store(str(root))
    return find_leftovers(files, files.segments)


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
    assert f"the log ends at {log.end}; a recovery left 29 records after it" in finding.detail


def test_a_log_ends_where_its_queues_end_beside_a_database_without_units(tmp_path: Path, log: LogWriter) -> None:
    root = log.save(tmp_path / "store")
    make_rocksdb(root / "consumequeue_rocksdb", {UNITS_FAMILY: iter(()), OFFSETS_FAMILY: iter(())})
    assert open_store(str(root)).layouts.queue_database is not None
    found = leftovers(root)
    assert found is not None
    assert found.log_end == log.end


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
    assert log_end(str(root), list_log_segments(str(root)), LOG_FILE_BYTES).physical_offset == log.end


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


@pytest.mark.parametrize("byte", [100, 3])  # of its body, and of its size
def test_leftovers_are_known_behind_a_damaged_last_record_after_a_rebuild(
    tmp_path: Path, log: LogWriter, byte: int
) -> None:
    """A rebuild replaces the unit of the damaged record by one that does not tell the record's size."""
    last_begin = log.units["Orders", 0, 59].physical_offset
    root = log.save(tmp_path / "store")
    flip_at(root / "commitlog" / f"{0:020d}", last_begin + byte)
    sizes = StoreSizes(LOG_FILE_BYTES, 2000, 0, 50, 200, ())
    rebuild_store(str(root), None, RebuildOptions(consumequeue=True, index=False, sizes=sizes), ProcessRunner(1))
    behind = leftovers(root)
    assert behind is not None
    assert behind.log_end == (log.end if byte == 100 else last_begin)
    repair_store(str(root), VerifyOptions(), ProcessRunner(1), apply=True, accept=["all"])
    assert [message.body[:4] for message in Store(str(root)).messages("Orders")].count(b"LOST") == 0


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


def test_a_log_without_queues_ends_where_the_clock_steps_back_from_the_checkpoint(
    tmp_path: Path, log: LogWriter
) -> None:
    last_ms = FIRST_MS + 160_000  # 90 records before the cut, a minute, and ten after it
    log.units = {}
    root = log.save(tmp_path / "store")
    save_checkpoint(root, last_ms + 1)
    assert leftovers(root) is None
    save_checkpoint(root, last_ms)
    behind = leftovers(root)
    assert behind is not None
    assert behind.log_end == log.end
    (root / "abort").touch()
    assert leftovers(root) is None


def log_with_named_leftovers(*, to_the_end_of_a_file: bool = False) -> LogWriter:
    """Write a log that was cut and written anew, and whose queue still names the records after the cut."""
    log = LogWriter(16384 if to_the_end_of_a_file else LOG_FILE_BYTES)
    for number in range(50):
        log.add("Orders", number, f"kept {number:03}", FIRST_MS + number)
    cut = log.end
    lost = [log.add("Orders", number, "LOST" * 9, FIRST_MS + number) for number in range(50, 150)]
    log.files = {0: log.files[0]}  # a recovery deletes the files after the cut
    former = {name: unit for name, unit in log.units.items() if cut <= unit.physical_offset < log.file_bytes}
    log.cut(cut)
    for number in range(50, 60):
        log.add("Orders", number, "new", FIRST_MS + 60_000)
    assert log.end not in lost
    log.units = {name: unit for name, unit in former.items() if unit.physical_offset > log.end} | log.units
    return log


@pytest.mark.parametrize("to_the_end_of_a_file", [False, True])
def test_a_log_ends_where_the_clock_steps_back_though_former_units_name_its_leftovers(
    tmp_path: Path, *, to_the_end_of_a_file: bool
) -> None:
    log = log_with_named_leftovers(to_the_end_of_a_file=to_the_end_of_a_file)
    root = log.save(tmp_path / "store")
    behind = leftovers(root)
    assert behind is not None
    assert behind.log_end == log.end
    assert Store(str(root)).count_rows() == 60
    report = verify_store(str(root), VerifyOptions(consumequeue_file_bytes=2000), ProcessRunner(1))
    assert (report.messages, codes(report)) == (60, {"index.missing": 60})


def log_with_half_a_leftover(leftover_bytes: int) -> LogWriter:
    """Write a log that was cut and written anew up to some bytes before the file's end mark."""
    log = LogWriter(16384)
    for number in range(50):
        log.add("Orders", number, f"kept {number:03}", FIRST_MS + number)
    cut = log.end
    for number in range(50, 150):
        last = log.end
        log.add("Orders", number, "LOST" * 9, FIRST_MS + number)
        if log.end > log.file_bytes:
            break
    log.files = {0: log.files[0]}
    log.cut(cut)
    number = 50
    while log.end < last - 400:
        log.add("Orders", number, "new", FIRST_MS + 60_000)
        number += 1
    size = log.add("Orders", number, "", FIRST_MS + 60_000)
    rest = last - leftover_bytes - log.end
    assert rest > 0 < size
    log.add("Orders", number + 1, "x" * (rest - (log.end - size)), FIRST_MS + 60_000)
    assert log.end == last - leftover_bytes
    return log


@pytest.mark.parametrize("leftover_bytes", [1, 78, 120])
def test_a_log_ends_before_half_a_leftover_and_the_end_mark_of_a_file_that_none_follows(
    tmp_path: Path, leftover_bytes: int
) -> None:
    log = log_with_half_a_leftover(leftover_bytes)
    root = log.save(tmp_path / "store")
    behind = leftovers(root)
    assert behind is not None
    assert behind.log_end == log.end
    report = verify_store(str(root), VerifyOptions(consumequeue_file_bytes=2000), ProcessRunner(1))
    assert codes(report) == {"index.missing": report.messages}
    assert Store(str(root)).count_rows() == report.messages == len(log.units)


def test_a_last_record_before_the_end_mark_that_a_unit_names_is_damage(tmp_path: Path) -> None:
    log = log_with_half_a_leftover(78)
    last = max(unit.physical_offset for unit in log.units.values())
    log.write(last + 4, b"\0\0\0\0")
    root = log.save(tmp_path / "store")
    assert leftovers(root) is None
    assert codes(verify_store(str(root), VerifyOptions(), ProcessRunner(1)))["commitlog.magic"] == 1


def test_a_record_that_a_unit_names_is_damage_though_the_clock_steps_back(tmp_path: Path) -> None:
    log = LogWriter()
    times = [FIRST_MS + (10_000 if number <= 20 else number) for number in range(60)]
    placed = [log.add("Orders", number, f"order {number:03}", time_ms) for number, time_ms in enumerate(times)]
    log.write(placed[20] + 4, b"\0\0\0\0")
    root = log.save(tmp_path / "store")
    assert leftovers(root) is None
    assert codes(verify_store(str(root), VerifyOptions(), ProcessRunner(1)))["commitlog.magic"] == 1


def test_leftovers_that_fill_the_logs_tail_are_known_by_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_formats.read.log_end._TAIL_BYTES", 1000)
    log = log_with_named_leftovers()
    root = log.save(tmp_path / "store")
    save_checkpoint(root, FIRST_MS + 60_000)
    behind = leftovers(root)
    assert behind is not None
    assert behind.log_end == log.end
