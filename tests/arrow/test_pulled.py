"""Answers to pulls as frames: records of any places, one behind the other."""

from dataclasses import replace

import pytest

from rmq_formats.arrow.batches import pulled_frames, record_batches
from rmq_formats.arrow.schema import COMMITLOG
from rmq_formats.codecs.compression import Compression, compress
from rmq_formats.codecs.record import decode_record, encode_record
from rmq_formats.codecs.record_frame import DamageCode
from rmq_formats.errors import FormatError
from rmq_formats.kernels import scan
from tests.support.stores.record_strategies import plain_message


def record(queue_offset: int, body: bytes = b"body", sys_flag: int = 0) -> bytes:
    message = replace(plain_message(), body=body, sys_flag=sys_flag)
    # Neighbours in a queue are none in the log.
    return encode_record(
        message, queue_offset=queue_offset, physical_offset=(7 << 40) - 977 * queue_offset, store_timestamp_ms=99
    )


def test_records_of_several_answers_are_rows_in_their_order() -> None:
    answers = [record(5) + record(6, b"x" * 5000), memoryview(record(7))]
    (batch,) = record_batches([pulled_frames(answers, 0, 100)], COMMITLOG)
    expected = [decode_record(one) for one in (record(5), record(6, b"x" * 5000), record(7))]
    assert batch["body"].to_pylist() == [message.body for message in expected]
    assert batch["physical_offset"].to_pylist() == [message.physical_offset for message in expected]
    assert batch["store_host"].to_pylist() == [message.store_host.text for message in expected]


def test_what_was_not_asked_for_is_left_out() -> None:
    frames = pulled_frames([record(4) + record(5) + record(6)], 5, 6)
    (batch,) = record_batches([frames], COMMITLOG)
    assert batch["queue_offset"].to_pylist() == [5]


def test_a_single_compressed_body_is_inflated_and_all_else_stays() -> None:
    stored = record(3, compress(b"plain " * 99, Compression.ZLIB), Compression.ZLIB.sys_flag)
    (batch,) = record_batches([pulled_frames([stored], 0, 9)], COMMITLOG, decompress=True)
    row, expected = batch.to_pylist()[0], decode_record(stored)
    assert row["body"] == b"plain " * 99
    assert (row["store_host"], row["reconsume_times"], row["prepared_transaction_offset"]) == (
        expected.store_host.text, expected.reconsume_times, expected.prepared_transaction_offset,
    )  # fmt: skip


def test_a_body_that_arrives_bent_is_marked() -> None:
    bent = bytearray(record(1))
    bent[bent.index(b"body")] ^= 1
    frames = pulled_frames([bytes(bent), record(2)], 0, 9).frames
    assert frames[:, scan.CODE].tolist() == [DamageCode.BODY_CRC, scan.SOUND]


def test_an_answer_that_is_cut_or_bent_anywhere_is_an_error_or_a_mark() -> None:
    whole = record(1)
    for end in range(1, len(whole)):
        with pytest.raises(FormatError, match="a pull response has"):
            pulled_frames([record(0), whole[:end]], 0, 9)
    for at in range(len(whole)):
        bent = bytearray(whole)
        bent[at] ^= 0xFF
        try:
            frames = pulled_frames([bytes(bent)], -(1 << 63), (1 << 63) - 1).frames
        except FormatError:
            continue
        assert len(frames) == 1
