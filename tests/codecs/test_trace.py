"""Trace records as text, as the original's encoder writes them and its decoder reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.client.producer.tracer import trace_messages
from rmq_formats.codecs.trace import ContextCode, MessageType, TraceRecord, TraceType, decode_trace, encode_trace
from rmq_formats.errors import DecodeError

PUB = TraceRecord(
    trace_type=TraceType.PUB,
    timestamp_ms=1795230324501,
    region_id="DefaultRegion",
    group="pg",
    topic="Orders",
    msg_id="7F0000010D4C18B4AAC2AF8A2D0D0000",
    tags="Paid",
    keys="4711 k2",
    store_host="127.0.0.1:10911",
    body_bytes=5,
    cost_ms=12,
    message_type=MessageType.NORMAL,
    offset_msg_id="7F00000100002A9F0000000000000000",
    is_success=True,
)
BEFORE = TraceRecord(
    trace_type=TraceType.SUB_BEFORE,
    timestamp_ms=3,
    region_id="r",
    group="cg",
    request_id="R",
    msg_id="M",
    retry_times=2,
    keys=None,
)
AFTER = TraceRecord(
    trace_type=TraceType.SUB_AFTER,
    timestamp_ms=9,
    group="cg",
    request_id="R",
    msg_id="M",
    cost_ms=6,
    keys=None,
    is_success=False,
    context_code=ContextCode.EXCEPTION,
)
ENDED = TraceRecord(
    trace_type=TraceType.END_TRANSACTION,
    timestamp_ms=4,
    region_id="DefaultRegion",
    group="pg",
    topic="T",
    msg_id="M",
    tags=None,
    keys="k",
    store_host="h:1",
    message_type=MessageType.COMMIT,
    transaction_id="M",
    transaction_state="COMMIT_MESSAGE",
    is_from_check=True,
)
RECALLED = TraceRecord(
    trace_type=TraceType.RECALL, timestamp_ms=4, region_id="DefaultRegion", group="pg", topic="T", msg_id="M"
)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (
            PUB,
            "Pub|1795230324501|DefaultRegion|pg|Orders|7F0000010D4C18B4AAC2AF8A2D0D0000|Paid|4711 k2|"
            "127.0.0.1:10911|5|12|0|7F00000100002A9F0000000000000000|true\x02",
        ),
        (BEFORE, "SubBefore|3|r|cg|R|M|2|null\x02"),
        (AFTER, "SubAfter|R|M|6|false|null|2|9|cg\x02"),
        (ENDED, "EndTransaction|4|DefaultRegion|pg|T|M|null|k|h:1|2|M|COMMIT_MESSAGE|true\x02"),
        (RECALLED, "Recall|4|DefaultRegion|pg|T|M|true\x02"),
    ],
)
def test_records_are_the_original_s(record: TraceRecord, text: str) -> None:
    written = text.replace("|", "\x01")
    assert encode_trace(record) == written
    assert decode_trace(written.encode()) == [record]


def test_records_of_older_clients_are_read() -> None:
    old = "Pub|1|r|pg|T|M|t|k|h:1|5|12|3|false".replace("|", "\x01")
    (found,) = decode_trace(old.encode())
    assert (found.message_type, found.is_success, found.offset_msg_id) == (MessageType.DELAY, False, None)
    newest = "Pub|1|r|pg|T|M|t|k|h:1|5|12|0|ID|true|10.0.0.1".replace("|", "\x01")
    assert decode_trace(newest.encode())[0].offset_msg_id == "ID"
    (after,) = decode_trace("SubAfter|R|M|6|true|k".replace("|", "\x01").encode())
    assert (after.is_success, after.timestamp_ms, after.group) == (True, 0, "")


def test_unknown_types_are_passed_over_and_bad_records_told() -> None:
    assert decode_trace(b"") == []
    assert decode_trace(b"Other\x01x\x02" + encode_trace(BEFORE).encode()) == [BEFORE]
    for bad in (b"Pub\x011\x02", b"SubBefore\x01x\x01r\x01g\x01R\x01M\x012\x01k\x02", b"Pub" + b"\x019" * 13):
        with pytest.raises(DecodeError, match="a trace record"):
            decode_trace(bad)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        decode_trace(b"Pub\x01" + body)
    except DecodeError:
        return


def test_trace_messages_have_the_keys_of_their_records_and_a_limit() -> None:
    (one,) = trace_messages("TRACES", [PUB, BEFORE, AFTER])
    assert one.topic == "TRACES"
    assert one.keys == [PUB.msg_id, "4711", "k2", "M"]
    assert decode_trace(one.body) == [PUB, BEFORE, AFTER]
    many = trace_messages("TRACES", [PUB] * 250)
    assert [len(decode_trace(one.body)) for one in many] == [100, 100, 50]
    assert trace_messages("TRACES", []) == []
