"""Quarantine and watermark: what is kept of damage, and what is known to be on the disk."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.store.commitlog.log import LogFile
from rmq_core.store.commitlog.quarantine import TOMBSTONE_TOPIC, Quarantine, tombstone
from rmq_core.store.files.disk import Disk
from rmq_core.store.files.watermark import COPIES, SECTOR_BYTES, CheckpointFiles, Watermark, watermark_file
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.record import decode_record
from rmq_formats.codecs.record_frame import Damage, DamageCode
from tests.store.small_stores import QuickDisk, config_of, opened, put
from tests.support.oracles.commitlog_walk import Frame, walk

FILE_BYTES = 1 << 14


@pytest.mark.parametrize("size", [92, 93, 110, 1000, 4 << 20])
def test_a_tombstone_is_a_record_of_just_that_size_that_no_one_gets(size: int) -> None:
    message = decode_record(tombstone(size, 4096, 7), physical_offset=4096)
    assert (message.size, message.recorded_physical_offset, message.store_timestamp_ms) == (size, 4096, 7)
    assert message.sys_flag & 0xC == 0xC, "a rollback: neither queue nor Index"
    assert TOMBSTONE_TOPIC.startswith(message.topic)


@pytest.mark.parametrize("size", [92, 500, 5000])
def test_what_is_buried_can_be_walked_over(tmp_path: Path, size: int) -> None:
    image = random.Random(size).randbytes(FILE_BYTES)
    path = tmp_path / f"{FILE_BYTES:020d}"
    path.write_bytes(image)
    file = LogFile(str(path), FILE_BYTES, FILE_BYTES, Disk())
    quarantine = Quarantine(str(tmp_path), QuickDisk())
    damage = Damage(FILE_BYTES + 1000, size, DamageCode.MAGIC)
    kept = quarantine.copy(file, damage, 5)
    assert quarantine.overwrite_with_tombstones(file, damage, 5)
    after = path.read_bytes()
    assert Path(kept).read_bytes() == image[1000 : 1000 + size]
    assert after[:1000] + after[1000 + size :] == image[:1000] + image[1000 + size :]
    frames = list(walk(after[1000 : 1000 + size], damage.physical_offset, verify_crc=True))
    assert all(isinstance(frame, Frame) for frame in frames)


def overwritten(tmp_path: Path, damage: Damage) -> tuple[Path, bool]:
    """Overwrite a range of a log file of other bytes; return the file, and whether it has a tombstone."""
    path = tmp_path / f"{0:020d}"
    path.write_bytes(b"\xff" * FILE_BYTES)
    file = LogFile(str(path), 0, FILE_BYTES, Disk())
    return path, Quarantine(str(tmp_path), QuickDisk()).overwrite_with_tombstones(file, damage, 5)


def test_what_is_too_small_for_a_record_stays(tmp_path: Path) -> None:
    path, has_tombstone = overwritten(tmp_path, Damage(100, 91, DamageCode.MAGIC))
    assert not has_tombstone
    assert path.read_bytes() == b"\xff" * FILE_BYTES


def test_damage_up_to_the_end_of_a_file_becomes_a_blank(tmp_path: Path) -> None:
    path, has_tombstone = overwritten(tmp_path, Damage(FILE_BYTES - 50, 50, DamageCode.SIZE))
    assert not has_tombstone
    assert path.read_bytes()[-50:-42] == (50).to_bytes(4, "big") + bytes.fromhex("cbd43194")


def test_a_lost_message_at_the_end_of_a_file_becomes_a_tombstone_before_the_blank(tmp_path: Path) -> None:
    path, has_tombstone = overwritten(tmp_path, Damage(FILE_BYTES - 500, 500, DamageCode.SIZE))
    assert has_tombstone
    frames = list(walk(path.read_bytes()[-500:-8], FILE_BYTES - 500, verify_crc=True))
    assert [(type(frame), frame.size) for frame in frames] == [(Frame, 492)]
    assert path.read_bytes()[-8:] == (8).to_bytes(4, "big") + bytes.fromhex("cbd43194")


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"[",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b"\xff",
        b'{"physical_offset":-1,"size":100}',
        b'{"physical_offset":0,"size":1e30}',
        b'{"physical_offset":4611686018427387904,"size":1}',
        b'{"physical_offset":"0","size":100}',
    ],
)
def test_a_note_that_is_none_is_passed_over(tmp_path: Path, note: bytes) -> None:
    path = tmp_path / f"{0:020d}"
    path.write_bytes(tombstone(100, 0, 5).ljust(FILE_BYTES, b"\0"))
    file = LogFile(str(path), 0, FILE_BYTES, Disk())
    quarantine = Quarantine(str(tmp_path), QuickDisk())
    quarantine.record_tombstone(Damage(0, 100, DamageCode.MAGIC))
    (tmp_path / "quarantine" / "other.json").write_bytes(note)
    assert quarantine.find_overwritten([file]) == [Damage(0, 100, DamageCode.MAGIC)]


def copied_slave(master: MessageStore, root: Path) -> MessageStore:
    """Return a new slave that has its master's log."""
    slave = opened(config_of(root, slave=True))
    while log_range := master.read_log_range(slave.max_physical_offset, 1000):
        assert slave.append_to_commit_log(slave.max_physical_offset, log_range)
        slave.dispatch()
    return slave


def bodies_by_offset(store: MessageStore) -> dict[int, bytes]:
    """Return the bodies of the queue T/0, by queue offset."""
    bodies = {}
    for queue_offset in range(store.min_offset("T", 0), store.max_offset("T", 0)):
        for record in store.get("T", 0, queue_offset, 1).slices:
            message = store.message(int.from_bytes(record[28:36], "big"))
            assert message is not None
            bodies[message.queue_offset] = message.body
    return bodies


@pytest.mark.parametrize("is_last_of_file", [False, True])
def test_a_slave_leaves_the_gap_of_a_quarantined_message_as_its_master_does(
    tmp_path: Path, is_last_of_file: bool
) -> None:
    master = opened(config_of(tmp_path / "master"))
    places = [put(master, body=b"%4d" % number * 100).physical_offset for number in range(60)]
    assert master.shutdown()
    (Path(master.config.root) / "watermark").unlink()
    last = next(number for number, place in enumerate(places) if places[number + 1] >= FILE_BYTES)
    lost = last if is_last_of_file else last - 2
    path = Path(master.config.commitlog_path) / f"{0:020d}"
    image = bytearray(path.read_bytes())
    image[places[lost] + 100] ^= 1
    path.write_bytes(image)
    shutil.rmtree(Path(master.config.root) / "consumequeue")
    master = opened(master.config)
    assert [damage.physical_offset for damage in master.recovery.damages] == [places[lost]]
    slave = copied_slave(master, tmp_path / "slave")
    expected = {number: b"%4d" % number * 100 for number in range(60) if number != lost}
    assert bodies_by_offset(master) == bodies_by_offset(slave) == expected
    for is_slave in (True, False):  # as its master's successor, too
        assert slave.shutdown()
        shutil.rmtree(Path(slave.config.root) / "consumequeue")
        (Path(slave.config.root) / "watermark").unlink()
        slave = opened(replace(slave.config, slave=is_slave))
        assert bodies_by_offset(slave) == expected
    assert slave.shutdown()
    assert master.shutdown()


def mark(number: int) -> Watermark:
    return Watermark(
        clean=number % 2 == 0,
        log_flushed=number * 10,
        dispatched=number * 9,
        unit_total=number,
        index_dispatched=number * 8,
        index_name=20240101000000000 + number,
        index_files=number,
        index_header=bytes([number % 256]) * 40,
    )


def test_the_newer_of_two_copies_counts_and_a_torn_one_does_not(tmp_path: Path) -> None:
    checkpoint_files = CheckpointFiles(str(tmp_path), QuickDisk())
    assert checkpoint_files.trusted() is None
    for number in range(1, 6):
        checkpoint_files.write(mark(number), Checkpoint(physic_msg_timestamp_ms=number))
    path = Path(watermark_file(str(tmp_path)))
    image = path.read_bytes()
    assert len(image) == COPIES * SECTOR_BYTES
    found = CheckpointFiles(str(tmp_path), QuickDisk()).trusted()
    assert found is not None
    assert (found.log_flushed, found.sequence) == (50, 5)
    for byte in range(0, SECTOR_BYTES, 7):
        torn = bytearray(image)
        torn[SECTOR_BYTES + byte] ^= 1  # of the fifth, which is the second copy
        path.write_bytes(torn)
        fallback = CheckpointFiles(str(tmp_path), QuickDisk()).trusted()
        # The fourth knows its own checkpoint and the one before, not the fifth's: it is not trusted.
        assert fallback is None or fallback == found


def test_a_kill_between_the_two_files_leaves_a_trusted_mark(tmp_path: Path) -> None:
    checkpoint_files = CheckpointFiles(str(tmp_path), QuickDisk())
    checkpoint_files.write(mark(1), Checkpoint(physic_msg_timestamp_ms=1))
    before = (tmp_path / "checkpoint").read_bytes()
    checkpoint_files.write(mark(2), Checkpoint(physic_msg_timestamp_ms=2))
    (tmp_path / "checkpoint").write_bytes(before)
    found = CheckpointFiles(str(tmp_path), QuickDisk()).trusted()
    assert found is not None
    assert found.log_flushed == 20


def test_a_mark_is_not_trusted_after_the_original_has_worked_on_the_store(tmp_path: Path) -> None:
    CheckpointFiles(str(tmp_path), QuickDisk()).write(mark(1), Checkpoint(physic_msg_timestamp_ms=1))
    with (tmp_path / "checkpoint").open("r+b") as file:
        file.write(Checkpoint(physic_msg_timestamp_ms=99).encode())
    assert CheckpointFiles(str(tmp_path), QuickDisk()).trusted() is None
