"""Units of DLedger's index, read a block at a time beside a walk over the log."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rmq_formats.codecs import paths
from rmq_formats.codecs.dledger import ENTRY_MAGIC, INDEX_UNIT_BYTES, INDEX_UNIT_DTYPE
from rmq_formats.codecs.index import MAX_LONG
from rmq_formats.errors import StoreError
from rmq_formats.storage.segments import LocalStorage
from rmq_offline.verify.dledger_entries import BLOCK_BYTES, EntryUnits

PER_FILE = BLOCK_BYTES // INDEX_UNIT_BYTES + 100  # one file is more than a block
FILES = (0, 1, 3)  # the third is missing


def unit_values(index: int) -> tuple[int, int, int, int, int]:
    return (ENTRY_MAGIC, index * 1000, 1000, index, 7)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for number in FILES:
        units = np.zeros(PER_FILE, dtype=INDEX_UNIT_DTYPE)
        indexes = np.arange(number * PER_FILE, (number + 1) * PER_FILE)
        units["magic"], units["index"], units["term"] = ENTRY_MAGIC, indexes, 7
        units["pos"], units["size"] = indexes * 1000, 1000
        path = tmp_path / paths.segment_name(number * PER_FILE * INDEX_UNIT_BYTES)
        path.write_bytes(units.tobytes()[: None if number < FILES[-1] else 10 * INDEX_UNIT_BYTES + 5])
    return tmp_path


@pytest.fixture
def units(directory: Path) -> Iterator[EntryUnits]:
    with closing(EntryUnits(LocalStorage(), str(directory))) as found:
        yield found


@pytest.mark.parametrize("first", [0, 1, PER_FILE - 1, PER_FILE, 2 * PER_FILE - 3])
def test_units_are_those_of_their_entries(first: int, units: EntryUnits) -> None:
    count = 2 * PER_FILE - first
    assert units.read_units(first, count).tolist() == [unit_values(index) for index in range(first, 2 * PER_FILE)]
    at, end = units.find(first)
    assert units.block[at:end].view(INDEX_UNIT_DTYPE)[0].tolist() == unit_values(first)


def test_where_there_is_no_unit_there_are_zeros(units: EntryUnits) -> None:
    none = (0, 0, 0, 0, 0)
    assert units.read_units(-3, 4).tolist() == [none] * 3 + [unit_values(0)]
    begin = 3 * PER_FILE
    found = units.read_units(2 * PER_FILE - 1, PER_FILE + 13).tolist()
    assert found[0] == unit_values(2 * PER_FILE - 1)
    assert found[1 : PER_FILE + 1] == [none] * PER_FILE
    assert found[PER_FILE + 1 : -2] == [unit_values(index) for index in range(begin, begin + 10)]
    assert found[-2][0] == ENTRY_MAGIC  # of which the file has five bytes
    assert found[-2][2:] == found[-1][2:] == (0, 0, 0)
    for index in (begin + 11, MAX_LONG, -MAX_LONG - 1):
        assert units.find(index) == (0, 0)
        assert units.read_units(index, 2).tolist() == [none] * 2


def test_an_index_that_cannot_be_read_is_an_error(directory: Path, units: EntryUnits) -> None:
    units.find(0)
    path = directory / paths.segment_name(PER_FILE * INDEX_UNIT_BYTES)
    path.unlink()
    with pytest.raises(StoreError, match=path.name):
        units.read_units(PER_FILE - 1, 2)
