"""The verification's kernels against plain Python."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.consumequeue_ext import ExtUnit
from rmq_formats.codecs.index import IndexEntry, entry_position
from rmq_formats.codecs.layout import FLAG_COMPRESSED, INDEX_HEADER_BYTES
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.kernels import verify as kernel
from tests.kernels.guarded_memory import guarded
from tests.support.oracles.index import build_index


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8).copy()


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def parses(block: bytes) -> bool:
    """Each entry, the last of them with or without its end, has a name and a separator."""
    entries = block.split(b"\x02")
    if entries[-1] == b"":
        entries.pop()
    return is_utf8(block) and all(b"\x01" in entry[1:] and entry[0] != 1 for entry in entries)


TEXTS = st.one_of(
    st.binary(max_size=80), st.text(max_size=40).map(str.encode), st.text("abé😀", max_size=60).map(str.encode)
)
ENTRIES = st.lists(st.binary(max_size=40) | st.sampled_from([b"a\x01b", b"k\x01", b"", b"\x01v"]), max_size=12)


@given(TEXTS)
@example(b"\xef\xbf\xbd")
@example(b"\xed\xa0\x80")
@example(b"\xf0\x90\x80")
@example(b"12345678\xc3")
def test_utf8_is_what_python_takes_for_it(data: bytes) -> None:
    with guarded(data) as array:
        assert kernel.is_utf8(array, 0, len(array)) == is_utf8(data)


@given(ENTRIES, st.booleans(), st.integers(0, 70))
def test_properties_parse_as_they_split(entries: list[bytes], ended: bool, behind: int) -> None:
    block = b"\x02".join(entries) + (b"\x02" if ended else b"")
    with guarded(block + b"\x02" * behind) as array:
        assert kernel.are_properties(array, 0, len(block)) == parses(block)


@pytest.mark.parametrize(
    ("topic", "plain"),
    [
        (b"Orders", True),
        (b"%RETRY%a-b_1", True),
        (b".", False),
        (b"..", False),
        (b"...", True),
        (b"", False),
        (b"a/b", False),
        (b"a b", False),
        (b"\xc3\xa9", False),
        (b"a\n", False),
        (b"a\x7f", False),
    ],
)
def test_plain_topics_need_no_second_look(topic: bytes, plain: bool) -> None:
    with guarded(topic) as array:
        assert kernel.is_plain_topic(array, 0, len(topic)) == plain


@pytest.mark.parametrize(
    ("kind", "body", "fits"),
    [
        (0x000, b"\x78\x9c", True),
        (0x300, b"\x78\x5e", True),
        (0x300, b"\x78\x5f", False),
        (0x300, b"\x78", False),
        (0x000, b"\x1f\x8b\x08", True),
        (0x000, b"\x1f\x8c", False),
        (0x100, b"\x1f\x8b\x08\x00", False),
        (0x100, b"\x04\x22\x4d\x18", True),
        (0x100, b"\x04\x22\x4d", False),
        (0x200, b"\x28\xb5\x2f\xfd!", True),
        (0x200, b"hello", False),
        (0x400, b"\x78\x9c", False),
        (0x700, b"\x78\x9c", False),
    ],
)
def test_a_compressed_body_begins_as_its_codec_does(kind: int, body: bytes, fits: bool) -> None:
    with guarded(body) as array:
        assert kernel.has_declared_compression(array, kind | FLAG_COMPRESSED, 0, len(body)) == fits
        assert kernel.has_declared_compression(array, 0, 0, len(body))
        assert kernel.has_declared_compression(array, kind, 0, len(body)) == (kind == 0)


@given(st.lists(st.tuples(*[st.integers(0, 1 << 40)] * 3), max_size=20), st.integers(0, 25))
def test_units_are_equal_up_to_the_first_that_is_not(rows: list[tuple[int, int, int]], changed: int) -> None:
    rows = [(offset, size % (1 << 31), tags) for offset, size, tags in rows]
    table = np.array([(n, *row, 0) for n, row in enumerate(rows)], dtype=np.int64).reshape(-1, unit_kernel.ROW_COLUMNS)
    data = bytearray(b"".join(Unit(*row).encode() for row in rows))
    if changed < len(rows):
        data[changed * 20 + changed % 20] ^= 1
    with guarded(bytes(data)) as array:
        assert kernel.equal_units(table, array) == min(changed, len(rows))


@given(
    st.lists(
        st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 1 << 50), st.binary(max_size=8)), max_size=9
    )
)
def test_ext_units_are_walked_up_to_the_first_place_without_one(units: list[tuple[int, int, bytes]]) -> None:
    images = [ExtUnit(*unit).encode() for unit in units]
    data = b"".join(images)
    for tail in (b"", b"\xff\xff", bytes(30), b"\x00\x14" + bytes(16) + b"\x00\x01", b"\x00\x15" + bytes(40)):
        table, result = np.zeros((len(data + tail) // 20 + 1, 3), dtype=np.int64), np.zeros(2, dtype=np.int64)
        with guarded(data + tail) as array:
            kernel.walk_ext(array, 0, table, result)
        assert result.tolist() == [len(units), len(data)]
        starts = np.cumsum([0, *map(len, images)])[: len(units)].tolist()
        assert table[: len(units)].tolist() == [[at, unit[0], unit[1]] for at, unit in zip(starts, units, strict=True)]


KEYS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 50)), min_size=1, max_size=60)


@given(KEYS, st.integers(0, 80))
def test_entries_and_slots_match_what_the_codec_builds(steps: list[tuple[int, int]], changed: int) -> None:
    slots, keys, at, ms = 7, [], 0, 1000
    for key_hash, step in steps:
        at, ms = at + step, ms + 100 * step
        keys.append((key_hash, at, ms))
    image = bytearray(build_index(keys, slots, len(keys) + 1)[0])
    first, second = entry_position(1, slots), entry_position(2, slots)
    hashes = np.array([key[0] for key in keys], dtype=np.int32)
    offsets, times = (np.array([key[column] for key in keys], dtype=np.int64) for column in (1, 2))
    table, faults = np.zeros(slots, dtype=np.int32), np.zeros((100, 4), dtype=np.int64)
    state, found = np.zeros(kernel.STATE_COLUMNS, dtype=np.int64), np.zeros(slots, dtype=np.int64)

    def walk() -> int:
        table[:], state[:] = 0, 0
        done = kernel.match_entries(
            as_array(image[first:second]), 1, hashes[:1], offsets[:1], times[:1], 0, table, faults, state
        )
        rest = as_array(image[second:])
        return done + kernel.match_entries(
            rest, 2, hashes[1:], offsets[1:], times[1:], int(times[0]), table, faults, state
        )

    assert walk() == len(keys)
    assert state.tolist() == [0, len(set(hashes % slots))]
    assert kernel.compare_slots(as_array(image[INDEX_HEADER_BYTES:first]), table, found) == 0
    if 1 < changed <= len(keys):
        where = entry_position(changed, slots)
        item = IndexEntry.decode(image, where)
        image[where + 15] ^= 1
        image[where + 19] ^= 1
        assert walk() == len(keys)
        assert faults[: state[kernel.STATE_FAULTS]].tolist() == [
            [changed, kernel.FAULT_SECONDS, item.seconds, item.seconds ^ 1],
            [changed, kernel.FAULT_PREVIOUS, item.previous, item.previous ^ 1],
        ]
        image[where + 3] ^= 1
        assert walk() == changed - 1
