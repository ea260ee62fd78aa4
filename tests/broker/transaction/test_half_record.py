"""Half messages are read as the decoder reads them, and damaged ones not at all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_core.broker.transaction.half import decode_half_record
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.properties import encode_properties
from tests.broker.conftest import small_store
from tests.broker.transaction.conftest import HALF

V4, V6 = b"\x7f\0\0\1\0\0\0\1", bytes(range(16)) + b"\0\0\0\1"
PROPERTIES = {"PGROUP": "pg", "KEYS": "k", "REAL_TOPIC": "T", "REAL_QID": "7", "XPGROUP": "no", "TIMER_DELAY_MS": "5"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """An open store."""
    opened = MessageStore.open(small_store(tmp_path / "store"), 1)
    yield opened
    opened.shutdown()


def record(store: MessageStore, physical_offset: int) -> memoryview:
    """A stored record, to be bent."""
    found = store.record(physical_offset)
    assert found is not None
    return memoryview(bytearray(found))


@pytest.mark.parametrize("born_host", [V4, V6], ids=["v4", "v6"])
@pytest.mark.parametrize("store_host", [V4, V6], ids=["v4", "v6"])
def test_a_half_message_is_read_as_the_decoder_reads_it(
    store: MessageStore, born_host: bytes, store_host: bytes
) -> None:
    put = store.appender.put(
        HALF,
        0,
        b"body",
        encode_properties(PROPERTIES),
        5,
        born_host,
        6,
        flag=3,
        reconsume_times=2,
        store_host=store_host,
    )
    found, oracle = decode_half_record(record(store, put.physical_offset)), store.message(put.physical_offset)
    assert found is not None
    assert oracle is not None
    for name in ("physical_offset", "queue_offset", "flag", "sys_flag", "born_timestamp_ms", "reconsume_times"):
        assert getattr(found, name) == getattr(oracle, name)
    assert (bytes(found.body), found.properties_bytes) == (oracle.body, oracle.properties_bytes)
    assert found.born_host == oracle.born_host.to_bytes()
    assert found.properties == oracle.properties
    looked_at = ("PGROUP", "REAL_TOPIC", "REAL_QID", "TIMER_DELAY_MS")
    assert found.end_properties() == {name: PROPERTIES[name] for name in looked_at}


def test_other_records_are_no_half_messages(store: MessageStore) -> None:
    put = store.appender.put("T", 0, b"body", b"", 5, V4, 6)
    assert decode_half_record(record(store, put.physical_offset)) is None


def test_of_a_damaged_half_message_no_other_body_is_read(store: MessageStore) -> None:
    put = store.appender.put(HALF, 0, b"body", b"PGROUP\x01pg\x02", 5, V4, 6)
    bent = record(store, put.physical_offset)
    sound = decode_half_record(bent)
    assert sound is not None
    for at in range(put.size):
        for bit in range(8):
            bent[at] ^= 1 << bit
            found = decode_half_record(bent)
            assert found is None or bytes(found.body) == b"body"
            bent[at] ^= 1 << bit
    assert decode_half_record(bent) == sound
    assert all(decode_half_record(bent[:size]) is None for size in range(50, put.size))
