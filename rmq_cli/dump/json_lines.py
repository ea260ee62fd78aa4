"""Renders a record as one line of JSON, with the keys, order and text of the golden ``messages.jsonl``.

That text is what fastjson2 2.0.43 makes of Java's own decoder: no spaces, characters outside of ASCII as
they are, control characters escaped as msgspec escapes them too (compared for every UTF-16 code unit), and
properties in the order of a ``TreeMap<String, String>``.
"""

from binascii import b2a_base64
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from rmq_cli.dump import json_kernel as kernel
from rmq_formats.arrow.rows import FrameRows
from rmq_formats.codecs.properties import decode_properties
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.kernels.scan import POSITION, PROPERTIES_AT, TOPIC_AT
from rmq_formats.scan.segment import FrameBatch

_START = (
    b'{"physical_offset":%d,"size":%d,"magic":%d,"body_crc":%d,"queue_id":%d,"flag":%d,"queue_offset":%d,'
    b'"recorded_physical_offset":%d,"sys_flag":%d,"born_timestamp":%d,"born_host":"%b","store_timestamp":%d,'
    b'"store_host":"%b","reconsume_times":%d,"prepared_transaction_offset":%d,"topic":%b,'
)
_BODY = b'"body_base64":"%b",'
_END = b'"properties":%b,"msg_id":"%b"}\n'
_LINE: Final = _START + _BODY + _END
_LINE_WITHOUT_BODY: Final = _START + _END

_FIRST_OUT_BYTES: Final = 4 << 20
_NO_LIMIT: Final = (1 << 63) - 1

_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def message_line(message: StoredMessage, *, with_body: bool = True) -> bytes:
    """Return the line for a decoded record."""
    line = _LINE if with_body else _LINE_WITHOUT_BODY
    body = (b2a_base64(message.body, newline=False),) if with_body else ()
    return line % (
        message.physical_offset, message.size, message.magic, message.body_crc, message.queue_id,
        message.flag, message.queue_offset, message.recorded_physical_offset, message.sys_flag,
        message.born_timestamp_ms, message.born_host.text.encode(), message.store_timestamp_ms,
        message.store_host.text.encode(), message.reconsume_times, message.prepared_transaction_offset,
        _encode(message.topic), *body, _properties(message.properties_bytes), message.msg_id.encode(),
    )  # fmt: skip


def _properties(raw: bytes) -> bytes:
    properties = decode_properties(raw)
    if raw.isascii():
        return _encode_sorted(properties)
    # Java compares UTF-16 code units: U+1F600 is before U+FFFD there, behind it in code points.
    ordered = sorted(properties.items(), key=lambda item: item[0].encode("utf-16-be"))
    return _encode(dict(ordered))


class RecordRenderer:
    """Renders lines for whole windows of records; owns the output buffer."""

    def __init__(self, *, topic: str | None = None, with_body: bool = True) -> None:
        """Allocate the buffers."""
        self._by_topic = topic is not None
        self._topic = np.frombuffer(bytearray((topic or "").encode("utf-8", "replace")), dtype=np.uint8)
        self._with_body = with_body
        self._out = np.empty(_FIRST_OUT_BYTES, dtype=np.uint8)
        self._entries = np.empty((kernel.MAX_PROPERTIES, kernel.ENTRY_COLUMNS), dtype=np.int64)
        self._result = np.zeros(3, dtype=np.int64)

    def render(self, batch: FrameBatch, limit: int | None = None) -> Iterator[tuple[bytes | memoryview, int]]:
        """Render the sound records of a batch, in pieces; each with the number of its lines.

        A piece is valid until the next one is requested; the batch must not change until all are consumed.
        """
        rows = FrameRows(batch.data, batch.frames)
        rows.repair(TOPIC_AT)
        rows.repair(PROPERTIES_AT)
        row, remaining = 0, _NO_LIMIT if limit is None else limit
        while row < len(rows) and remaining > 0:
            status = kernel.render_records(
                rows.data,
                rows.frames,
                row,
                remaining,
                self._by_topic,
                self._topic,
                self._with_body,
                self._entries,
                self._out,
                self._result,
            )
            row, out_bytes, count = self._result.tolist()
            if count:
                remaining -= count
                yield self._out.data[:out_bytes], count
            elif status == kernel.FULL:
                self._out = np.empty(2 * len(self._out), dtype=np.uint8)
            if status == kernel.BY_HAND and remaining > 0:
                message = decode_record(batch.data.data, int(rows.frames[row, POSITION]), verify_crc=False)
                yield message_line(message, with_body=self._with_body), 1
                row, remaining = row + 1, remaining - 1
