"""Checks CommitLog records batch by batch: the damage that the scan found, and fields that no checksum covers."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from rmq_formats.codecs import paths
from rmq_formats.codecs.layout import RECORD_VERSIONS
from rmq_formats.codecs.record_frame import CRC_MASK, Damage, DamageCode, FrameShape
from rmq_formats.codecs.record_layout import HEAD_FIELDS, PORT_BYTES, SYS_FLAG, head_struct, host_kind
from rmq_formats.kernels import scan as scan_kernel
from rmq_formats.kernels import verify as kernel
from rmq_formats.kernels.crc import crc32
from rmq_formats.scan.segment import FrameBatch
from rmq_formats.storage.range_reader import RangeReader
from rmq_formats.storage.segments import Storage
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.dledger_entries import EntryCheck, EntrySpan
from rmq_offline.verify.findings import Finding, FindingList, Kind
from rmq_offline.verify.timestamps import TimeCheck

_DAMAGED = head_struct("size", "magic", "physical_offset")
_BODY_CRC = head_struct("body_crc")
_QUEUE = head_struct("queue_id", "queue_offset")


class LogCheck:
    """Check of the records in one split of a segment.

    Attributes:
        damages: every damaged range, in log order.
        open_damage: the damaged range that the split ends with: only the whole log shows whether the log goes on.
        blank_at: physical offset of the file's end mark, if the split met it.
        largest_record_bytes: size of the largest sound record.
    """

    def __init__(
        self, storage: Storage, path: str, reader: RangeReader, file_offset: int, head_bytes: int, findings: FindingList
    ) -> None:
        """Create the check of one split.

        Args:
            reader: of the segment, to read damaged bytes again.
            file_offset: physical offset of the segment's first byte.
            head_bytes: in front of each record, see ``Segment``.
        """
        self.findings = findings
        self._path, self._reader, self._head_bytes = path, reader, head_bytes
        self.times = TimeCheck(loose=head_bytes > 0)  # DLedger's broker stamps a message before it takes the lock
        self._entries = EntryCheck(storage, path, findings) if head_bytes else None
        self.damages: list[Damage] = []
        self.open_damage: Damage | None = None
        self.blank_at: int | None = None
        self.largest_record_bytes = 0
        self._records_at = head_bytes - file_offset
        self._odd, self._timestamps = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._summary = np.empty(kernel.SUMMARY_COLUMNS, dtype=np.int64)

    def add(self, batch: FrameBatch) -> None:
        """Check the next batch of the split."""
        for damage in batch.damages:
            self._close_damage()
            self.damages.append(damage)
            self.open_damage = damage
            if self._entries is not None:
                self._entries.add_damage()
        if batch.blank_at is not None:
            self._close_damage()
            self.blank_at = batch.blank_at
        if len(batch.frames):
            self._close_damage()
            if self._entries is not None:
                self._entries.add(batch)
            self._add_frames(batch)

    def finish(self, *, is_end: bool) -> None:
        """Finish the split; ``is_end`` means that nothing follows in its segment."""
        if not is_end:
            self._close_damage()

    def finish_entries(self) -> EntrySpan | None:
        """Return the span of the split's entries; None where the segment has no entries."""
        return None if self._entries is None else self._entries.finish()

    def close(self) -> None:
        """Close DLedger's index."""
        if self._entries is not None:
            self._entries.close()

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
                self._add_failed(batch, FrameShape(*row[: scan_kernel.CODE]), DamageCode(row[scan_kernel.CODE]))
            frames, odd, times = frames[sound], odd[sound], times[sound]
        offsets = frames[:, scan_kernel.POSITION]
        falls = bool(summary[kernel.FALL_COUNT])
        for finding in self.times.add(
            batch.physical_offset, offsets, times, int(summary[kernel.LATEST_MS]), falls=falls
        ):
            self.findings.add(replace(finding, path=self._path))
        if summary[kernel.ODD_COUNT]:
            for index in np.flatnonzero(odd).tolist():
                shape = FrameShape(*frames[index, : scan_kernel.CODE].tolist())
                self._add_odd(batch, shape, int(odd[index]))

    def _close_damage(self) -> None:
        """Report the open damaged range as one in mid-log, because something follows."""
        if self.open_damage is not None:
            self.findings.add(self.make_damage_finding(self.open_damage))
            self.open_damage = None

    def make_damage_finding(self, damage: Damage) -> Finding:
        """Make the finding for a range without a record."""
        kind = finding_kinds.DAMAGE[damage.code]
        expected, actual = self._describe_damage(damage) if self.findings.has_room(kind) else (None, None)
        return Finding(
            kind, damage.code.text, self._path, damage.physical_offset, damage.size, expected=expected, actual=actual
        )

    def _describe_damage(self, damage: Damage) -> tuple[str | None, str | None]:
        head = bytearray(_DAMAGED.size)
        if self._reader.read_into(damage.physical_offset + self._records_at, memoryview(head)) < len(head):
            return None, None
        size, magic, physical_offset = _DAMAGED.unpack(head)
        if damage.code is DamageCode.MAGIC:
            expected = " or ".join(f"{version & 0xFFFFFFFF:08x}" for version in RECORD_VERSIONS)
            return expected, f"{magic & 0xFFFFFFFF:08x}"
        if damage.code is DamageCode.PHYSICAL_OFFSET:
            return str(damage.physical_offset + self._head_bytes), str(physical_offset)
        return None, f"size {size}"

    def _add_failed(self, batch: FrameBatch, shape: FrameShape, code: DamageCode) -> None:
        """Report a frame whose lengths are right and whose checksum is wrong: the header names the message."""
        self.damages.append(Damage(batch.physical_offset + shape.position, shape.size, code))
        kind = finding_kinds.DAMAGE[code]
        if not self.findings.has_room(kind):
            self.findings.add_uncounted(kind, 1)
            return
        expected = actual = None
        if code is DamageCode.BODY_CRC:
            body_end = shape.body_at + shape.body_bytes
            stored = _BODY_CRC.unpack_from(batch.data.data, shape.position)[0]
            computed = crc32(batch.data, shape.body_at, body_end) & CRC_MASK if shape.body_bytes else 0
            expected, actual = f"{stored} (stored)", f"{computed} (of the body)"
        self._add_of_record(batch, shape, kind, code.text, expected, actual)

    def _add_of_record(
        self, batch: FrameBatch, shape: FrameShape, kind: Kind, detail: str, expected: str | None, actual: str | None
    ) -> None:
        """Add a finding of a record, with the queue that its head names."""
        queue_id, queue_offset = _QUEUE.unpack_from(batch.data.data, shape.position)
        self.findings.report(
            kind,
            detail,
            self._path,
            physical_offset=batch.physical_offset + shape.position,
            size=shape.size,
            topic=_bytes_at(batch, shape.topic_at, shape.topic_bytes).decode("utf-8", "replace"),
            queue_id=queue_id,
            queue_offset=queue_offset,
            expected=expected,
            actual=actual,
        )

    def _add_odd(self, batch: FrameBatch, shape: FrameShape, odd: int) -> None:
        finding = functools.partial(self._add_of_record, batch, shape)
        if odd & kernel.ODD_TOPIC:
            raw = _bytes_at(batch, shape.topic_at, shape.topic_bytes)
            fault = topic_fault(raw)
            if fault:
                finding(finding_kinds.LOG_TOPIC, fault, None, repr(raw))
        if odd & kernel.ODD_PROPERTIES:
            raw = _bytes_at(batch, shape.properties_at, shape.properties_bytes)
            finding(finding_kinds.LOG_PROPERTIES, describe_properties_fault(raw), None, repr(raw[:200]))
        for bit, name, read in _FIELDS:
            if odd & bit:
                finding(finding_kinds.LOG_HEADER, f"{name} has a value that no broker writes", None, read(batch, shape))


def _bytes_at(batch: FrameBatch, position: int, byte_count: int) -> bytes:
    return batch.data[position : position + byte_count].tobytes()


def topic_fault(raw: bytes) -> str | None:
    """Return why a topic's bytes are no valid topic; None if they are."""
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


def describe_properties_fault(raw: bytes) -> str:
    """Return why a property block does not parse."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"properties are not UTF-8 at their byte {error.start}"
    return "properties have an entry without a name or a separator"


def _sys_flag(batch: FrameBatch, shape: FrameShape) -> int:
    return int(SYS_FLAG.unpack_from(batch.data.data, shape.position)[0])


def _field(name: str, part_bytes: int | None = None) -> Callable[[FrameBatch, FrameShape], str]:
    """Return the reader of a field of the head, or of its last bytes, as an integer."""

    def read(batch: FrameBatch, shape: FrameShape) -> str:
        field = HEAD_FIELDS[host_kind(_sys_flag(batch, shape))][name]
        end = shape.position + field.at + field.width
        return str(int.from_bytes(batch.data[end - (part_bytes or field.width) : end].tobytes(), "big", signed=True))

    return read


def _body_head(batch: FrameBatch, shape: FrameShape) -> str:
    body = _bytes_at(batch, shape.body_at, min(4, shape.body_bytes))
    return f"sys_flag {_sys_flag(batch, shape)}, body begins {body.hex()}"


_FIELDS: Final[tuple[tuple[int, str, Callable[[FrameBatch, FrameShape], str]], ...]] = (
    (kernel.ODD_SYS_FLAG, "sys_flag", _field("sys_flag")),
    (kernel.ODD_QUEUE_ID, "queue_id", _field("queue_id")),
    (kernel.ODD_QUEUE_OFFSET, "queue_offset", _field("queue_offset")),
    (kernel.ODD_BORN_TIMESTAMP, "born_timestamp", _field("born_timestamp")),
    (kernel.ODD_BORN_HOST, "port of born_host", _field("born_host", PORT_BYTES)),
    (kernel.ODD_STORE_TIMESTAMP, "store_timestamp", _field("store_timestamp")),
    (kernel.ODD_STORE_HOST, "port of store_host", _field("store_host", PORT_BYTES)),
    (kernel.ODD_RECONSUME_TIMES, "reconsume_times", _field("reconsume_times")),
    (kernel.ODD_PREPARED_OFFSET, "prepared_transaction_offset", _field("prepared_transaction_offset")),
    (kernel.ODD_COMPRESSION, "compression", _body_head),
)
