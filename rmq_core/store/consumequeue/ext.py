"""ConsumeQueueExt of one queue: tags code, store time and bit map of messages, to which units refer.

Used only with ``enableConsumeQueueExt``. Source: ``ConsumeQueueExt``.
"""

from collections.abc import Callable, Iterable
from typing import Final

from rmq_core.store.consumequeue.files import FileSequence, OpenFiles
from rmq_formats.codecs.consumequeue_ext import UNIT, ExtUnit, decode_ext_address, encode_ext_address, is_ext_address
from rmq_formats.codecs.layout import EXT_END_BYTES, EXT_UNIT_MAX_BYTES, EXT_UNIT_MIN_BYTES
from rmq_formats.errors import FormatError

MayMatchUnit = Callable[[int, bytes], bool]  # arguments: store timestamp (ms) and bit map of a message

_END_MARK: Final = b"\xff\xff"
_USUAL_BYTES: Final = 64  # more than a unit with a bit map of 32 groups has
_BLOCK_BYTES: Final = 4096


class QueueExt:
    """The ConsumeQueueExt units of one queue, up to offset ``end``; the queue's ConsumeQueue has their addresses."""

    def __init__(self, directory: str, file_bytes: int, open_files: OpenFiles) -> None:
        self.end = 0
        self.files = FileSequence(directory, file_bytes, open_files)

    def load(self, last_tags_code: int | None) -> None:
        """Open the files, and cut off all bytes after the unit at the queue's last address."""
        self.files.load()
        self.cut(last_tags_code)

    def cut(self, last_tags_code: int | None) -> None:
        """Cut off all bytes after the unit at an address; all units for None."""
        self.end = self.files.start
        if last_tags_code is not None:
            offset = decode_ext_address(last_tags_code)
            unit = self._unit(offset)
            self.end = offset if unit is None else offset + unit.size
        if self.files.has_data(self.end):
            self.files.trim(self.end)

    def append(self, units: Iterable[ExtUnit]) -> list[int]:
        """Append units, and return their addresses."""
        addresses = []
        data = bytearray()
        for unit in units:
            free_bytes = self.files.file_bytes - (self.end + len(data)) % self.files.file_bytes
            if unit.size > free_bytes - EXT_END_BYTES:
                self._write(data + _END_MARK, len(data) + free_bytes)
                data.clear()
            addresses.append(encode_ext_address(self.end + len(data)))
            data += unit.encode()
        self._write(data, len(data))
        return addresses

    def _write(self, data: bytearray, step: int) -> None:
        self.files.write(bytes(data), self.end)
        self.end += step

    def _unit(self, offset: int) -> ExtUnit | None:
        for size in (_USUAL_BYTES, EXT_UNIT_MAX_BYTES):
            try:
                return ExtUnit.decode(self.files.read(offset, size))
            except FormatError:  # the unit is longer, or not sound
                continue
        return None

    def at(self, tags_code: int) -> ExtUnit | None:
        """Return the unit at the address in a tags code; None if the code is no address, or no sound unit is there."""
        return self._unit(decode_ext_address(tags_code)) if is_ext_address(tags_code) else None

    def tags_code(self, tags_code: int) -> int:
        """Resolve a ConsumeQueue unit's tags code: replace the address of a unit by that unit's tags code."""
        unit = self.at(tags_code)
        return tags_code if unit is None else unit.tags_code

    def remove_before(self, tags_code: int) -> None:
        """Detach the files before that of an address. Source: ``ConsumeQueueExt#truncateByMinAddress``."""
        if is_ext_address(tags_code):
            self.files.expire_before(decode_ext_address(tags_code))


class ExtReader:
    """Reader of the consecutive ConsumeQueueExt units of one pull: reads blocks, and makes no object for each unit."""

    def __init__(self, ext: QueueExt) -> None:
        """Create a reader; ``ext`` must not be written to meanwhile."""
        self._ext = ext
        self._block: bytes | memoryview = b""
        self._start = 0

    def at(self, tags_code: int) -> tuple[int, bytes] | None:
        """Return store timestamp (ms) and bit map of the unit at the address in a tags code; None without a unit."""
        if not is_ext_address(tags_code):
            return None
        position = decode_ext_address(tags_code) - self._start
        if not 0 <= position <= len(self._block) - _USUAL_BYTES:
            self._start += position
            self._block, position = self._ext.files.read(self._start, _BLOCK_BYTES), 0
        bits_at = position + EXT_UNIT_MIN_BYTES
        if bits_at <= len(self._block):
            size, _, store_timestamp_ms, bit_map_bytes = UNIT.unpack_from(self._block, position)
            if 0 <= bit_map_bytes == size - EXT_UNIT_MIN_BYTES <= len(self._block) - bits_at:
                return store_timestamp_ms, bytes(self._block[bits_at : position + size])
        unit = self._ext.at(tags_code)  # the unit is large, at a file's end, or missing
        return None if unit is None else (unit.store_timestamp_ms, unit.bit_map)
