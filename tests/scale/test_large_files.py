"""Files of the original's size, 1 GiB, in a log whose offsets have passed 2^31: holes take no room on the disk."""

import os
from pathlib import Path
from typing import Final

import pytest

from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.layout import BLANK_BYTES, COMMITLOG_FILE_BYTES, MAGIC_BLANK, MAX_BODY_BYTES
from rmq_formats.codecs.record import encode_record, record_bytes
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.repair.job import repair_store
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.support.stores.verified_stores import FIRST_MS, codes, flip_at, message, only, patch
from tests.support.torture import TIMES

FILE_BYTES: Final = COMMITLOG_FILE_BYTES
DERIVED: Final = RebuildOptions(True, True, StoreSizes(1 << 30, 4000, 0, 50, 1200, (1000,)))
SIZES: Final = VerifyOptions(FILE_BYTES, 4000, 0, 50, 1200, (1000,))
BODY_AT: Final = 88  # in a record whose hosts are IPv4
COUNT_IN_SECOND: Final = 6


def write_store(root: Path, start: int) -> list[int]:
    """A full file of records, nearly all of zeros, and a second one that begins; where the records stand."""
    (root / "commitlog").mkdir(parents=True)
    at, placed = 0, []
    sizes = [100] * 3 + [MAX_BODY_BYTES] * (1 + FILE_BYTES // (MAX_BODY_BYTES + 200)) + [100] * COUNT_IN_SECOND
    last = len(sizes) - COUNT_IN_SECOND - 1
    for number, size in enumerate(sizes):
        # The file's last record leaves room for its end mark alone.
        left = FILE_BYTES - BLANK_BYTES - at - record_bytes(message(number, body=b""))
        body_bytes = left if number == last else size
        fill = b"\0" if body_bytes > 100 else b"%d" % (number % 10)
        record = encode_record(
            message(number, body=fill * body_bytes),
            queue_offset=number // 4,
            physical_offset=start + at,
            store_timestamp_ms=FIRST_MS + number,
        )
        write_sparsely(root, start + at, record, body_bytes if fill == b"\0" else 0)
        placed.append(start + at)
        at += len(record)
        if number == last:
            write_sparsely(root, start + at, end_mark(), 0)
            at += BLANK_BYTES
    for path in (root / "commitlog").iterdir():
        os.truncate(path, FILE_BYTES)
    return placed


def end_mark() -> bytes:
    return BLANK_BYTES.to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")


def write_sparsely(root: Path, physical_offset: int, record: bytes, zeros: int) -> None:
    """Write a record but for the zeros of its body."""
    path, at = file_of(root, physical_offset)
    path.touch()
    patch(path, at, record[:BODY_AT])
    patch(path, at + BODY_AT + zeros, record[BODY_AT + zeros :])


def file_of(root: Path, physical_offset: int) -> tuple[Path, int]:
    at = physical_offset % FILE_BYTES
    return root / "commitlog" / f"{physical_offset - at:020d}", at


@pytest.mark.torture
@pytest.mark.parametrize("start", [3 << 30, 0, 1 << 40] if TIMES > 1 else [3 << 30])
def test_damage_in_files_of_1_gib_is_found_where_it_is_and_repaired(tmp_path: Path, start: int) -> None:
    root = tmp_path / "store"
    placed = write_store(root, start)
    second = start + FILE_BYTES
    in_second = [offset for offset in placed if offset >= second]
    assert (len(in_second), in_second[0]) == (COUNT_IN_SECOND, second)
    assert rebuild_store(str(root), None, DERIVED, ProcessRunner(1)).messages == len(placed)
    last_ms = FIRST_MS + len(placed) - 1
    (root / "checkpoint").write_bytes(Checkpoint(last_ms, last_ms, 0, 0, 0).encode())

    first_path, second_path = file_of(root, start)[0], file_of(root, second)[0]
    flip_at(first_path, FILE_BYTES - 1)  # the last byte of the end mark
    flip_at(second_path, in_second[1] - second + BODY_AT)
    queue, unit_at = unit_of(root, in_second[4])
    patch(queue, unit_at, (in_second[4] % (1 << 30) + 1).to_bytes(8, "big"))
    index = max((root / "index").iterdir())
    entry_at = index.read_bytes().rindex(in_second[5].to_bytes(8, "big"))
    patch(index, entry_at, (in_second[5] & 0x3FFFFFFF).to_bytes(8, "big"))

    report = verify_store(str(root), SIZES, ProcessRunner(1))
    found = codes(report)
    assert only(report, "commitlog.body_crc").physical_offset == in_second[1]
    assert only(report, "commitlog.magic").physical_offset == second - BLANK_BYTES
    assert found["consumequeue.unit.lost"] == found["consumequeue.unit.dangling"] == 1
    assert found["index.entry.wrong"] + found.get("index.entry.surplus", 0) >= 1
    assert report.messages == len(placed) - 1
    done = repair_store(str(root), SIZES, ProcessRunner(1), apply=True)
    assert (done.left, done.is_clean) == ((), True)
    assert first_path.stat().st_size == FILE_BYTES
    with first_path.open("rb") as file:
        file.seek(FILE_BYTES - BLANK_BYTES)
        assert file.read() == end_mark()
    assert unit_of(root, in_second[4]) == (queue, unit_at)


def unit_of(root: Path, physical_offset: int) -> tuple[Path, int]:
    """Where the unit of a record stands."""
    wanted = physical_offset.to_bytes(8, "big")
    for path in (root / "consumequeue").rglob("0*"):
        if path.is_file() and (at := path.read_bytes().find(wanted)) >= 0 and at % 20 == 0:
            return path, at
    raise AssertionError(physical_offset)
