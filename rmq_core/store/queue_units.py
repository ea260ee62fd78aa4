"""A ConsumeQueue's units as bytes, as rows of an array, and one by one with its place."""

from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmq_formats.layout import PRE_BLANK_SIZE, UNIT_BYTES

UNIT: Final = Struct(">qiq")
UNIT_TYPE: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert UNIT.size == UNIT_TYPE.itemsize == UNIT_BYTES


class StoredUnit(NamedTuple):
    """A unit and its place."""

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int


def is_pre_blank(units: NDArray[Any]) -> NDArray[np.bool_]:
    """Which units stand for no message.

    Args:
        units: UNIT_TYPE[n].

    Returns:
        bool[n].
    """
    blank: NDArray[np.bool_] = (units["physical_offset"] == 0) & (units["size"] == PRE_BLANK_SIZE)
    return blank


def is_unwritten(units: NDArray[Any]) -> NDArray[np.bool_]:
    """Which units were never written. Source: ``ConsumeQueue#recover``.

    Args:
        units: UNIT_TYPE[n].

    Returns:
        bool[n].
    """
    unwritten: NDArray[np.bool_] = (units["physical_offset"] < 0) | (units["size"] <= 0)
    return unwritten
