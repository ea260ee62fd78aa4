"""IndexFiles out of columns against the codec."""

from itertools import pairwise

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmq_formats.codecs.index import IndexBound, entry_position
from rmq_formats.codecs.layout import index_file_bytes
from rmq_formats.scan.derived_images import IndexBuilder
from tests.support.oracles.index import build_index

hashes = st.one_of(st.integers(0, 10), st.integers(0, (1 << 31) - 1))
times = st.one_of(st.integers(0, 20_000), st.integers(1_700_000_000_000, 1_700_000_009_999), st.just(1 << 60))
keys = st.tuples(hashes, st.integers(0, 1 << 62), times)


def built(entries: list[tuple[int, int, int]], slots: int, per_file: int, pieces: list[int]) -> list[bytes]:
    """The files, each appended to in pieces."""
    images = []
    previous_end = None
    for begin in range(0, len(entries), per_file - 1):
        own = entries[begin : begin + per_file - 1]
        builder, body = IndexBuilder(slots, previous_end), b""
        bounds = [0, *sorted(piece % (len(own) + 1) for piece in pieces), len(own)]
        for first, last in pairwise(bounds):
            columns = [np.array([key[column] for key in own[first:last]], dtype=np.int64) for column in range(3)]
            for column in columns:
                column.flags.writeable = False  # as those out of an Arrow file
            narrow = columns[0].astype(np.int32)
            narrow.flags.writeable = False
            body += builder.append(narrow, columns[1], columns[2]).tobytes()
        head = builder.head()
        assert len(head) + 20 == entry_position(1, slots)
        images.append((head + bytes(20) + body).ljust(index_file_bytes(slots, per_file), b"\0"))
        previous_end = IndexBound(own[-1][2], own[-1][1])
    return images


@settings(deadline=None)
@given(
    st.lists(keys, max_size=60),
    st.sampled_from([1, 2, 7, 50]),
    st.sampled_from([2, 3, 10, 100]),
    st.lists(st.integers(0, 60), max_size=3),
)
@example([(1, 5, 0), (1, 6, 0), (1, 7, 999), (1, 8, 5000)], 1, 3, [])
@example([(1, 5, 9000), (1, 6, 1000), (1, 7, 1 << 60)], 1, 10, [])
def test_files_are_those_of_the_codec(
    entries: list[tuple[int, int, int]], slots: int, per_file: int, pieces: list[int]
) -> None:
    assert built(entries, slots, per_file, pieces) == build_index(entries, slots, per_file)


def test_a_long_file_is_that_of_the_codec() -> None:
    random = np.random.default_rng(3)
    found = random.integers(0, 1 << 31, (5000, 3)).tolist()
    entries = [(key_hash, offset, 1_700_000_000_000 + time // 1000) for key_hash, offset, time in found]
    assert built(entries, 997, 2001, [5, 1000]) == build_index(entries, 997, 2001)
