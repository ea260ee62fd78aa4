"""Cleaning: what is too old goes, and what the disk has no room for; queues and Index follow the log."""

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from rmq_core.store.maintenance.background import Background
from rmq_core.store.maintenance.cleaning import Pressure
from rmq_core.store.results import GetStatus, PutStatus
from rmq_core.store.store import MessageStore
from rmq_formats.errors import OptionError
from tests.store.conftest import Opener
from tests.store.derived_from_log import records
from tests.store.small_stores import NoThreads, QuickDisk, config_of, fill, opened, put, read_all

HOUR_MS = 3_600_000
NOW_S = 1_700_000_000


class SizedDisk(QuickDisk):
    """A disk of which a test says how full it is."""

    ratio = 0.1

    def used_ratio(self, path: str) -> float:  # noqa: ARG002 # as Disk has it
        return self.ratio


def hour_of(now_ms: int) -> str:
    return f"{time.localtime(now_ms // 1000).tm_hour:02d}"


def aged(store: MessageStore, hours: list[float]) -> None:
    """Have the log's files been written so many hours before now."""
    for path, age in zip(sorted(Path(store.config.commitlog_path).iterdir()), hours, strict=False):
        os.utime(path, (NOW_S - age * 3600,) * 2)


def filled(open_store: Opener, disk: SizedDisk | None = None, **changes: object) -> MessageStore:
    """A store of several files, all of them forced."""
    store = open_store(disk=disk or SizedDisk(), **{"delete_when": hour_of(NOW_S * 1000), **changes})
    for _ in fill(store, 400):
        pass
    assert store.flush()
    assert len(store._log.files) > 6
    return store


def wait_removed(store: MessageStore) -> None:
    """Files go on a thread."""
    deadline = time.monotonic() + 60
    while any(int(path.name) < store.min_physical_offset for path in Path(store.config.commitlog_path).iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def check_readable(store: MessageStore) -> None:
    """All that the log has, and nothing else, can be read; each queue begins at its first message."""
    store.dispatch()
    wait_removed(store)
    wanted = [message for message in records(store.config) if message.sys_flag & 0xC in (0, 8)]
    wanted = [message for message in wanted if message.physical_offset >= store.min_physical_offset]
    found = sorted(int.from_bytes(record[28:36], "big") for record in read_all(store))
    assert found == [message.physical_offset for message in wanted]
    firsts: dict[tuple[str, int], int] = {}
    for message in wanted:
        firsts.setdefault((message.topic, message.queue_id), message.queue_offset)
    for (topic, queue_id), first in firsts.items():
        assert store.min_offset(topic, queue_id) == first
        below = store.get(topic, queue_id, first - 1, 1)
        assert first == 0 or (below.status, below.next_offset) == (GetStatus.OFFSET_TOO_SMALL, first)


def test_old_files_go_at_their_hour_with_queues_and_index(open_store: Opener) -> None:
    store = filled(open_store, destroy_forcibly_interval_ms=0)
    aged(store, [73, 73, 73, 71, 73])
    starts = [file.start for file in store._log.files]
    held = store.read_log_range(0, 100)
    assert held is not None
    before = bytes(held)
    report = store.clean(NOW_S * 1000)
    assert (report.pressure, report.log_files) == (Pressure.NONE, 3)
    assert report.queue_files > 0
    assert report.index_files > 0
    assert store.min_physical_offset == starts[3]
    wait_removed(store)
    assert bytes(held) == before, "a slice that someone holds stays readable"
    check_readable(store)
    assert store.shutdown()
    assert sorted(int(path.name) for path in Path(store.config.commitlog_path).iterdir()) == starts[3:]
    again = open_store(disk=SizedDisk())
    assert again.recovery.is_trusted
    assert again.min_physical_offset == starts[3]
    check_readable(again)


def test_at_another_hour_they_stay_unless_an_operator_asks(open_store: Opener) -> None:
    store = filled(open_store, delete_when=hour_of(NOW_S * 1000 + 5 * HOUR_MS))
    aged(store, [73] * 20)
    assert store.clean(NOW_S * 1000).log_files == 0
    assert store.clean(NOW_S * 1000, manually=True).log_files == store.config.delete_batch


def test_the_last_file_stays_whatever_its_age(open_store: Opener) -> None:
    store = filled(open_store, delete_batch=1000)
    aged(store, [1000] * 100)
    store.clean(NOW_S * 1000)
    assert len(store._log.files) == 1
    check_readable(store)
    numbers = {key: store.next_offset(*key) for key in [("Orders", 0), ("Clicks", 2), ("Payments", 1)]}
    assert store.shutdown()
    again = open_store(disk=SizedDisk())
    assert {key: again.next_offset(*key) for key in numbers} == numbers
    check_readable(again)


@pytest.mark.parametrize("slave", [True, False])
def test_the_last_file_stays_though_it_is_full(open_store: Opener, slave: bool) -> None:
    """A slave makes the next file when its first byte comes; a master may lose it with its power."""
    store = filled(open_store)
    copied = bytes(b"".join(file.view for file in store._log.files[:2]))
    assert store.shutdown()
    settings = {"name": "full", "delete_when": hour_of(NOW_S * 1000), "offset_check_in_slave": True}
    full = open_store(disk=SizedDisk(), slave=True, **settings)
    assert full.append_to_commit_log(0, copied)
    assert full.flush()
    if not slave:
        assert full.shutdown()
        full = open_store(disk=SizedDisk(), **settings)
    full.dispatch()
    assert full.max_physical_offset == full.dispatched_offset == len(copied)
    assert full.flush()
    aged(full, [1000] * 100)
    assert full.clean(NOW_S * 1000).log_files == 1
    assert (full.min_physical_offset, full.max_physical_offset) == (len(copied) // 2, len(copied))
    check_readable(full)


def test_a_full_file_stays_until_the_next_one_has_a_forced_record(open_store: Opener) -> None:
    """A loss of power takes a file without one: a slave's log would begin at 0 anew, where its master's does not."""
    store = filled(open_store)
    copied = bytes(b"".join(file.view for file in store._log.files[:2]))
    record = store._log.record(len(copied) // 2)
    assert record is not None
    rest = len(copied) // 2 + len(record)
    assert store.shutdown()
    slave = open_store(
        disk=SizedDisk(), slave=True, name="begun", delete_when=hour_of(NOW_S * 1000), flush_interval_ms=60_000
    )
    aged(slave, [1000] * 100)
    for begin, end in ((0, len(copied) // 2), (len(copied) // 2, rest - 1), (rest - 1, rest)):
        assert slave.append_to_commit_log(begin, copied[begin:end])
        aged(slave, [1000] * 100)
        slave.dispatch()
        assert slave.clean(NOW_S * 1000).log_files == 0
        assert slave.flush()
        assert slave.clean(NOW_S * 1000).log_files == (end == rest)


def test_a_batch_of_cleaning_has_its_limit(open_store: Opener) -> None:
    store = filled(open_store, delete_batch=2)
    aged(store, [100] * 20)
    assert [store.clean(NOW_S * 1000).log_files for _ in range(2)] == [2, 2]


@pytest.mark.parametrize(
    ("ratio", "ages", "removed", "pressure"),
    [
        (0.76, [80, 80, 10], 2, Pressure.RECLAIM),
        (0.75, [80, 80, 10], 0, Pressure.NONE),
        (0.86, [80, 1, 1, 80], 3, Pressure.FORCE),
        (0.91, [1, 1, 1, 1], 3, Pressure.FULL),
    ],
)
def test_a_disk_that_fills_up_has_files_go_at_any_hour(
    open_store: Opener, ratio: float, ages: list[float], removed: int, pressure: Pressure
) -> None:
    disk = SizedDisk()
    store = filled(open_store, disk, delete_when=hour_of(NOW_S * 1000 + 5 * HOUR_MS), delete_batch=3)
    aged(store, [*ages, *[0.5] * 20])
    disk.ratio = ratio
    report = store.clean(NOW_S * 1000)
    assert (report.log_files, report.pressure) == (removed, pressure)
    assert put(store).status is (PutStatus.SERVICE_NOT_AVAILABLE if pressure is Pressure.FULL else PutStatus.PUT_OK)
    disk.ratio = 0.5
    store.clean(NOW_S * 1000)
    assert put(store).status is PutStatus.PUT_OK, "it heals by itself"
    check_readable(store)


def test_force_can_be_switched_off(open_store: Opener) -> None:
    disk = SizedDisk()
    store = filled(open_store, disk, clean_forcibly=False)
    aged(store, [1] * 20)
    disk.ratio = 0.86
    assert store.clean(NOW_S * 1000).log_files == 0


def test_what_is_not_dispatched_or_not_forced_stays(open_store: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Background, "flush_if_due", lambda _: None)  # full queue files would be forced at once
    store = open_store(
        disk=SizedDisk(),
        delete_when=hour_of(NOW_S * 1000),
        flush_interval_ms=60_000,
        flush_consumequeue_interval_ms=60_000,
    )
    while store.max_physical_offset < 5 * 16384:
        put(store, body=bytes(1000))
    aged(store, [100] * 20)
    assert store.clean(NOW_S * 1000).log_files == 0
    assert store.flush()
    assert store.clean(NOW_S * 1000).log_files == 0
    store.dispatch()
    assert store.clean(NOW_S * 1000).log_files == 0, "the units are not forced"
    assert store.flush()
    assert store.clean(NOW_S * 1000).log_files == 5
    store.dispatch()
    check_readable(store)


@pytest.mark.parametrize("text", ["24", "x", "4.5", "-1"])
def test_hours_that_no_day_has_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(OptionError, match="deleteWhen"):
        config_of(tmp_path, delete_when=text)


def test_a_topic_that_was_deleted_before_what_is_cleaned_is_so_after_a_kill_too(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store", delete_when=hour_of(NOW_S * 1000))
    store = opened(config, disk=SizedDisk(), threads=NoThreads())
    list(fill(store, 20))
    store.delete_topics(["Orders"])
    list(fill(store, 200, seed=2))
    assert store.flush()
    aged(store, [73])
    assert store.clean(NOW_S * 1000).log_files == 1  # the file itself is not removed yet
    store.delete_topics(["Payments"])
    end = store.deleted_topics["Orders"]
    shutil.copytree(config.root, tmp_path / "killed")
    killed = opened(config_of(tmp_path / "killed"))
    assert killed.min_physical_offset == 0
    assert killed.deleted_topics["Orders"] == end
    for one in (killed, store):
        one.shutdown()


def test_files_are_deleted_with_a_pause_and_all_before_the_end(open_store: Opener) -> None:
    store = filled(open_store, delete_log_interval_ms=3_600_000, file_reserved_hours=1)
    aged(store, [2.0] * 3)
    before = len(list(Path(store.config.commitlog_path).iterdir()))
    report = store.clean(NOW_S * 1000)
    assert report.log_files == 3
    deadline = time.monotonic() + 30
    while len(list(Path(store.config.commitlog_path).iterdir())) == before:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    store._background._run_once()  # an hour early
    assert len(list(Path(store.config.commitlog_path).iterdir())) == before - 1
    assert store.shutdown()
    names = sorted(int(path.name) for path in Path(store.config.commitlog_path).iterdir())
    assert names[0] == 3 * store.config.commitlog_file_bytes


def test_a_file_that_cannot_be_deleted_is_tried_again_after_its_interval(open_store: Opener) -> None:
    store = open_store(redelete_interval_ms=3_600_000, flush_consumequeue_interval_ms=60_000)
    tries = []

    def fail() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError(errno.EBUSY, "in use")

    store._background.remove_later(fail)
    deadline = time.monotonic() + 30
    while not tries:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert 0 < store._background._run_once() <= 60
    assert len(tries) == 1
    store._background._remove_at -= 3601
    store._background._run_once()
    assert len(tries) == 2


def log_file_count(store: MessageStore) -> int:
    return len(list(Path(store.config.commitlog_path).iterdir()))


def queue_file_count(store: MessageStore) -> int:
    return sum(path.is_file() for path in (Path(store.config.root) / "consumequeue").rglob("*"))


def test_a_file_that_somebody_reads_stays_until_it_is_free_or_its_time_is_over(open_store: Opener) -> None:
    store = filled(open_store, threads=NoThreads(), destroy_forcibly_interval_ms=3_600_000, file_reserved_hours=1)
    aged(store, [2.0] * 2)
    before = log_file_count(store)
    first, second = (store.read_log_range(offset, 100) for offset in (0, store.config.commitlog_file_bytes))
    assert first is not None
    assert second is not None
    assert store.clean(NOW_S * 1000).log_files == 2
    store._background._run_once()
    assert log_file_count(store) == before
    del first
    store._background._run_once()
    assert log_file_count(store) == before - 1
    store._background._to_remove[0].forced_at -= 3601
    store._background._run_once()
    assert log_file_count(store) == before - 2
    assert len(bytes(second)) == 100
    assert store.shutdown()


def test_a_shutdown_waits_for_no_reader(open_store: Opener) -> None:
    store = filled(open_store, threads=NoThreads(), file_reserved_hours=1)
    aged(store, [2.0])
    before = log_file_count(store)
    held = store.read_log_range(0, 100)
    assert store.clean(NOW_S * 1000).log_files == 1
    store._background._is_stopping = True
    store._background._run_once()
    assert log_file_count(store) == before - 1
    assert held is not None
    assert store.shutdown()


def test_expired_queue_files_are_deleted_by_the_thread_with_a_pause_after_each_queue(open_store: Opener) -> None:
    store = filled(open_store, threads=NoThreads(), delete_queue_interval_ms=3_600_000, delete_batch=1000)
    aged(store, [1000] * 100)
    before = queue_file_count(store)
    report = store.clean(NOW_S * 1000)
    assert report.queue_files > 2
    assert queue_file_count(store) == before, "the caller of clean deletes none"
    store._background._run_once()
    after_first = queue_file_count(store)
    assert before - report.queue_files < after_first < before
    store._background._run_once()  # an hour early
    assert queue_file_count(store) == after_first
    store._background._is_stopping = True
    store._background._run_once()
    assert queue_file_count(store) == before - report.queue_files
    check_readable(store)
    assert store.shutdown()


def test_a_topic_made_again_keeps_its_new_file_where_an_expired_one_waits(open_store: Opener) -> None:
    store = filled(open_store, threads=NoThreads(), delete_batch=1000)
    aged(store, [1000] * 100)
    assert store.clean(NOW_S * 1000).queue_files > 2
    store.delete_topics(["Orders"])
    for _ in range(30):
        put(store, "Orders")
    store.dispatch()
    assert not store.remove_deleted(1)
    store._background._is_stopping = True
    store._background._run_once()
    assert (store.min_offset("Orders", 0), store.max_offset("Orders", 0)) == (0, 30)
    assert store.get("Orders", 0, 0, 30).status is GetStatus.FOUND
    assert (Path(store.config.root) / "consumequeue" / "Orders" / "0" / f"{0:020d}").is_file()
    assert store.shutdown()
