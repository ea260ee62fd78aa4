"""The kernel that encodes rows, against the codec that encodes one record."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.arrow.encode import EncodeOptions, RowEncoder
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.record import MessageToStore, encode_record
from rmq_formats.kernels.encode import offsets
from rmq_formats.kernels.encode import rows as kernel
from tests.kernels.guarded_memory import guarded
from tests.support.stores.record_strategies import messages_of
from tests.support.stores.written_stores import rows

# Texts of hosts have ports of 16 bits, and IPv4 for what an IPv6 address only maps.
host_addresses = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16).filter(
    lambda address: not address.startswith(bytes(10))
)
storable = messages_of(st.integers(0, (1 << 31) - 1), st.builds(Host, host_addresses, st.integers(0, 65535)))
characters = st.sampled_from("%|abcXYZ019_-")
topics = st.text(characters, min_size=1, max_size=127) | st.text(characters, min_size=128, max_size=255)
times_ms = st.integers(-62_135_596_800_000, 253_402_300_799_999)  # of Spark's years


def batch_of(stored: Sequence[tuple[MessageToStore, int]]) -> pa.RecordBatch:
    return rows(
        topic=[m.topic for m, _ in stored],
        queue_id=[m.queue_id for m, _ in stored],
        body=[m.body for m, _ in stored],
        properties=[list(properties_of(m).items()) for m, _ in stored],
        flag=[m.flag for m, _ in stored],
        sys_flag=[m.sys_flag & ~0x30 for m, _ in stored],
        born_timestamp=[m.born_timestamp_ms * 1000 for m, _ in stored],
        store_timestamp=[time * 1000 for _, time in stored],
        born_host=[m.born_host.text for m, _ in stored],
        store_host=[m.store_host.text for m, _ in stored],
        reconsume_times=[m.reconsume_times for m, _ in stored],
        prepared_transaction_offset=[m.prepared_transaction_offset for m, _ in stored],
    )


def properties_of(message: MessageToStore) -> dict[str, str]:
    entries = message.properties_bytes.decode().split("\x02")[:-1]
    return dict(entry.split("\x01") for entry in entries)


@st.composite
def stored_rows(draw: st.DrawFn) -> list[tuple[MessageToStore, int]]:
    found = []
    for message in draw(st.lists(storable, min_size=1, max_size=8)):
        fields = {name: getattr(message, name) for name in MessageToStore.__slots__}
        own = {"topic": draw(topics), "born_timestamp_ms": draw(times_ms)}
        found.append((MessageToStore(**{**fields, **own}), draw(times_ms)))
    return found


@given(stored=stored_rows(), crc=st.booleans(), begin=st.integers(0, 1 << 40))
@pytest.mark.long
def test_records_are_those_of_the_codec(stored: list[tuple[MessageToStore, int]], crc: bool, begin: int) -> None:
    encoder = RowEncoder(EncodeOptions(0, kernel.CRC_ALWAYS if crc else kernel.CRC_NEVER))
    (encoded,) = encoder.encode(batch_of(stored))
    ends = np.cumsum(encoded.rows[:, kernel.SIZE])
    addresses = encoded.records.ctypes.data + ends - encoded.rows[:, kernel.SIZE]
    places = np.empty((len(stored), offsets.PLACE_COLUMNS), dtype=np.int64)
    queue_ends = np.zeros(len(stored), dtype=np.int64)
    at = np.array([begin, 1 << 60], dtype=np.int64)
    assert offsets.lay_out(encoded.rows, queue_ends, False, 1 << 60, at, places) == offsets.PLACED
    out = np.zeros(int(ends[-1]), dtype=np.uint8)
    offsets.place_records(encoded.rows, addresses, places, 0, len(stored), out)
    expected, counts = b"", dict.fromkeys(((m.topic, m.queue_id) for m, _ in stored), 0)
    for message, time_ms in stored:
        counts_here = message.sys_flag & 0xC in {0, 0x8}
        expected += encode_record(
            message,
            queue_offset=counts[message.topic, message.queue_id] if counts_here else 0,
            physical_offset=begin + len(expected),
            store_timestamp_ms=time_ms,
            append_crc_property=crc,
        )
        counts[message.topic, message.queue_id] += counts_here
    assert out.tobytes() == expected
    assert encoder.queue_names() == list(counts)


def test_rows_go_on_where_the_buffer_was_full() -> None:
    count = 3000
    batch = rows(topic=[f"T{n}" for n in range(count)], body=[b"x" * (n % 7) * 400 for n in range(count)])
    pieces = [(bytes(e.records), e.rows.copy()) for e in RowEncoder(EncodeOptions(0)).encode(batch)]
    assert len(pieces) > 1
    assert sum(len(part) for _, part in pieces) == count
    assert all(len(records) == int(part[:, kernel.SIZE].sum()) for records, part in pieces)


def test_a_record_larger_than_the_buffer_has_one_of_its_own() -> None:
    batch = rows(topic=["T"] * 3, body=[b"x", b"y" * (5 << 20), b"z"])
    found = b"".join(bytes(e.records) for e in RowEncoder(EncodeOptions(0)).encode(batch))
    assert found.count(b"y") == 5 << 20


def test_a_buffer_is_filled_to_its_end_and_not_beyond() -> None:
    batch = rows(
        topic=["Topic"] * 40,
        body=[b"x" * n for n in range(40)],
        tags=["tag"] * 40,
        keys=[["k", "l"]] * 40,
        born_host=["10.0.0.1:80"] * 40,
    )
    (whole,) = RowEncoder(EncodeOptions(0, kernel.CRC_NEVER)).encode(batch)
    for size in (400, 777, 1000, 4096, 5000):
        encoder = RowEncoder(EncodeOptions(0, kernel.CRC_NEVER))
        with guarded(bytes(size)) as out:
            encoder._out = out
            found = b"".join(bytes(encoded.records) for encoded in encoder.encode(batch))
            del encoder
        assert found == bytes(whole.records)
