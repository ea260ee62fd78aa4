"""Checks of CommitLog records, batch by batch: what the scan found, and what no checksum covers."""

from collections.abc import Callable
from dataclasses import replace
from struct import Struct
from typing import Final

import numpy as np

from rmq_formats import paths
from rmq_formats.damage import Damage, DamageCode
from rmq_formats.findings import Finding, FindingList, Kind
from rmq_formats.kernels import scan as scan_kernel
from rmq_formats.kernels import verify as kernel
from rmq_formats.kernels.crc import crc32
from rmq_formats.layout import (
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BORN_HOST_AT,
    RECORD_PHYSICAL_OFFSET_AT,
)
from rmq_formats.scan import FrameBatch, RangeReader
from rmq_formats.verify import kinds
from rmq_formats.verify.times import TimeCheck

HEAD_BYTES: Final = RECORD_PHYSICAL_OFFSET_AT + 8
_HEAD = Struct(">iiiiiqq")  # size, magic, body CRC, queue id, flag, queue offset, physical offset
assert _HEAD.size == HEAD_BYTES
_Row = tuple[int, int, int, int, int, int, int, int, int]


class LogCheck:
    """Looks at the records of one split of a segment.

    Attributes:
        findings: what is wrong.
        times: the store timestamps.
        damages: every damaged stretch, in log order.
        damaged_bytes: their sizes together.
        open_damage: the stretch that the split ends with, if nothing sound was behind it: only who sees
            the whole log can say whether the log goes on.
        blank_at: physical offset of the file's end mark, if the split met it.
        largest_record_bytes: of the sound records.
    """

    def __init__(self, path: str, reader: RangeReader, file_offset: int, findings: FindingList) -> None:
        """Begin a split.

        Args:
            path: of the segment, for the findings.
            reader: its bytes, to look again at what is damaged.
            file_offset: physical offset of the segment's first byte.
            findings: added to.
        """
        self.findings = findings
        self.times = TimeCheck()
        self.damages: list[Damage] = []
        self.damaged_bytes = 0
        self.open_damage: Damage | None = None
        self.blank_at: int | None = None
        self.largest_record_bytes = 0
        self._path = path
        self._reader = reader
        self._file_offset = file_offset
        self._odd = np.empty(0, dtype=np.int64)
        self._timestamps = np.empty(0, dtype=np.int64)
        self._summary = np.empty(kernel.SUMMARY_COLUMNS, dtype=np.int64)

    def add(self, batch: FrameBatch) -> None:
        """Take the next batch of the split."""
        for damage in batch.damages:
            self._close_damage()
            self._note(damage)
            self.open_damage = damage
        if batch.blank_at is not None:
            self._close_damage()
            self.blank_at = batch.blank_at
        if len(batch.frames):
            self._close_damage()
            self._add_frames(batch)

    def finish(self, *, is_end: bool) -> None:
        """End the split; ``is_end`` says that its segment has nothing behind it."""
        if not is_end:
            self._close_damage()

    def _add_frames(self, batch: FrameBatch) -> None:
        frames, summary = batch.frames, self._summary
        if len(frames) > len(self._odd):
            self._odd, self._timestamps = (np.empty(len(frames), dtype=np.int64) for _ in range(2))
        odd, times = self._odd[: len(frames)], self._timestamps[: len(frames)]
        kernel.check_records(batch.data, batch.physical_offset, frames, times, odd, summary)
        self.largest_record_bytes = max(self.largest_record_bytes, int(summary[kernel.LARGEST_BYTES]))
        if summary[kernel.FAILED_COUNT]:
            sound = frames[:, scan_kernel.CODE] == scan_kernel.SOUND
            for row in frames[~sound].tolist():
                self._add_failed(batch, row)
            frames, odd, times = frames[sound], odd[sound], times[sound]
        offsets = frames[:, scan_kernel.POSITION]
        falls = bool(summary[kernel.FALL_COUNT])
        for finding in self.times.add(
            batch.physical_offset, offsets, times, int(summary[kernel.LATEST_MS]), falls=falls
        ):
            self.findings.add(replace(finding, path=self._path))
        if summary[kernel.ODD_COUNT]:
            for index in np.flatnonzero(odd).tolist():
                self._add_odd(batch, frames[index].tolist(), int(odd[index]))

    def _note(self, damage: Damage) -> None:
        self.damages.append(damage)
        self.damaged_bytes += damage.size

    def _close_damage(self) -> None:
        """What was open has something behind it: it is a stretch in mid-log."""
        if self.open_damage is not None:
            self.findings.add(self.stretch_finding(self.open_damage))
            self.open_damage = None

    def stretch_finding(self, damage: Damage) -> Finding:
        """The finding for a stretch without a record."""
        kind = kinds.DAMAGE[damage.code]
        expected, actual = None, None
        if self.findings.has_room(kind):
            expected, actual = self._told(damage)
        return Finding(
            kind, damage.code.text, self._path, damage.physical_offset, damage.size, expected=expected, actual=actual
        )

    def _told(self, damage: Damage) -> tuple[str | None, str | None]:
        head = bytearray(HEAD_BYTES)
        if self._reader.read_into(damage.physical_offset - self._file_offset, memoryview(head)) < HEAD_BYTES:
            return None, None
        size, magic, _, _, _, _, physical_offset = _HEAD.unpack(head)
        if damage.code is DamageCode.MAGIC:
            return f"{MAGIC_V1 & 0xFFFFFFFF:08x} or {MAGIC_V2 & 0xFFFFFFFF:08x}", f"{magic & 0xFFFFFFFF:08x}"
        if damage.code is DamageCode.PHYSICAL_OFFSET:
            return str(damage.physical_offset), str(physical_offset)
        return None, f"size {size}"

    def _add_failed(self, batch: FrameBatch, row: _Row) -> None:
        """A frame whose lengths hold and whose checksum does not: its header says whose message it is."""
        position, size, body_at, body_bytes, code = row[0], row[1], row[2], row[3], DamageCode(row[8])
        physical_offset = batch.physical_offset + position
        self._note(Damage(physical_offset, size, code))
        kind = kinds.DAMAGE[code]
        if not self.findings.has_room(kind):
            self.findings.add_uncounted(kind, 1)
            return
        topic, queue_id, queue_offset, stored_crc = _whose(batch, row)
        expected = actual = None
        if code is DamageCode.BODY_CRC:
            computed = crc32(batch.data, body_at, body_at + body_bytes) & 0x7FFFFFFF if body_bytes else 0
            expected, actual = f"{stored_crc} (stored)", f"{computed} (of the body)"
        self.findings.add(
            Finding(kind, code.text, self._path, physical_offset, size, topic, queue_id, queue_offset, expected, actual)
        )

    def _add_odd(self, batch: FrameBatch, row: _Row, odd: int) -> None:
        physical_offset = batch.physical_offset + row[0]
        topic, queue_id, queue_offset, _ = _whose(batch, row)

        def finding(kind: Kind, detail: str, expected: str | None, actual: str | None) -> None:
            self.findings.add(
                Finding(
                    kind, detail, self._path, physical_offset, row[1], topic, queue_id, queue_offset, expected, actual
                )
            )

        if odd & kernel.ODD_TOPIC:
            raw = batch.data[row[4] : row[4] + row[5]].tobytes()
            fault = topic_fault(raw)
            if fault:
                finding(kinds.LOG_TOPIC, fault, None, repr(raw))
        if odd & kernel.ODD_PROPERTIES:
            raw = batch.data[row[6] : row[6] + row[7]].tobytes()
            finding(kinds.LOG_PROPERTIES, properties_fault(raw), None, repr(raw[:200]))
        for bit, name, read in _FIELDS:
            if odd & bit:
                finding(kinds.LOG_HEADER, f"{name} has a value that no broker writes", None, read(batch, row))


def _whose(batch: FrameBatch, row: _Row) -> tuple[str, int, int, int]:
    """Topic, queue id, queue offset and stored body CRC of a frame."""
    head = batch.data[row[0] : row[0] + HEAD_BYTES].tobytes()
    _, _, crc, queue_id, _, queue_offset, _ = _HEAD.unpack(head)
    return batch.data[row[4] : row[4] + row[5]].tobytes().decode("utf-8", "replace"), queue_id, queue_offset, crc


def topic_fault(raw: bytes) -> str | None:
    """What keeps a topic's bytes from being a topic; None if nothing does."""
    try:
        topic = raw.decode()
    except UnicodeDecodeError:
        return "topic is not UTF-8"
    if not topic:
        return "topic is empty"
    if not paths.is_safe_topic(topic):
        return "topic is no directory name"
    if any(character < " " or character == "\x7f" for character in topic):
        return "topic has control characters"
    return None


def properties_fault(raw: bytes) -> str:
    """What keeps a property block from parsing."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"properties are not UTF-8 at their byte {error.start}"
    return "properties have an entry without a name or a separator"


def _integer(at: int, width: int) -> Callable[[FrameBatch, _Row], str]:
    def read(batch: FrameBatch, row: _Row) -> str:
        begin = row[0] + at
        return str(int.from_bytes(batch.data[begin : begin + width].tobytes(), "big", signed=True))

    return read


def _behind_hosts(at: int, width: int, hosts: int) -> Callable[[FrameBatch, _Row], str]:
    """A field that stands ``at`` bytes behind the born host (1) or both hosts (2)."""

    def read(batch: FrameBatch, row: _Row) -> str:
        sys_flag = batch.data[row[0] + 36 : row[0] + 40].tobytes()[3]
        begin = RECORD_BORN_HOST_AT + (HOST_V6_BYTES if sys_flag & FLAG_BORN_HOST_V6 else HOST_V4_BYTES)
        if hosts > 1:
            begin += 8 + (HOST_V6_BYTES if sys_flag & FLAG_STORE_HOST_V6 else HOST_V4_BYTES)
        return _integer(begin + at, width)(batch, row)

    return read


def _body_head(batch: FrameBatch, row: _Row) -> str:
    flags = _integer(36, 4)(batch, row)
    return f"sys_flag {flags}, body begins {batch.data[row[2] : row[2] + min(4, row[3])].tobytes().hex()}"


_FIELDS: Final[tuple[tuple[int, str, Callable[[FrameBatch, _Row], str]], ...]] = (
    (kernel.ODD_SYS_FLAG, "sys_flag", _integer(36, 4)),
    (kernel.ODD_QUEUE_ID, "queue_id", _integer(12, 4)),
    (kernel.ODD_QUEUE_OFFSET, "queue_offset", _integer(20, 8)),
    (kernel.ODD_BORN_TIMESTAMP, "born_timestamp", _integer(40, 8)),
    (kernel.ODD_BORN_HOST, "port of born_host", _behind_hosts(-4, 4, 1)),
    (kernel.ODD_STORE_TIMESTAMP, "store_timestamp", _behind_hosts(0, 8, 1)),
    (kernel.ODD_STORE_HOST, "port of store_host", _behind_hosts(-4, 4, 2)),
    (kernel.ODD_RECONSUME_TIMES, "reconsume_times", _behind_hosts(0, 4, 2)),
    (kernel.ODD_PREPARED_OFFSET, "prepared_transaction_offset", _behind_hosts(4, 8, 2)),
    (kernel.ODD_COMPRESSION, "compression", _body_head),
)
