"""Reads and checks the ConsumeQueueExt files of one queue, and resolves unit addresses into them."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.layout import EXT_MAX_ADDRESS, EXT_UNIT_MIN_BYTES, PRE_BLANK_SIZE
from rmq_formats.kernels import verify as kernel
from rmq_formats.kernels.bytes import read_i16
from rmq_formats.kernels.scan import used_bytes
from rmq_formats.kernels.units import PHYSICAL_OFFSET, SIZE, STORE_TIMESTAMP, TAGS_CODE
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import FindingList, Kind
from rmq_offline.verify.log_facts import Longs, Mask
from rmq_offline.verify.units import FileView, Status

MAX_RESUMES: Final = 64  # attempts to find units again after bytes that are no unit; a file of garbage ends them
_END_MARK = -1
_ADDRESS_ZERO = int(np.iinfo(np.int64).min)  # the address of offset 0


@dataclass(frozen=True, slots=True)
class ExtAddresses:
    """ConsumeQueueExt addresses among a file's units, bool[n] each.

    Attributes:
        is_address: which units have an address.
        is_bad: which addresses lead to no ext unit, or to the ext unit of another unit of the queue.
        is_reusable: which units have ext units that a broker may have assigned to later units too, see
            ``precede_older_units``; their addresses are not bad.
    """

    is_address: Mask
    is_bad: Mask
    is_reusable: Mask


class ExtTable:
    """Table of the units in a queue's ext files."""

    def __init__(self, topic: str, queue_id: int, findings: FindingList) -> None:
        self._topic, self._queue_id, self._findings = topic, queue_id, findings
        self._parts: list[Longs] = []
        self._units = np.empty((0, 3), dtype=np.int64)  # offset in the queue's ext files, tags code, store timestamp
        self._named = np.empty(0, dtype=bool)
        self._assigned = np.empty(0, dtype=bool)  # to a unit whose record is in the log

    def _add_finding(self, kind: Kind, detail: str, path: str | None = None, count: int = 1) -> None:
        self._findings.report(kind, detail, path, topic=self._topic, queue_id=self._queue_id, count=count)

    def add_file(self, path: str, start_offset: int, data: NDArray[np.uint8], *, is_last: bool) -> None:
        """Read one file; files come in ascending order of their start offset in the queue's ext files."""
        at = self._add_units(data, start_offset, 0)
        for _ in range(MAX_RESUMES):
            # Bytes that end the units may be one damaged unit of the smallest size, with more units after it.
            before = len(self._parts)
            end = self._add_units(data, start_offset, at + EXT_UNIT_MIN_BYTES)
            if len(self._parts) == before:
                break
            self._add_finding(finding_kinds.EXT_FORMAT, f"sizes that do not fit each other at byte {at}", path)
            at = end
        self._check_end(path, data, at, is_last=is_last)

    def _add_units(self, data: NDArray[np.uint8], start_offset: int, at: int) -> int:
        """Read the units from a position on; return the position after them."""
        result = np.zeros(2, dtype=np.int64)
        table = np.empty((max(0, len(data) - at) // EXT_UNIT_MIN_BYTES + 1, 3), dtype=np.int64)
        kernel.walk_ext(data, at, table, result)
        count, end = result.tolist()
        if count:
            part = table[:count].copy()
            part[:, 0] += start_offset
            self._parts.append(part)
        return int(end)

    def _check_end(self, path: str, data: NDArray[np.uint8], at: int, *, is_last: bool) -> None:
        mark = read_i16(data, at) if at + 2 <= len(data) else 0
        if mark != _END_MARK and not (is_last and mark == 0):
            self._add_finding(finding_kinds.EXT_FORMAT, f"no end mark where the file's units end, at byte {at}", path)
        trailing = np.ascontiguousarray(data[at + 2 :])
        if used_bytes(trailing, len(trailing)):
            self._add_finding(
                finding_kinds.EXT_FORMAT, f"bytes after the file's last unit, from byte {at + 2} on", path
            )

    def freeze(self) -> None:
        """Finish reading: all files have been added, and units may be resolved."""
        if self._parts:
            self._units = np.concatenate(self._parts)
        self._parts = []
        self._named, self._assigned = (np.zeros(len(self._units), dtype=bool) for _ in range(2))

    @property
    def units(self) -> Longs:
        """Offset in the queue's ext files, tags code and store timestamp of each unit, int64[n, 3], by offset."""
        return self._units

    def resolve(self, units: Longs, is_old: Mask, is_reusable: Mask) -> ExtAddresses:
        """Replace ext addresses in a file's units by the tags codes that they lead to.

        A broker that was killed cuts the ext files after the last address of the queue. The next units then get ext
        units that units before the cut name too: the earlier units lead to wrong values until their records expire.

        Args:
            units: int64[n, ROW_COLUMNS].
            is_old: bool[n], units whose records have expired: their ext units may belong to newer units.
            is_reusable: bool[n], by ``precede_older_units``.
        """
        tags = units[:, TAGS_CODE]
        is_address = tags <= EXT_MAX_ADDRESS
        is_owner = ~(is_old | is_reusable)
        is_bad = is_address & is_owner
        addresses = ExtAddresses(is_address, is_bad, is_reusable)
        places = np.flatnonzero(is_address)
        if not len(self._units) or not len(places):
            return addresses
        offsets = tags[places] - _ADDRESS_ZERO
        at = np.minimum(np.searchsorted(self._units[:, 0], offsets), len(self._units) - 1)
        leads, owns = self._units[at, 0] == offsets, is_owner[places]
        matches = np.flatnonzero(leads & owns & ~self._assigned[at])
        matches = matches[np.unique(at[matches], return_index=True)[1]]  # of units that name one ext unit, the first
        self._assigned[at[matches]] = True
        matches = np.concatenate([np.flatnonzero(leads & ~owns), matches])
        good, at = places[matches], at[matches]
        self._named[at] = True
        is_bad[good] = False
        units[good, TAGS_CODE] = self._units[at, 1]
        units[good, STORE_TIMESTAMP] = self._units[at, 2]
        return addresses

    def report_surplus(self) -> None:
        """Report ext units that no ConsumeQueue unit names, after the first named one: units before that are old."""
        named = np.flatnonzero(self._named)
        begin = int(named[0]) if len(named) else 0
        surplus = np.flatnonzero(~self._named[begin:]) + begin
        if len(surplus):
            detail = f"the first at offset {self._units[surplus[0], 0]} of the queue's ext files"
            self._add_finding(finding_kinds.EXT_SURPLUS, detail, count=len(surplus))


def precede_older_units(units: Longs) -> Mask:
    """Return which units of a queue, int64[m, ROW_COLUMNS], stand before the unit of an older record, bool[m].

    A recovery that cuts a queue in memory leaves an older unit there. The next start takes the older unit for the
    queue's end, and cuts the ext files after its ext unit: later units get ext units that newer units name too.
    Source: ``ConsumeQueue#recover``, ``ConsumeQueueExt#truncateByMaxAddress``.
    """
    physical, size = units[:, PHYSICAL_OFFSET], units[:, SIZE]
    is_unit = (physical >= 0) & (size > 0) & (size != PRE_BLANK_SIZE)
    least_from_here = np.minimum.accumulate(np.where(is_unit, physical, np.iinfo(np.int64).max)[::-1])[::-1]
    precedes: Mask = is_unit & (physical > least_from_here)
    return precedes


def classify_ext_units(view: FileView, status: NDArray[np.int8], addresses: ExtAddresses) -> None:
    """Set the status of units whose ext address is bad, or leads to wrong values."""
    in_place = np.isin(status, [Status.FINE, Status.WRONG_TAGS_CODE]) & view.has_record
    wrong_time = view.actual[:, STORE_TIMESTAMP] != view.expected[:, STORE_TIMESTAMP]
    of_ext = in_place & addresses.is_address & ~addresses.is_bad
    is_wrong = of_ext & ((status == Status.WRONG_TAGS_CODE) | wrong_time)
    status[is_wrong] = np.where(addresses.is_reusable, Status.EXT_REUSED, Status.WRONG_EXT_UNIT)[is_wrong]
    status[in_place & addresses.is_bad] = Status.EXT_ADDRESS
