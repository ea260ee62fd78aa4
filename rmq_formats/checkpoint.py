"""The checkpoint file: up to when CommitLog, ConsumeQueue and Index are known to be on disk."""

from dataclasses import astuple, dataclass
from struct import Struct
from typing import Final

from rmq_formats.errors import TruncatedError
from rmq_formats.layout import CHECKPOINT_FILE_BYTES, CHECKPOINT_USED_BYTES
from rmq_formats.packing import pack_fields

_FIELDS = Struct(">5q")
assert _FIELDS.size == CHECKPOINT_USED_BYTES

SAFETY_MS: Final = 3000  # recovery begins that much earlier than the checkpoint says


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The five numbers; a missing file counts as zeros.

    Attributes:
        physic_msg_timestamp_ms: store timestamp of the last message whose record is flushed.
        logics_msg_timestamp_ms: of the last one whose ConsumeQueue unit is.
        index_msg_timestamp_ms: of the last one in the last IndexFile that is full.
        master_flushed_offset: physical offset, in bytes; 0 without a controller.
        confirm_physical_offset: physical offset, in bytes, up to which the log is confirmed.
    """

    physic_msg_timestamp_ms: int = 0
    logics_msg_timestamp_ms: int = 0
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0

    def encode(self) -> bytes:
        """The 4096 bytes on disk.

        Raises:
            LengthError: a number does not fit into 64 bits.
        """
        return pack_fields(_FIELDS, *astuple(self)).ljust(CHECKPOINT_FILE_BYTES, b"\0")

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview) -> "Checkpoint":
        """Read a checkpoint.

        Raises:
            TruncatedError: fewer than the 40 bytes in use.

        Source: ``StoreCheckpoint``.
        """
        if len(buffer) < CHECKPOINT_USED_BYTES:
            raise TruncatedError("the bytes end within a checkpoint", actual=len(buffer))
        return cls(*_FIELDS.unpack_from(buffer))

    @property
    def min_timestamp_ms(self) -> int:
        """Before this, records and units are on disk. Source: ``StoreCheckpoint#getMinTimestamp``."""
        return max(min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms) - SAFETY_MS, 0)

    @property
    def min_timestamp_index_ms(self) -> int:
        """Before this, index entries are too. Source: ``StoreCheckpoint#getMinTimestampIndex``."""
        return min(self.min_timestamp_ms, self.index_msg_timestamp_ms)
