"""Functions of whole columns equal the plain ones, value by value."""

import zlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_formats.arrow import functions
from rmq_formats.arrow.functions import body_crcs, key_hashes, plain_bodies, properties, tags_codes
from rmq_formats.codecs.compression import Compression, compress
from rmq_formats.codecs.hashing import index_key_hash, tags_code
from rmq_formats.codecs.properties import decode_properties
from rmq_formats.errors import OptionError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(deadline=None)
@given(st.lists(st.none() | texts, max_size=20))
def test_tags_codes_are_javas_hashes_and_0_without_tags(tags: list[str | None]) -> None:
    assert tags_codes(pa.array(tags, pa.string())).to_pylist() == [tags_code(tag) for tag in tags]


@settings(deadline=None)
@given(st.lists(st.tuples(st.none() | texts, st.none() | texts), max_size=20))
def test_key_hashes_are_those_of_the_index_and_null_where_a_part_is(pairs: list[tuple[str | None, str | None]]) -> None:
    topics, keys = (pa.array([pair[side] for pair in pairs], pa.string()) for side in (0, 1))
    assert key_hashes(topics, keys).to_pylist() == [
        None if topic is None or key is None else index_key_hash(topic, key) for topic, key in pairs
    ]


def test_the_hash_without_an_absolute_value_is_0() -> None:
    topic, key = ["pol", "genelubricants"][0], "x"
    assert key_hashes(pa.array([topic]), pa.array([key])).to_pylist() == [index_key_hash(topic, key)]
    assert tags_codes(pa.array(["polygenelubricants"])).to_pylist() == [-(1 << 31)]


@settings(deadline=None)
@given(st.lists(st.none() | st.binary(max_size=300), max_size=20))
def test_body_crcs_are_zlibs_without_the_highest_bit(bodies: list[bytes | None]) -> None:
    assert body_crcs(pa.array(bodies, pa.binary())).to_pylist() == [
        None if body is None else zlib.crc32(body) & 0x7FFFFFFF for body in bodies
    ]


blocks = st.lists(st.sampled_from([b"a", b"bb", b"\x01", b"\x02", b"TAGS", b"\xff", "é".encode()]), max_size=60).map(
    b"".join
)


@settings(deadline=None)
@given(st.lists(st.none() | blocks | st.binary(max_size=40), max_size=10))
def test_properties_are_those_of_the_plain_decoder(values: list[bytes | None]) -> None:
    found = properties(pa.array(values, pa.binary()))
    found.validate(full=True)
    assert [None if row is None else dict(row) for row in found.to_pylist()] == [
        None if value is None else decode_properties(value) for value in values
    ]


def test_a_block_longer_than_any_records_is_read_whole() -> None:
    block = "".join(f"{number:x}\x01v\x02" for number in range(60_000)).encode()
    (found,) = properties(pa.array([block])).to_pylist()
    assert dict(found) == decode_properties(block)


def test_slices_of_arrays_are_read_from_where_they_begin() -> None:
    array = pa.array(["x", None, "TagA", "TagB", "y"]).slice(1, 3)
    assert tags_codes(array).to_pylist() == [0, 2598919, 2598920]
    assert body_crcs(pa.array([b"a", b"hello", None]).slice(1)).to_pylist() == [907060870, None]
    assert properties(pa.array([b"a\x01b", None, b"c\x01d"]).slice(1)).to_pylist() == [None, [("c", "d")]]


def test_empty_columns_give_empty_columns() -> None:
    assert tags_codes(pa.array([], pa.string())).to_pylist() == []
    assert properties(pa.array([], pa.binary())).to_pylist() == []


def test_compressed_bodies_are_plain_and_damaged_ones_null() -> None:
    stored = [compress(b"sent" * 50, codec) for codec in Compression]
    flags = [codec.sys_flag for codec in Compression]
    bodies = pa.array([*stored, b"plain", None, b"damage", stored[0]], pa.binary())
    plain = plain_bodies(bodies, pa.array([*flags, 0, flags[0], flags[0], None], pa.int32()))
    assert plain.to_pylist() == [*[b"sent" * 50] * len(stored), b"plain", None, None, stored[0]]
    assert plain_bodies(bodies[:0], pa.array([], pa.int32())).to_pylist() == []


def test_bodies_beyond_a_column_of_arrow_are_an_error_that_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Compression.ZLIB
    bodies = pa.array([compress(b"sent" * 50, codec)] * 3, pa.binary())
    monkeypatch.setattr(functions, "_plain_body", lambda body, flag, large=bytes(1 << 30): large)  # noqa: ARG005
    with pytest.raises(OptionError, match=r"rmq_body: 3 .* Set spark.sql.execution.arrow.maxRecordsPerBatch to less"):
        plain_bodies(bodies, pa.array([codec.sys_flag] * 3, pa.int32()))
