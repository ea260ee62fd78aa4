"""Write-ahead logs of RocksDB: damage is told from a cut at every byte, and a checksum is that of others."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_formats.codecs.rocksdb_log import BLOCK_BYTES, LogEnd, find_log_end
from rmq_formats.kernels.crc import crc32c

NUMBER = 7


def blocks(data: bytes) -> Iterator[bytes]:
    return (data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES))


def end_of(data: bytes) -> LogEnd:
    return find_log_end(blocks(data), NUMBER, crc32c)


def log_of(batches: list[bytes], *, recycled: bool = False) -> tuple[bytes, list[int]]:
    """Write batches as RocksDB does (db/log_writer.cc); the ends of all of them."""
    out, ends = bytearray(), []
    number = struct.pack("<I", NUMBER) if recycled else b""
    for batch in batches:
        at, is_first = 0, True
        while is_first or at < len(batch):
            room = BLOCK_BYTES - len(out) % BLOCK_BYTES
            if room < 7 + len(number):
                out += bytes(room)
                room = BLOCK_BYTES
            part = batch[at : at + room - 7 - len(number)]
            at += len(part)
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[is_first, at == len(batch)]
            body = bytes([kind + 4 * recycled]) + number + part
            crc = crc32c(body)
            out += struct.pack("<IH", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF, len(part)) + body
            is_first = False
        ends.append(len(out))
    return bytes(out), ends


def test_the_checksum_is_that_of_rfc_3720() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"") == 0


def oracle(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@given(st.binary(max_size=300))
def test_the_checksum_is_that_of_its_definition(data: bytes) -> None:
    assert crc32c(data) == oracle(data)


@pytest.mark.parametrize("recycled", [False, True])
@pytest.mark.parametrize("sizes", [[0, 1, 500], [40_000, 3, 90_000], [BLOCK_BYTES - 7, 5], [BLOCK_BYTES - 12, 9]])
def test_a_log_that_is_whole_ends_at_its_end(sizes: list[int], recycled: bool) -> None:
    data, _ = log_of([bytes([1]) * size for size in sizes], recycled=recycled)
    assert end_of(data) == LogEnd(len(data), "end")
    assert end_of(data + bytes(100_000)).kind == "end"


def test_a_cut_is_torn_at_every_byte_and_a_flip_is_damage() -> None:
    data, ends = log_of([b"offsets of a group", b"x" * 60, b"topic" * 9])
    for at in range(len(data)):
        cut = end_of(data[:at])
        assert cut.position == max((end for end in ends if end <= at), default=0)
        assert cut.kind in {"end", "torn"}
        for mask in (0x01, 0x80, 0xFF):
            flipped = end_of(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
            assert flipped.position == max((end for end in ends if end <= at), default=0)
            assert flipped.kind == "damage", at


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 70_000), min_size=2, max_size=4), st.data())
def test_a_flip_in_a_batch_before_the_last_is_damage(sizes: list[int], data: st.DataObject) -> None:
    log, ends = log_of([bytes([number + 1]) * size for number, size in enumerate(sizes)])
    at = data.draw(st.integers(0, ends[-2] - 1))
    if any(log[at : at + 1]) or at % BLOCK_BYTES < BLOCK_BYTES - 6:
        end = end_of(log[:at] + bytes([log[at] ^ 0x40]) + log[at + 1 :])
        assert end.kind == "damage"
        assert end.position <= at


def test_a_hole_is_damage_and_unwritten_sectors_at_the_end_are_a_cut() -> None:
    data, ends = log_of([b"a" * 600, b"b" * 3000, b"c" * 9])
    assert end_of(data[: ends[0]] + bytes(3007) + data[ends[1] :]).kind == "damage"
    assert end_of(data[: ends[0] + 1000] + bytes(2000)) == LogEnd(ends[0], "torn")


def test_batches_that_lack_a_part_are_damage() -> None:
    data, ends = log_of([b"a" * 70_000, b"b" * 9])
    assert end_of(data[BLOCK_BYTES:]) == LogEnd(0, "damage")
    first_gone = data[:BLOCK_BYTES] + data[ends[0] // BLOCK_BYTES * BLOCK_BYTES :]
    assert end_of(first_gone) == LogEnd(len(first_gone), "end")  # a first part and a last one: a batch, for RocksDB too
    assert end_of(data[: 2 * BLOCK_BYTES] + log_of([b"c"])[0]) == LogEnd(0, "damage")


def test_records_of_a_recycled_files_former_life_are_its_end() -> None:
    data, _ = log_of([b"new"], recycled=True)
    old = find_log_end(blocks(log_of([b"older batch"], recycled=True)[0]), NUMBER + 1, crc32c)
    assert old == LogEnd(0, "end")
    assert end_of(data).kind == "end"


def test_logs_of_the_original_are_whole(golden: Callable[[str], Path]) -> None:
    path = golden("rocksdb_crash") / "store" / "config" / "rdb" / "000004.log"
    data = path.read_bytes()
    assert find_log_end(blocks(data), 4, crc32c) == LogEnd(699, "end")
    assert len(data) == 699
