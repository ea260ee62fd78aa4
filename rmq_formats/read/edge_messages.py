"""Reads the first and the last message of a log."""

from collections.abc import Sequence
from typing import Final

from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.kernels.scan import CODE, POSITION, SOUND
from rmq_formats.scan.segment import scan_segment
from rmq_formats.storage.segments import Segment, Storage, opened

_EDGE_BYTES: Final = 16 << 20  # searched for the first or last record, which has little over 4 MiB at most by default


def edge_message(storage: Storage, segments: Sequence[Segment], *, last: bool) -> StoredMessage | None:
    """Decode the first or the last sound record of a log, if it stands near that end of a file."""
    for segment in reversed(segments) if last else segments:
        with opened(storage, segment.path) as file:
            data_end = segment.data_end(file)
            start, limit = (max(0, data_end - _EDGE_BYTES), data_end) if last else (0, _EDGE_BYTES)
            message = None
            for batch in scan_segment(
                file, segment.start_offset, segment.size_bytes, start=start, limit=limit, data_end=data_end,
                head_bytes=segment.head_bytes,
            ):  # fmt: skip
                sound = batch.frames[batch.frames[:, CODE] == SOUND, POSITION]
                if len(sound):
                    message = decode_record(batch.data.data, int(sound[-1 if last else 0]), verify_crc=False)
                    if not last:
                        return message
            if message is not None:
                return message
    return None
