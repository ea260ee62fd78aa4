"""Codecs of the timer message files: ``timerlog`` units, ``timerwheel`` slots, and ``config/timercheck``.

A unit holds where a message waits in the CommitLog and when it is due. Units that are due in the same interval
form a chain, from the newest back; the wheel's slot of that interval holds where the chain begins.

Source: ``TimerLog``, ``TimerWheel``, ``Slot``, ``TimerCheckpoint``, ``TimerMessageStore#doEnqueue``.
"""

from dataclasses import astuple, dataclass
from struct import Struct
from typing import Final

import numpy as np

from rmq_formats.codecs.layout import CHECKPOINT_FILE_BYTES, MAGIC_BLANK, pack_fields
from rmq_formats.errors import LengthError, MagicError, TruncatedError

PROPERTY_OUT_MS: Final = "TIMER_OUT_MS"
PROPERTY_DELETED_KEY: Final = "TIMER_DEL_UNIQKEY"

UNIT: Final = Struct(">iqiqiqiiq")
TIMER_UNIT_BYTES: Final = 52
UNIT_DTYPE: Final = np.dtype(
    [("unit_bytes", ">i4"), ("previous", ">i8"), ("flags", ">i4"), ("write_time_ms", ">i8"), ("delay_ms", ">i4"),
     ("physical_offset", ">i8"), ("size", ">i4"), ("topic_hash", ">i4"), ("reserved", ">i8")]
)  # fmt: skip
assert UNIT_DTYPE.itemsize == UNIT.size == TIMER_UNIT_BYTES
TIMER_LOG_FILE_BYTES: Final = 100 << 20
BLANK: Final = Struct(">iqi")  # bytes left in the file, 0, MAGIC_BLANK
NO_POSITION: Final = -1
FLAG_NORMAL: Final = 1
FLAG_ROLL: Final = 2
FLAG_DELETE: Final = 4
MAX_FLAGS: Final = 0xF

SLOT: Final = Struct(">qqqii")
SLOT_BYTES: Final = 32
WHEEL_SLOTS: Final = 7 * 86_400 * 2  # slots, whatever the precision: twice the time that a wheel has to hold
WHEEL_FILE_BYTES: Final = WHEEL_SLOTS * SLOT_BYTES
BLANK_SLOTS: Final = 60  # slots of the first half that rolling leaves free

_CHECKPOINT: Final = Struct(">7q")
TIMER_CHECKPOINT_BYTES: Final = 56

assert SLOT.size == SLOT_BYTES
assert _CHECKPOINT.size == TIMER_CHECKPOINT_BYTES
assert WHEEL_FILE_BYTES == 38_707_200


@dataclass(frozen=True, slots=True)
class TimerUnit:
    """A unit of ``timerlog``.

    Attributes:
        previous: position of the unit before it in the same slot, bytes from the log's start; -1 if there is none.
        flags: FLAG_NORMAL, plus FLAG_ROLL if the message is only stored again then, FLAG_DELETE if it is a recall.
        write_time_ms: when it was written, at the start of its interval.
        delay_ms: from then until it is due.
        physical_offset: of the waiting message's record, bytes.
        size: of that record, bytes.
        topic_hash: Java's hash of the topic where it belongs.
    """

    previous: int
    flags: int
    write_time_ms: int
    delay_ms: int
    physical_offset: int
    size: int
    topic_hash: int

    @property
    def due_ms(self) -> int:
        """Time in ms at which the message is due; its slot's time."""
        return self.write_time_ms + self.delay_ms

    def encode(self) -> bytes:
        """Encode the unit's 52 bytes. Raises LengthError if a number does not fit."""
        return pack_fields(
            UNIT,
            TIMER_UNIT_BYTES,
            self.previous,
            self.flags,
            self.write_time_ms,
            self.delay_ms,
            self.physical_offset,
            self.size,
            self.topic_hash,
            0,
        )

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview, position: int = 0) -> "TimerUnit":
        """Decode a unit.

        Raises:
            TruncatedError: fewer than 52 bytes.
            LengthError: data of another size.
            MagicError: flags that no unit has; the BLANK that ends a file is none either.

        Source: ``TimerMessageStore#recoverAndRevise``, ``#isMagicOK``.
        """
        if len(buffer) - position < TIMER_UNIT_BYTES:
            raise TruncatedError("the bytes end within a timer unit", position, actual=len(buffer) - position)
        size, previous, flags, *rest = UNIT.unpack_from(buffer, position)
        if flags == MAGIC_BLANK or not 0 < flags <= MAX_FLAGS:
            raise MagicError("no timer unit", position, actual=flags)
        if size != TIMER_UNIT_BYTES:
            raise LengthError("no timer unit", position, expected=TIMER_UNIT_BYTES, actual=size)
        return cls(previous, flags, *rest[:-1])


def encode_blank(remaining_bytes: int) -> bytes:
    """Encode the BLANK that ends a file of ``timerlog``, with the number of bytes from its start to the file's end."""
    return pack_fields(BLANK, remaining_bytes, 0, MAGIC_BLANK)


@dataclass(frozen=True, slots=True)
class TimerSlot:
    """A slot of ``timerwheel``.

    Attributes:
        time_index: the interval's start, in intervals since 1970; 0 if the slot was never used.
        first: position of the oldest unit in ``timerlog``.
        last: of the newest one.
        count: messages minus recalls.
        magic: 0.
    """

    time_index: int
    first: int
    last: int
    count: int
    magic: int = 0

    def encode(self) -> bytes:
        """Encode the slot's 32 bytes. Raises LengthError if a number does not fit."""
        return pack_fields(SLOT, *astuple(self))

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview, position: int = 0) -> "TimerSlot":
        """Decode a slot. Raises TruncatedError if there are fewer than 32 bytes."""
        if len(buffer) - position < SLOT_BYTES:
            raise TruncatedError("the bytes end within a slot", position, actual=len(buffer) - position)
        return cls(*SLOT.unpack_from(buffer, position))


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """Progress of the timer message service (``config/timercheck``, and the answer to request code 60).

    Attributes:
        last_read_time_ms: all messages due before this have been delivered.
        last_timer_log_flush_position: bytes of ``timerlog`` that are on the disk, and in the wheel's file.
        last_timer_queue_offset: messages of the timer topic before this have been enqueued into the wheel.
        master_timer_queue_offset: the same of the master.
        state_version, timestamp_ms, counter: of the ``DataVersion``.
    """

    last_read_time_ms: int = 0
    last_timer_log_flush_position: int = 0
    last_timer_queue_offset: int = 0
    master_timer_queue_offset: int = 0
    state_version: int = 0
    timestamp_ms: int = 0
    counter: int = 0

    def encode(self) -> bytes:
        """Encode the 56 bytes in use. Raises LengthError if a number does not fit."""
        return pack_fields(_CHECKPOINT, *astuple(self))

    def encode_file(self) -> bytes:
        """Encode the 4096 bytes on disk. Raises LengthError if a number does not fit."""
        return self.encode().ljust(CHECKPOINT_FILE_BYTES, b"\0")

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview) -> "TimerCheckpoint":
        """Decode a checkpoint. Raises TruncatedError if there are fewer than 56 bytes."""
        if len(buffer) < TIMER_CHECKPOINT_BYTES:
            raise TruncatedError("the bytes end within a timer checkpoint", actual=len(buffer))
        return cls(*_CHECKPOINT.unpack_from(buffer))


_DONE: Final = Struct(">4q")  # our addition, behind the bytes that Java uses: it leaves the rest of the file as it is
_DONE_AT: Final = 64
_DONE_MAGIC: Final = 0x524D51_54494D45


def encode_done_offset(checkpoint: bytes, done_offset: int) -> bytes:
    """Add to a checkpoint file, 4096 bytes, the CommitLog offset from which on messages may not count as delivered."""
    read_time_ms, _, queue_offset, *_ = _CHECKPOINT.unpack_from(checkpoint)
    note = pack_fields(_DONE, _DONE_MAGIC, done_offset, read_time_ms, queue_offset)
    return checkpoint[:_DONE_AT] + note + checkpoint[_DONE_AT + _DONE.size :]


def decode_done_offset(checkpoint: bytes) -> int | None:
    """Read the offset of ``encode_done_offset``; None without one, or if Java has written the file since."""
    if len(checkpoint) < _DONE_AT + _DONE.size:
        return None
    magic, done_offset, read_time_ms, queue_offset = _DONE.unpack_from(checkpoint, _DONE_AT)
    stored = TimerCheckpoint.decode(checkpoint)
    same = (read_time_ms, queue_offset) == (stored.last_read_time_ms, stored.last_timer_queue_offset)
    return int(done_offset) if magic == _DONE_MAGIC and same else None
