"""Lines of JSON by the kernel, against those by Python, for records of every kind."""

import json
from base64 import b64decode

from hypothesis import given
from hypothesis import strategies as st

from rmq_cli.dump.json_kernel import MAX_PROPERTIES
from rmq_cli.dump.json_lines import RecordRenderer, message_line
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import PROPERTY_CRC
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore, StoredMessage, decode_record
from rmq_formats.kernels.scan import POSITION
from rmq_formats.scan.segment import scan_segment
from tests.support.stores.record_strategies import encode_segment, messages, plain_message
from tests.support.stores.store_files import InMemory

# Blocks that no encoder writes: separators anywhere, repeated and empty names, what is no UTF-8.
blocks = st.one_of(
    st.lists(st.sampled_from([b"\x01", b"\x02", b"a", b"ab", b'"', b"\\", b"\n", b"\x1f", b"\x7f", b"\xff"])).map(
        b"".join
    ),
    st.text(st.sampled_from("\x01\x02ab\ud7ff\ue000\uffff\U0001f600é单"), max_size=30).map(str.encode),
)
any_messages = st.builds(
    lambda message, block, v4: (
        plain_message(
            message.topic, message.body, properties_bytes=block, queue_id=message.queue_id, sys_flag=message.sys_flag
        )
        if v4
        else message
    ),
    messages,
    blocks.filter(lambda block: PROPERTY_CRC.encode() not in block),
    st.booleans(),
)


def rendered(
    stored: list[MessageToStore], **options: object
) -> tuple[list[StoredMessage], list[bytes], RecordRenderer]:
    """The messages of a segment, and the lines that are made of it."""
    image, _ = encode_segment(stored, 0, 100, blank=False)
    limit = options.pop("limit", None)
    renderer = RecordRenderer(**options)  # type: ignore[arg-type]
    decoded, lines = [], b""
    for batch in scan_segment(InMemory(image), 0, len(image)):
        decoded += [decode_record(batch.data.data, int(row[POSITION])) for row in batch.frames]
        for piece, count in renderer.render(batch, limit):  # type: ignore[arg-type]
            lines += bytes(piece)
            assert bytes(piece).count(b"\n") == count
    return decoded, lines.splitlines(keepends=True), renderer


@given(st.lists(any_messages, min_size=1, max_size=6), st.booleans())
def test_the_kernel_writes_what_python_writes(stored: list[MessageToStore], with_body: bool) -> None:
    decoded, lines, _ = rendered(stored, with_body=with_body)
    assert lines == [message_line(message, with_body=with_body) for message in decoded]


@given(st.lists(any_messages, min_size=1, max_size=3))
def test_a_line_reads_back_as_the_record(stored: list[MessageToStore]) -> None:
    decoded, lines, _ = rendered(stored)
    for message, line in zip(decoded, lines, strict=True):
        fields = json.loads(line)
        assert fields["topic"] == message.topic
        assert fields["properties"] == message.properties
        assert b64decode(fields["body_base64"]) == message.body
        assert fields["born_host"] == message.born_host.text
        assert fields["msg_id"] == message.msg_id
        assert (fields["sys_flag"], fields["born_timestamp"]) == (message.sys_flag, message.born_timestamp_ms)


@given(st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=30), st.integers(0, 10))
def test_topic_and_limit_choose_lines(topics: list[str], limit: int) -> None:
    host = Host(bytes(15) + b"\1", 1)  # every third record is made by Python
    stored = [
        plain_message(topic, born_host=host) if number % 3 == 2 else plain_message(topic)
        for number, topic in enumerate(topics)
    ]
    decoded, lines, _ = rendered(stored, topic="a", limit=limit)
    assert lines == [message_line(message) for message in decoded if message.topic == "a"][:limit]


def test_names_are_sorted_as_java_compares_them() -> None:
    names = ["z", "\ufffd", "\U0001f600", "\ud7ff", "a", "ab", "\ue000", "\U00010000"]
    _, lines, _ = rendered([plain_message(properties_bytes=encode_properties(dict.fromkeys(names, "1")))])
    assert list(json.loads(lines[0])["properties"]) == sorted(names, key=lambda name: name.encode("utf-16-be"))


def test_more_properties_than_the_kernel_has_room_for_are_written_too() -> None:
    properties = {f"name{number:04d}": str(number) for number in reversed(range(MAX_PROPERTIES + 1))}
    decoded, lines, _ = rendered([plain_message(properties_bytes=encode_properties(properties))])
    assert lines == [message_line(message) for message in decoded]
    assert json.loads(lines[0])["properties"] == properties


def test_a_record_larger_than_the_renderers_memory_is_written_whole() -> None:
    stored = [plain_message(body=bytes([65 + number]) * (4 << 20)) for number in range(2)]
    decoded, lines, _ = rendered([plain_message(), *stored, plain_message()])
    assert lines == [message_line(message) for message in decoded]
