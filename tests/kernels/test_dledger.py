"""Kernels over DLedger's entries against plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.codecs.dledger import ENTRY_HEAD_BYTES, ENTRY_MAGIC, INDEX_UNIT_BYTES, INDEX_UNIT_DTYPE, EntryHead
from rmq_formats.kernels import dledger as kernel
from rmq_formats.kernels import scan as scan_kernel
from tests.kernels.guarded_memory import guarded

BEGIN = 5_000  # physical offset of the window
FIRST, TERM, COUNT = 40, 3, 5


def window(sizes: list[int]) -> tuple[bytes, np.ndarray, bytes]:
    """Entries with records of nothing, the table of their records, and their units."""
    data = b""
    frames = np.zeros((len(sizes), scan_kernel.FRAME_COLUMNS), dtype=np.int64)
    units = np.zeros(len(sizes), dtype=INDEX_UNIT_DTYPE)
    for row, size in enumerate(sizes):
        at = len(data)
        head = EntryHead(ENTRY_MAGIC, ENTRY_HEAD_BYTES + size, FIRST + row, TERM, BEGIN + at, 0, 0, 0, size)
        frames[row, scan_kernel.POSITION], frames[row, scan_kernel.SIZE] = at + ENTRY_HEAD_BYTES, size
        units[row] = (ENTRY_MAGIC, BEGIN + at, ENTRY_HEAD_BYTES + size, FIRST + row, TERM)
        data += head.encode() + bytes(size)
    return data, frames, units.tobytes()


def oracle(data: bytes, frames: np.ndarray, row: int, units: bytes) -> int:
    """The first row from ``row`` on whose header and unit, the first of ``units``, are not as they must be."""
    for number in range(row, len(frames)):
        at, size = (int(frames[number, column]) for column in (scan_kernel.POSITION, scan_kernel.SIZE))
        pos = BEGIN + at - ENTRY_HEAD_BYTES
        head = EntryHead(ENTRY_MAGIC, ENTRY_HEAD_BYTES + size, FIRST + number, TERM, pos, 0, 0, 0, size)
        unit_at = (number - row) * INDEX_UNIT_BYTES
        if unit_at + INDEX_UNIT_BYTES > len(units):
            return number
        unit = np.frombuffer(units, dtype=INDEX_UNIT_DTYPE, count=1, offset=unit_at)[0]
        is_unit = unit.tolist() == (ENTRY_MAGIC, pos, ENTRY_HEAD_BYTES + size, FIRST + number, TERM)
        if EntryHead.decode(data, at - ENTRY_HEAD_BYTES) != head or not is_unit:
            return number
    return len(frames)


def follow(data: bytes, frames: np.ndarray, row: int, units: bytes) -> int:
    with guarded(data) as array, guarded(units) as unit_array:
        return kernel.follow_entries(array, BEGIN, frames, row, FIRST + row, TERM, unit_array, 0, len(units))


@given(st.data(), st.lists(st.integers(0, 30), min_size=1, max_size=COUNT))
def test_entries_are_followed_up_to_the_first_that_differs(draw: st.DataObject, sizes: list[int]) -> None:
    data, frames, units = window(sizes)
    row = draw.draw(st.integers(0, len(sizes)))
    units = units[row * INDEX_UNIT_BYTES :]
    units = units[: draw.draw(st.integers(0, len(units)))] if draw.draw(st.booleans()) else units
    if draw.draw(st.booleans()):
        at = draw.draw(st.integers(0, len(data) - 1))
        data = data[:at] + bytes([data[at] ^ draw.draw(st.integers(1, 255))]) + data[at + 1 :]
    if units and draw.draw(st.booleans()):
        at = draw.draw(st.integers(0, len(units) - 1))
        units = units[:at] + bytes([units[at] ^ draw.draw(st.integers(1, 255))]) + units[at + 1 :]
    assert follow(data, frames, row, units) == oracle(data, frames, row, units)


@pytest.mark.parametrize("bit", [0, 7])
def test_each_byte_of_header_and_unit_counts(bit: int) -> None:
    data, frames, units = window([9] * COUNT)
    assert follow(data, frames, 0, units) == COUNT
    third = 2 * (ENTRY_HEAD_BYTES + 9)
    for at in range(third, third + ENTRY_HEAD_BYTES):
        bent = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
        assert follow(bent, frames, 0, units) == 2, at - third
    for at in range(2 * INDEX_UNIT_BYTES, 3 * INDEX_UNIT_BYTES):
        bent = units[:at] + bytes([units[at] ^ 1 << bit]) + units[at + 1 :]
        assert follow(data, frames, 0, bent) == 2, at - 2 * INDEX_UNIT_BYTES
