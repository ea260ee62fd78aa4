"""Keys and values of a ConsumeQueue in RocksDB against those of a real one, and cut or bent at every byte."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.codecs import rocksdb_queue as codec
from rmq_formats.codecs.rocksdb_queue import QueueBound
from rmq_formats.errors import DecodeError

KEY = bytes.fromhex("000000020154780100000001010000000000000007")


def test_a_unit_s_key_is_java_s() -> None:
    assert codec.unit_key("Tx", 1, 7) == KEY
    assert codec.split_unit_key(KEY) == ("Tx", 1, KEY[:-8])
    assert codec.queue_prefix("Tx", 1) == KEY[:-8]
    assert KEY < codec.key_after_queue(KEY[:-8]) < codec.queue_prefix("Tx", 2)


@pytest.mark.parametrize("name", ["rocksdb", "rocksdb_lmq"])
def test_each_pair_of_a_real_database_comes_back(name: str, golden: Callable[[str], Path]) -> None:
    lines = (golden(name) / "expected" / "rocksdb" / "consumequeue.tsv").read_text("ascii").splitlines()
    rows = [(family, bytes.fromhex(key), bytes.fromhex(value)) for family, key, value in map(_split, lines)]
    queues: dict[bytes, list[tuple[bytes, bytes]]] = {}
    for family, key, value in rows:
        if family == codec.UNITS_FAMILY:
            topic, queue_id, prefix = codec.split_unit_key(key)
            assert codec.queue_prefix(topic, queue_id) == prefix
            queues.setdefault(prefix, []).append((key, value))
        elif key == codec.CHECKPOINT_KEY:
            assert codec.encode_checkpoint(codec.decode_checkpoint(value)) == value
        else:
            assert QueueBound.decode(value).encode() == value
    for prefix, pairs in queues.items():
        keys, values = zip(*pairs, strict=True)
        offsets, units = codec.decode_units(prefix, keys, values)
        assert offsets.tolist() == list(range(len(offsets)))
        assert codec.encode_units(prefix, offsets, units) == (b"".join(keys), b"".join(values))
        topic, queue_id, _ = codec.split_unit_key(keys[0])
        bound = codec.bound_key(topic, queue_id)
        (last,) = (value for family, key, value in rows if family == codec.OFFSETS_FAMILY and key == bound)
        assert QueueBound.decode(last) == QueueBound(int(units[-1]["physical_offset"]), int(offsets[-1]))


def _split(line: str) -> list[str]:
    return line.split("\t")


@given(st.text(max_size=40), st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, (1 << 63) - 1))
def test_keys_come_back(topic: str, queue_id: int, queue_offset: int) -> None:
    key = codec.unit_key(topic, queue_id, queue_offset)
    assert codec.split_unit_key(key) == (topic, queue_id, key[:-8])


@pytest.mark.parametrize("cut", range(len(KEY)))
def test_a_key_that_is_cut_is_refused(cut: int) -> None:
    with pytest.raises(DecodeError):
        codec.split_unit_key(KEY[:cut])
    with pytest.raises(DecodeError):
        codec.decode_units(KEY[:-8], [KEY, KEY[:cut]], [bytes(28)] * 2)


@pytest.mark.parametrize("at", [0, 3, 4, 7, 12])
def test_lengths_and_separators_must_fit(at: int) -> None:
    bent = bytearray(KEY)
    bent[at] ^= 3
    with pytest.raises(DecodeError, match="bad key of a ConsumeQueue"):
        codec.split_unit_key(bytes(bent))


@pytest.mark.parametrize("size", [0, 7, 9, 15, 17, 27, 29])
def test_values_of_other_sizes_are_refused(size: int) -> None:
    for decode in (QueueBound.decode, codec.decode_checkpoint):
        with pytest.raises(DecodeError):
            decode(bytes(size))
    with pytest.raises(DecodeError, match="a value of RocksDB of another size"):
        codec.decode_units(KEY[:-8], [KEY], [bytes(size)])


def test_no_units_are_none() -> None:
    offsets, units = codec.decode_units(KEY[:-8], [], [])
    assert (len(offsets), len(units)) == (0, 0)
    assert offsets.dtype == np.int64
