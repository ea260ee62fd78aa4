"""ConsumeQueueExt files of a queue that is rebuilt: the files are carried over, and wrong values in them corrected.

No log has their bit maps. A broker adds its last message again at each start, so that units after the last one with an
address in the queue are in order, too.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.consumequeue_ext import UNIT
from rmq_formats.codecs.layout import EXT_MAX_ADDRESS
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.scan.derived_images import Rows

_ADDRESS_ZERO: Final = int(np.iinfo(np.int64).min)  # the address of offset 0
_NOWHERE: Final = -1


def assign_ext_addresses(rows: Rows, units: Rows, ext_units: Rows) -> tuple[Rows, Rows] | None:
    """Set the tags codes of a queue's rows to the addresses of its existing ext units.

    Args:
        rows: int64[n, ROW_COLUMNS], expected rows of the queue, ascending by QUEUE_OFFSET.
        units: int64[m, ROW_COLUMNS], units of the queue's files, with addresses as tags codes.
        ext_units: int64[k, 3], offset in the ext files, tags code and store timestamp of each ext unit, by offset.

    Returns:
        The rows with addresses where ext units are theirs, and those of the ext units whose values are to be set:
        offset, tags code and store timestamp, int64[j, 3]. None where an address has lost its ext unit.
    """
    if not len(units):
        return None
    if not len(ext_units):  # ext files were switched on later, if no unit has an address
        return None if (units[:, unit_kernel.TAGS_CODE] <= EXT_MAX_ADDRESS).any() else (rows, ext_units)
    at = np.searchsorted(units[:, unit_kernel.QUEUE_OFFSET], rows[:, unit_kernel.QUEUE_OFFSET])
    at = np.minimum(at, len(units) - 1)
    columns = [unit_kernel.QUEUE_OFFSET, unit_kernel.PHYSICAL_OFFSET, unit_kernel.SIZE]
    stands = (units[at][:, columns] == rows[:, columns]).all(axis=1)
    tags_codes = units[at, unit_kernel.TAGS_CODE]
    values_of_rows = rows[:, [unit_kernel.TAGS_CODE, unit_kernel.STORE_TIMESTAMP]]
    is_address = stands & (tags_codes <= EXT_MAX_ADDRESS)
    numbers = np.where(is_address, _find(ext_units, tags_codes - _ADDRESS_ZERO), _NOWHERE)
    named = np.sort(numbers[numbers != _NOWHERE])
    repeated = named[1:][np.diff(named) == 0]
    numbers[np.isin(numbers, repeated)] = _NOWHERE
    is_plain = stands & ~is_address & (tags_codes == values_of_rows[:, 0])
    _name_free_units(numbers, ~is_plain & (numbers == _NOWHERE), values_of_rows, ext_units)
    if (is_address & (numbers == _NOWHERE)).any():
        return None
    new_rows = rows.copy()
    has_ext = numbers != _NOWHERE
    new_rows[has_ext, unit_kernel.TAGS_CODE] = ext_units[numbers[has_ext], 0] + _ADDRESS_ZERO
    changed = np.flatnonzero(has_ext)
    changed = changed[(ext_units[numbers[changed], 1:] != values_of_rows[changed]).any(axis=1)]
    values = np.column_stack([ext_units[numbers[changed], 0], values_of_rows[changed]])
    return new_rows, np.ascontiguousarray(values[np.argsort(values[:, 0], kind="stable")])


def _find(ext_units: Rows, offsets: Rows) -> Rows:
    at = np.minimum(np.searchsorted(ext_units[:, 0], offsets), len(ext_units) - 1)
    return np.where(ext_units[at, 0] == offsets, at, _NOWHERE)


def _name_free_units(numbers: Rows, wants: NDArray[np.bool_], values_of_rows: Rows, ext_units: Rows) -> None:
    """Assign free ext units with the same values to rows without an ext unit, in the order of the files."""
    free = np.setdiff1d(np.arange(len(ext_units)), numbers)
    by_values: dict[tuple[int, int], list[int]] = {}
    for number in reversed(free.tolist()):
        by_values.setdefault((int(ext_units[number, 1]), int(ext_units[number, 2])), []).append(number)
    for row in np.flatnonzero(wants).tolist() if by_values else ():
        candidates = by_values.get((int(values_of_rows[row, 0]), int(values_of_rows[row, 1])))
        if candidates:
            numbers[row] = candidates.pop()


def set_values(start: int, image: memoryview, values: Rows) -> None:
    """Set tags code and store timestamp of ext units in the image of their file.

    Args:
        start: offset of the file's first byte in the queue's ext files.
        image: the file's used bytes.
        values: new values of ext units, as ``assign_ext_addresses`` returns them.
    """
    low, high = np.searchsorted(values[:, 0], [start, start + len(image)]).tolist()
    for offset, tags_code, store_timestamp_ms in values[low:high].tolist():
        size, _, _, bit_map_bytes = UNIT.unpack_from(image, offset - start)
        UNIT.pack_into(image, offset - start, size, tags_code, store_timestamp_ms, bit_map_bytes)
