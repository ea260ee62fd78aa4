"""ConsumeQueueExt: what a ConsumeQueue unit has no room for.

The unit has the address of what stands here in place of its tags code. Only with
``enableConsumeQueueExt``. Units follow each other; a file ends with a short -1 once the next unit and
four more bytes do not fit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct

from rmq_formats.errors import LengthError, OptionError, TruncatedError
from rmq_formats.layout import (
    EXT_END_BYTES,
    EXT_MAX_ADDRESS,
    EXT_UNIT_MAX_BYTES,
    EXT_UNIT_MIN_BYTES,
)
from rmq_formats.packing import pack_fields

_SIZE = Struct(">h")
UNIT = Struct(">hqqh")  # size, tags code, store timestamp, size of the bit map
assert UNIT.size == EXT_UNIT_MIN_BYTES

_END_MARK = _SIZE.pack(-1)
_MIN_LONG = -(1 << 63)
MAX_EXT_OFFSET = EXT_MAX_ADDRESS - _MIN_LONG


@dataclass(frozen=True, slots=True)
class ExtUnit:
    """One unit.

    Attributes:
        tags_code: the tags code that the address has replaced.
        store_timestamp_ms: when the message was stored.
        bit_map: Bloom filter of the SQL92 subscriptions that match; empty unless
            ``enableCalcFilterBitMap``.
    """

    tags_code: int
    store_timestamp_ms: int
    bit_map: bytes = b""

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return EXT_UNIT_MIN_BYTES + len(self.bit_map)

    def encode(self) -> bytes:
        """The bytes on disk.

        Raises:
            LengthError: the bit map is too long, or a number does not fit into its field.

        Source: ``ConsumeQueueExt.CqExtUnit#write``.
        """
        if self.size > EXT_UNIT_MAX_BYTES:
            raise LengthError("ConsumeQueueExt unit too large", expected=EXT_UNIT_MAX_BYTES, actual=self.size)
        head = pack_fields(UNIT, self.size, self.tags_code, self.store_timestamp_ms, len(self.bit_map))
        return head + self.bit_map

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview, position: int = 0) -> "ExtUnit | None":
        """Read the unit at a position; None where a file's units end (a size of 0, or the end mark).

        Raises:
            TruncatedError: the buffer ends within the unit.
            LengthError: the two sizes in it do not fit each other.

        Source: ``ConsumeQueueExt.CqExtUnit#read``.
        """
        left = len(buffer) - position
        if position < 0 or left < _SIZE.size:
            raise TruncatedError("the bytes end within a ConsumeQueueExt unit", physical_offset=position)
        size = _SIZE.unpack_from(buffer, position)[0]
        if size <= 0:
            return None
        if left < max(size, EXT_UNIT_MIN_BYTES):
            raise TruncatedError("the bytes end within a ConsumeQueueExt unit", physical_offset=position)
        _, tags_code, store_timestamp_ms, bit_map_bytes = UNIT.unpack_from(buffer, position)
        if max(bit_map_bytes, 0) != size - EXT_UNIT_MIN_BYTES:
            raise LengthError(
                "size of a ConsumeQueueExt unit",
                physical_offset=position,
                expected=EXT_UNIT_MIN_BYTES + max(bit_map_bytes, 0),
                actual=size,
            )
        bit_map = bytes(buffer[position + EXT_UNIT_MIN_BYTES : position + size])
        return cls(tags_code, store_timestamp_ms, bit_map)


def is_ext_address(tags_code: int) -> bool:
    """Whether the tags code of a ConsumeQueue unit is an address. Source: ``ConsumeQueueExt#isExtAddr``."""
    return tags_code <= EXT_MAX_ADDRESS


def encode_ext_address(ext_offset: int) -> int:
    """The address of a unit, from its offset in the queue's ext files, in bytes.

    Raises:
        LengthError: an offset that no address can have.

    Source: ``ConsumeQueueExt#decorate``.
    """
    if not 0 <= ext_offset <= MAX_EXT_OFFSET:
        raise LengthError("ConsumeQueueExt offset", expected=f"0..{MAX_EXT_OFFSET}", actual=ext_offset)
    return ext_offset + _MIN_LONG


def decode_ext_address(address: int) -> int:
    """The offset in the queue's ext files, in bytes, that an address stands for.

    Raises:
        LengthError: not an address.

    Source: ``ConsumeQueueExt#unDecorate``.
    """
    if not _MIN_LONG <= address <= EXT_MAX_ADDRESS:
        raise LengthError("not a ConsumeQueueExt address", expected=f"at most {EXT_MAX_ADDRESS}", actual=address)
    return address - _MIN_LONG


def build_consumequeue_ext(units: Iterable[tuple[int, int]], file_bytes: int) -> tuple[dict[int, bytes], list[int]]:
    """The ext files of one queue, by their start offset in bytes, and the address of each unit.

    Args:
        units: tags code and store timestamp (ms) of each message of the queue, in log order.
        file_bytes: size of a file (``mappedFileSizeConsumeQueueExt``).

    Raises:
        OptionError: a file of that size has no room for a unit.

    Source: ``ConsumeQueueExt#put``, ``#fullFillToEnd``.
    """
    if file_bytes < EXT_UNIT_MIN_BYTES + EXT_END_BYTES:
        raise OptionError(f"a ConsumeQueueExt file of {file_bytes} bytes has no room for a unit")
    files: dict[int, bytes] = {}
    addresses: list[int] = []
    start = 0
    image = bytearray()
    for tags_code, store_timestamp_ms in units:
        unit = ExtUnit(tags_code, store_timestamp_ms).encode()
        if len(unit) > file_bytes - len(image) - EXT_END_BYTES:
            files[start] = bytes(image + _END_MARK).ljust(file_bytes, b"\0")
            start += file_bytes
            image.clear()
        addresses.append(encode_ext_address(start + len(image)))
        image += unit
    if image:
        files[start] = bytes(image).ljust(file_bytes, b"\0")
    return files, addresses
