"""Losses of power, simulated: sectors, sizes and names that were not forced are there, or not, in any mixture."""

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_core.store.commitlog.quarantine import TOMBSTONE_TOPIC
from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_core.store.results import PutStatus
from tests.store.derived_from_log import check_derived
from tests.store.power_loss import Camera, LossyDisk, State
from tests.store.small_stores import (
    BATCH_TOPIC,
    KINDS,
    NOW_MS,
    NoThreads,
    batch_topics_of,
    config_of,
    config_of_kind,
    log_records,
    name_batch_topics,
    opened,
    put,
    put_any,
)
from tests.support.stores.store_files import tree
from tests.support.torture import rounds

pytestmark = pytest.mark.torture

SYNC = FlushDiskType.SYNC
PICTURES = 40  # of a seed; each gives up to two more, of its recovery and of the recovery of that
MESSAGES = 90


def sent_records(tmp_path: Path, seed: int, kind: str = "plain") -> list[tuple[int, bytes]]:
    """All records that the messages of a seed become."""
    config = config_of_kind(kind, tmp_path / "model")
    store = opened(config)
    source = random.Random(seed)
    for number in range(MESSAGES):
        put_any(store, source, number, NOW_MS + number * 10)
    assert store.shutdown()
    return log_records(config)


def pictures(tmp_path: Path, seed: int, count: int, kind: str) -> list[State[int]]:
    """Write the messages of a seed, with SYNC_FLUSH; states of the disk meanwhile, opening and shutdown included."""
    source = random.Random(-seed)
    camera = Camera(tmp_path / "live", source, count, one_in=max(1, 300 // count), acknowledged=int)
    config = sync_config(camera.disk.root, kind)
    store = opened(config, disk=camera.disk)
    camera.acknowledged = lambda: store.flushed_offset
    messages = random.Random(seed)
    for number in range(MESSAGES):
        result = put_any(store, messages, number, NOW_MS + number * 10)
        if source.randrange(4) == 0:
            store.dispatch()
            assert store.wait_flushed(result.end_offset, 30)
            store.dispatch()
        if source.randrange(12) == 0:
            store.flush()
    assert store.shutdown()
    camera.disk.close_kept()
    return camera.states


def sync_config(root: Path, kind: str) -> StoreConfig:
    return config_of_kind(
        kind, root, flush_disk_type=SYNC, flush_consumequeue_interval_ms=10, flush_index_interval_ms=10
    )


def check(
    state: State[int],
    sent: list[tuple[int, bytes]],
    source: random.Random,
    depth: int = 2,
    *,
    index: bool = True,
    kind: str = "plain",
) -> None:
    """What lost its power opens with all that was acknowledged and nothing else, and so does what loses it then.

    And what is there after one recovery is there after two.
    """
    camera = Camera(state.root, source, min(depth, 1), 20, lambda: state.acknowledged)
    store = opened(sync_config(state.root, kind), disk=camera.disk)
    assert store.max_physical_offset >= state.acknowledged
    # Sectors come to the disk in any order: what was not acknowledged may have a hole, and sound records behind it.
    assert all(damage.physical_offset >= state.acknowledged for damage in store.recovery.damages)
    assert store.shutdown()
    camera.disk.close_kept()
    found = [item for item in log_records(store.config) if TOMBSTONE_TOPIC.encode() not in item[1]]
    wanted = dict(sent)
    assert all(wanted.get(offset) == record for offset, record in found)
    acknowledged = [item for item in sent if item[0] < state.acknowledged]
    assert found[: len(acknowledged)] == acknowledged
    check_derived(store.config, index=index, batch_topics=batch_topics_of(store.config))
    before = tree(Path(store.config.commitlog_path))
    again = opened(store.config)
    assert again.recovery.tail == again.recovery.damages == ()
    assert again.shutdown()
    assert tree(Path(store.config.commitlog_path)) == before
    check_derived(store.config, index=index, batch_topics=batch_topics_of(store.config))
    for interrupted in camera.states:
        check(interrupted, sent, source, depth - 1, index=index, kind=kind)
    shutil.rmtree(state.root)


@pytest.mark.parametrize(
    ("kind", "seed"), [(kind, seed) for kind in KINDS for seed in rounds(8 if kind == "plain" else 3)]
)
def test_what_was_acknowledged_survives_a_loss_of_power(tmp_path: Path, kind: str, seed: int) -> None:
    if kind == "batch queues":  # the topic is there before its messages
        name_batch_topics(tmp_path / "live", BATCH_TOPIC)
    sent = sent_records(tmp_path, seed, kind)
    states = pictures(tmp_path, seed, PICTURES, kind)
    assert len(states) >= PICTURES // 2
    assert any(state.acknowledged for state in states)
    source = random.Random(seed)
    for state in states:
        check(state, sent, source, kind=kind)


def test_without_forcing_messages_are_lost_but_none_is_made_up(tmp_path: Path) -> None:
    sent = sent_records(tmp_path, 1)
    source = random.Random(3)
    camera = Camera(tmp_path / "live", source, 0, one_in=1, acknowledged=int)
    store = opened(
        config_of(camera.disk.root, flush_interval_ms=60_000, flush_consumequeue_interval_ms=60_000), disk=camera.disk
    )
    messages = random.Random(1)
    for number in range(MESSAGES):
        put_any(store, messages, number, NOW_MS + number * 10)
    store.dispatch()
    for _ in range(10):
        camera.take()
    assert store.shutdown()
    camera.disk.close_kept()
    for state in camera.states:
        check(state, sent, source, index=False)  # keys of what was lost stay in the Index, and lead to nothing


def test_what_a_failed_force_has_dropped_is_written_again_before_it_counts(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    disk = LossyDisk(root)
    config = config_of(root, flush_disk_type=SYNC, commitlog_file_bytes=1 << 20)
    store = opened(config, disk=disk)
    before = put(store, body=b"before")
    assert store.wait_flushed(before.end_offset, 30)
    assert store.flush()
    dropped = put(store, body=b"dropped" * 10_000)
    disk.is_broken = True
    assert not store.wait_flushed(dropped.end_offset, 30)
    assert not store.shutdown()
    disk.is_broken = False
    store = opened(config, disk=disk)
    assert store.max_physical_offset == dropped.end_offset
    assert store.flushed_offset == dropped.end_offset, "it is readable, and so must be on the disk"
    after = put(store, body=b"after")
    assert store.wait_flushed(after.end_offset, 30)
    disk.picture(tmp_path / "left", random.Random(1), lose=1)
    assert store.shutdown()
    disk.close_kept()
    left = opened(config_of(tmp_path / "left", flush_disk_type=SYNC, commitlog_file_bytes=1 << 20))
    assert left.recovery.damages == ()
    assert left.max_physical_offset == after.end_offset
    assert left.shutdown()


def test_all_directories_of_a_new_store_are_forced_before_it_acknowledges(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    disk = LossyDisk(root)
    config = config_of(root / "not" / "there" / "store", flush_disk_type=SYNC)
    store = opened(config, disk=disk)
    result = put(store)
    assert store.wait_flushed(result.end_offset, 30)
    disk.picture(tmp_path / "left", random.Random(1), lose=1)
    assert store.shutdown()
    disk.close_kept()
    left = opened(config_of(tmp_path / "left" / "not" / "there" / "store", flush_disk_type=SYNC))
    assert left.max_physical_offset == result.end_offset
    assert left.shutdown()


class HookedList(list[Any]):
    """A list that calls a function while one of its items is asked for."""

    hook: Callable[[], None] | None = None
    wait = 0

    def __getitem__(self, key: Any) -> Any:
        self.wait -= 1
        if self.hook is not None and self.wait < 0:
            hook, self.hook = self.hook, None
            hook()
        return super().__getitem__(key)


@pytest.mark.parametrize("wait", [0, 1])
def test_a_queue_file_that_fills_up_while_dirty_ones_are_taken_is_forced(tmp_path: Path, wait: int) -> None:
    root = tmp_path / "store"
    root.mkdir()
    disk = LossyDisk(root)
    config = config_of(root, flush_disk_type=SYNC, flush_consumequeue_interval_ms=3_600_000)
    store = opened(config, disk=disk)
    in_file = config.consumequeue_file_bytes // 20

    def fill(count: int) -> None:
        for _ in range(count):
            result = put(store)
        assert store.wait_flushed(result.end_offset, 30)
        store.dispatch()

    fill(in_file - 1)
    assert store.flush()
    fill(1)
    writer = store._dispatch.writer
    writer._files = files = HookedList(writer._files)
    files.hook, files.wait = lambda: fill(2), wait  # the loop's thread goes on to the next file meanwhile
    assert store.flush()
    assert files.hook is None
    disk.picture(tmp_path / "left", random.Random(1), lose=1)
    assert store.shutdown()
    disk.close_kept()
    first = Path("consumequeue/T/0/00000000000000000000")
    assert (tmp_path / "left" / first).read_bytes() == (root / first).read_bytes()


class LogBreaks(LossyDisk):
    """A disk that forces no file of the log."""

    breaks = False

    def sync(self, descriptor: int) -> None:
        self.is_broken = self.breaks and "/commitlog/" in os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        super().sync(descriptor)


def test_a_deletion_that_cannot_be_kept_takes_no_earlier_ones_place(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store", commitlog_file_bytes=1000, preallocate=False)
    Path(config.root).mkdir()
    disk = LogBreaks(Path(config.root))
    store = opened(config, disk=disk)
    for _ in range(3):
        put(store)
    store.delete_topics(["T"])
    put(store, body=b"new")
    assert store.flush()
    disk.breaks = True
    for number in range(20):  # up to a later file, none of which is forced
        put(store, "Other", body=b"%d" % number * 50)
    with pytest.raises(OSError, match="Input/output error"):
        store.delete_topics(["T"])
    disk.picture(tmp_path / "left", random.Random(1), lose=1.0)
    disk.breaks = False
    store.shutdown()
    disk.close_kept()
    left = opened(config_of(tmp_path / "left", commitlog_file_bytes=1000))
    assert left.max_physical_offset < max(store.max_physical_offset - 1000, 1000)
    assert left.max_offset("T", 0) == 1
    (record,) = left.get("T", 0, 0, 1).slices
    assert b"new" in bytes(record)
    assert left.shutdown()


def test_after_a_deletion_that_the_disk_refused_nothing_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its note may be there at the next start: what came behind it would not be found."""
    store = opened(config_of(tmp_path / "store"))
    put(store)
    force = store.disk.sync_directory

    def fail(path: str) -> None:
        if path.endswith("/config"):
            raise OSError(errno.EIO, "Input/output error")
        force(path)

    monkeypatch.setattr(store.disk, "sync_directory", fail)
    with pytest.raises(OSError, match="Input/output error"):
        store.delete_topics(["T"])
    assert put(store).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert not store.shutdown()


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_end_of_a_queue_is_not_lost_with_its_messages(tmp_path: Path, is_killed: bool) -> None:
    """Its number would be given again, to a message that a consumer which has come so far never gets.

    Retention leaves a log file until the units of its records are forced, and the names of the files that have them:
    those too that a process made which was killed before it forced them.
    """
    source = random.Random(1)
    disk = LossyDisk(made(tmp_path / "live"))
    store = opened(unforced(disk.root), disk=disk, threads=NoThreads())
    put(store, "Old")
    while store.max_physical_offset < 3 * 16_384:
        put(store, "New", body=bytes(1000))
    store.dispatch()
    assert store._flusher.flush()
    if is_killed:
        killed, before = tmp_path / "killed", disk
        before.picture(killed, source, lose=0.0)
        disk = LossyDisk(killed)
        disk.remember(before)
        store.shutdown()  # in a directory that is nobody's any more
        before.close_kept()
        store = opened(unforced(killed), disk=disk, threads=NoThreads())
    for path in Path(store.config.commitlog_path).iterdir():
        os.utime(path, (1, 1))
    assert store.clean(NOW_MS, manually=True).log_files == (3 if is_killed else 0)
    assert store.flush()
    if not is_killed:
        assert store.clean(NOW_MS, manually=True).log_files == 3
    store._background._remove()
    disk.picture(tmp_path / "lost", source, lose=1.0)
    store.shutdown()
    disk.close_kept()
    again = opened(unforced(tmp_path / "lost"), threads=NoThreads())
    assert again.min_physical_offset == 3 * 16_384
    assert again.next_offset("Old", 0) == 1
    assert again.shutdown()


def test_old_log_files_leave_no_hole_where_their_removal_is_not_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of an older one may come back, and that of a younger one not: the log would lack a file in its middle.

    A removal that has failed is done again, before those behind it.
    """
    disk = LossyDisk(made(tmp_path / "live"))
    store = opened(unforced(disk.root), disk=disk, threads=NoThreads())
    while store.max_physical_offset < 4 * 16_384:
        put(store, body=bytes(1000))
    store.dispatch()
    assert store.flush()
    for path in Path(store.config.commitlog_path).iterdir():
        os.utime(path, (1, 1))
    assert store.clean(NOW_MS, manually=True).log_files == 4
    force = disk.sync_directory

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(disk, "sync_directory", fail)
    store._background._remove()
    store._background._remove()
    for number in range(20):
        disk.picture(tmp_path / f"lost {number}", random.Random(number), lose=0.5)
    monkeypatch.setattr(disk, "sync_directory", force)
    store._background._remove()
    assert len(list(Path(store.config.commitlog_path).iterdir())) == 1
    store.shutdown()
    disk.close_kept()
    for number in range(20):
        again = opened(unforced(tmp_path / f"lost {number}"), threads=NoThreads())
        assert again.min_physical_offset in (0, 16_384)
        assert not again.recovery.missing_files
        assert again.shutdown()


def made(path: Path) -> Path:
    path.mkdir()
    return path


def unforced(root: Path) -> StoreConfig:
    """Nothing is forced but when a test says so."""
    return config_of(root, delete_batch=10)
