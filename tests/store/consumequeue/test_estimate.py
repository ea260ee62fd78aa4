"""How many messages a filter lets through, estimated from a queue: exact if they are few, else by the first ones."""

from collections.abc import Set
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.store.consumequeue.ext import MayMatchUnit, QueueExt
from rmq_core.store.consumequeue.files import OpenFiles
from rmq_core.store.consumequeue.queue import MAX_MATCHES, MAX_SCANNED_UNITS, ConsumeQueue, estimate_count
from rmq_core.store.files.disk import Disk
from rmq_formats.codecs.consumequeue import UNIT
from rmq_formats.codecs.consumequeue_ext import ExtUnit

FILE_UNITS = 7000


def oracle(queue: ConsumeQueue, begin: int, end: int, wanted: Set[int] | None, may: MayMatchUnit | None) -> int:
    """As ``DefaultMessageStore`` and ``ConsumeQueue#estimateMessageCount`` do, unit by unit."""
    begin = max(0, begin)
    if begin >= end:
        return 0
    count = end - begin
    begin = max(begin, queue.min_offset)
    raw = match = 0
    while begin + raw < min(begin + count, queue.max_offset):
        for _, _, told in UNIT.iter_unpack(queue.read(begin + raw, count - raw)):
            unit = None if queue.ext is None else queue.ext.at(told)
            code = told if unit is None else unit.tags_code
            passes = wanted is None or (code + (1 << 31)) % (1 << 32) - (1 << 31) in wanted
            match += passes and (may is None or unit is None or may(unit.store_timestamp_ms, unit.bit_map))
            raw += 1
            if raw >= 20_000 or match > 5000:
                return int(match * count * 1.0 / raw)
    return match


def queue_of(directory: Path, tags_codes: list[int], ext: QueueExt | None = None) -> ConsumeQueue:
    queue = ConsumeQueue("T", 0, str(directory / "0"), FILE_UNITS * 20, OpenFiles(Disk()), ext)
    queue.append(0, b"".join(UNIT.pack(100 * number, 100, code) for number, code in enumerate(tags_codes)))
    return queue


@pytest.fixture(scope="module")
def long_queue(tmp_path_factory: pytest.TempPathFactory) -> ConsumeQueue:
    """Of 45,000 messages: of tags 1, seldom, 2, often, and -3, in the second half; and of delivery times."""
    random = np.random.default_rng(7)
    first = random.choice([1, 2, 2, 2, 5 << 32 | 2], 22_500)
    second = random.choice([1, 2, -3, -3], 22_500)
    return queue_of(tmp_path_factory.mktemp("queue"), [int(one) for one in np.concatenate([first, second])])


@settings(max_examples=40)
@given(
    begin=st.integers(-2, 45_010),
    length=st.one_of(st.integers(-1, 100), st.integers(0, 60_000)),
    wanted=st.sets(st.sampled_from([1, 2, -3, 9])),
    low=st.sampled_from([0, 0, 10, 30_000]),
)
def test_it_is_what_the_original_estimates(
    long_queue: ConsumeQueue, begin: int, length: int, wanted: set[int], low: int
) -> None:
    long_queue.min_offset = low
    assert estimate_count(long_queue, begin, begin + length, wanted, None) == oracle(
        long_queue, begin, begin + length, wanted, None
    )


def test_a_stretch_of_few_is_exact_and_one_of_many_goes_by_its_begin(tmp_path: Path) -> None:
    queue = queue_of(tmp_path, [1] * MAX_MATCHES + [2] * MAX_SCANNED_UNITS)
    assert estimate_count(queue, 0, 15_000, {1}, None) == MAX_MATCHES
    assert estimate_count(queue, 0, MAX_SCANNED_UNITS, {2}, None) == 20_000 * 5001 // 10_001
    assert estimate_count(queue, 0, 25_000, {1}, None) == 25_000 * 5000 // 20_000
    assert estimate_count(queue, 5000, 25_000, {1}, None) == 0


def test_what_consume_queue_ext_has_is_asked(tmp_path: Path) -> None:
    ext = QueueExt(str(tmp_path / "ext"), 4096, OpenFiles(Disk()))
    units = [ExtUnit(number % 2, 1000 + number, bytes([number % 3])) for number in range(60)]
    queue = queue_of(tmp_path, [*ext.append(units), 1, 1], ext)

    def may_match(store_timestamp_ms: int, bit_map: bytes) -> bool:
        return store_timestamp_ms < 1003 or bit_map == b"\x01"

    for wanted, may in [({1}, None), (None, may_match), ({0}, may_match), (None, None)]:
        assert estimate_count(queue, 0, 62, wanted, may) == oracle(queue, 0, 62, wanted, may)
    assert estimate_count(queue, 0, 62, None, may_match) == 2 + 20 + 2
