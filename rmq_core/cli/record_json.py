"""A record as one line of JSON: the keys, order, values and text of the golden ``messages.jsonl``.

That text is what fastjson2 2.0.43 makes of Java's own decoder: no spaces, characters outside of ASCII as
they are, control characters escaped as msgspec escapes them too (compared for every UTF-16 code unit), and
properties in the order of a ``TreeMap<String, String>``.
"""

from binascii import b2a_base64
from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import Final

import msgspec

from rmq_formats.hosts import Host
from rmq_formats.kernels.scan import SOUND
from rmq_formats.layout import HOST_V4_BYTES, HOST_V6_BYTES, RECORD_SYS_FLAG_AT
from rmq_formats.message import StoredMessage
from rmq_formats.properties import decode_properties
from rmq_formats.scan import FrameBatch

# Size to sys_flag, born timestamp; born host; store timestamp; store host; reconsume times, prepared offset.
_HEADS: Final = tuple(
    Struct(f">iiiiiqqiq{born}sq{store}siq")
    for store in (HOST_V4_BYTES, HOST_V6_BYTES)
    for born in (HOST_V4_BYTES, HOST_V6_BYTES)
)
_HOSTS_AT: Final = RECORD_SYS_FLAG_AT + 3  # the flag's low byte, whose bits 4 and 5 tell of IPv6 hosts

_START = (
    b'{"physical_offset":%d,"size":%d,"magic":%d,"body_crc":%d,"queue_id":%d,"flag":%d,"queue_offset":%d,'
    b'"recorded_physical_offset":%d,"sys_flag":%d,"born_timestamp":%d,"born_host":"%b","store_timestamp":%d,'
    b'"store_host":"%b","reconsume_times":%d,"prepared_transaction_offset":%d,"topic":%b,'
)
_BODY = b'"body_base64":"%b",'
_END = b'"properties":%b,"msg_id":"%b%016X"}\n'
_LINE: Final = _START + _BODY + _END
_LINE_WITHOUT_BODY: Final = _START + _END

_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def record_lines(batch: FrameBatch, *, topic: str | None = None, with_body: bool = True) -> Iterator[bytes]:
    """A line for each sound record of a batch, made on demand: take no more than are wanted.

    Works on the window itself: decoding each record into a ``StoredMessage`` would take twice as long.

    Args:
        batch: of a scan; its window must not change while lines are taken.
        topic: only that topic's records.
        with_body: with ``body_base64``.
    """
    view = batch.data.data
    wanted = None if topic is None else topic.encode("utf-8", "replace")
    line = _LINE if with_body else _LINE_WITHOUT_BODY
    for position, _, body_at, body_bytes, topic_at, topic_bytes, at, size, code in batch.frames.tolist():
        name = bytes(view[topic_at : topic_at + topic_bytes])
        if code != SOUND or (wanted is not None and name != wanted):
            continue
        head = _HEADS[view[position + _HOSTS_AT] >> 4 & 3].unpack_from(view, position)
        (record_bytes, magic, crc, queue_id, flag, queue_offset, recorded_offset, sys_flag, born_ms,
         born_host, store_ms, store_host, reconsume_times, prepared_offset) = head  # fmt: skip
        store_host_text, store_host_hex = _host(store_host)
        body = (b2a_base64(view[body_at : body_at + body_bytes], newline=False),) if with_body else ()
        yield line % (
            batch.physical_offset + position, record_bytes, magic, crc, queue_id, flag, queue_offset,
            recorded_offset, sys_flag, born_ms, _host(born_host)[0], store_ms, store_host_text,
            reconsume_times, prepared_offset, _topic(name), *body, _properties(bytes(view[at : at + size])),
            store_host_hex, recorded_offset,
        )  # fmt: skip


def message_line(message: StoredMessage, *, with_body: bool = True) -> bytes:
    """The same line for a decoded record."""
    line = _LINE if with_body else _LINE_WITHOUT_BODY
    store_host_text, store_host_hex = _host(message.store_host.to_bytes())
    body = (b2a_base64(message.body, newline=False),) if with_body else ()
    return line % (
        message.physical_offset, message.size, message.magic, message.body_crc, message.queue_id,
        message.flag, message.queue_offset, message.recorded_physical_offset, message.sys_flag,
        message.born_timestamp_ms, message.born_host.text.encode(), message.store_timestamp_ms,
        store_host_text, message.reconsume_times, message.prepared_transaction_offset,
        _encode(message.topic), *body, _properties(message.properties_bytes), store_host_hex,
        message.recorded_physical_offset,
    )  # fmt: skip


@lru_cache(maxsize=65536)  # producers are few beside records
def _host(raw: bytes) -> tuple[bytes, bytes]:
    """Text and upper-case hex of 8 or 20 bytes."""
    return Host.from_bytes(raw, 0, len(raw) == HOST_V6_BYTES).text.encode(), raw.hex().upper().encode()


@lru_cache(maxsize=4096)
def _topic(name: bytes) -> bytes:
    return _encode(name.decode("utf-8", "replace"))


def _properties(raw: bytes) -> bytes:
    properties = decode_properties(raw)
    if raw.isascii():
        return _encode_sorted(properties)
    # Java compares UTF-16 code units: U+1F600 is before U+FFFD there, behind it in code points.
    ordered = sorted(properties.items(), key=lambda item: item[0].encode("utf-16-be"))
    return _encode(dict(ordered))
