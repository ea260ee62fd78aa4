"""Codec of the ``checkpoint`` file: the times up to which CommitLog, ConsumeQueue and Index are flushed.

Source: ``StoreCheckpoint``.
"""

from dataclasses import astuple, dataclass
from struct import Struct
from typing import Final

from rmq_formats.codecs.layout import CHECKPOINT_FILE_BYTES, CHECKPOINT_SIXTH_END, CHECKPOINT_USED_BYTES, pack_fields
from rmq_formats.errors import TruncatedError

_FIELDS = Struct(">6q")
assert _FIELDS.size == CHECKPOINT_SIXTH_END

SAFETY_MS: Final = 3000  # recovery begins this much earlier than the checkpoint says


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The numbers of the checkpoint file; a missing file counts as zeros.

    Attributes:
        physic_msg_timestamp_ms: store timestamp of the last message whose record is flushed.
        logics_msg_timestamp_ms: of the last message whose ConsumeQueue unit is flushed.
        index_msg_timestamp_ms: of the last message in the last full IndexFile.
        master_flushed_offset: physical offset, in bytes; 0 without a controller.
        confirm_physical_offset: physical offset, in bytes, up to which the log is confirmed.
        logics_physical_offset: of the last message whose ConsumeQueue unit is flushed; 0 from brokers before 5.5, which
            leave a value in the file as it was, and in a young store.
    """

    physic_msg_timestamp_ms: int = 0
    logics_msg_timestamp_ms: int = 0
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    logics_physical_offset: int = 0

    def encode(self) -> bytes:
        """Encode the 4096 bytes of the file. Raises LengthError if a number does not fit into 64 bits."""
        return pack_fields(_FIELDS, *astuple(self)).ljust(CHECKPOINT_FILE_BYTES, b"\0")

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview) -> "Checkpoint":
        """Decode a checkpoint. Raises TruncatedError if the 40 bytes that all brokers use are not there."""
        if len(buffer) < CHECKPOINT_USED_BYTES:
            raise TruncatedError("the bytes end within a checkpoint", actual=len(buffer))
        return cls(*_FIELDS.unpack(bytes(buffer[: _FIELDS.size]).ljust(_FIELDS.size, b"\0")))

    @property
    def min_timestamp_ms(self) -> int:
        """Store time in ms before which records and units are on disk (``#getMinTimestamp``)."""
        return max(min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms) - SAFETY_MS, 0)
