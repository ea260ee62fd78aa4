"""One ConsumeQueue: where units stand, what is found, what is removed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_core.store.consumequeue.files import OpenFiles
from rmq_core.store.consumequeue.queue import ConsumeQueue
from rmq_core.store.files.disk import Disk
from rmq_formats.codecs.consumequeue import PRE_BLANK, UNIT, Unit
from rmq_formats.errors import StoreSizeError
from tests.support.oracles.consumequeue import build_consumequeue
from tests.support.stores.store_files import tree

FILE_BYTES = 100  # five units
Maker = Callable[[], ConsumeQueue]


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    open_files = OpenFiles(Disk())
    return lambda: ConsumeQueue("T", 0, str(tmp_path / "0"), FILE_BYTES, open_files)


def unit(number: int) -> bytes:
    return UNIT.pack(1000 + 100 * number, 100, number)


def put(queue: ConsumeQueue, *numbers: int) -> None:
    for number in numbers:
        queue.append(number, unit(number))


def images(queue: ConsumeQueue) -> dict[str, bytes]:
    return tree(Path(queue.files.directory))


def built(*numbers: int) -> dict[str, bytes]:
    units = [(number, Unit(1000 + 100 * number, 100, number)) for number in numbers]
    return {f"{start:020d}": image for start, image in build_consumequeue(units, FILE_BYTES, fills_gaps=True).items()}


@pytest.mark.parametrize("numbers", [(0,), (0, 1, 2, 3, 4), tuple(range(12)), (7, 8), (0, 3), (4, 5, 13), (5,)])
def test_files_are_those_of_the_codec(make: Maker, numbers: tuple[int, ...]) -> None:
    queue = make()
    put(queue, *numbers)
    assert images(queue) == built(*numbers)
    assert queue.max_offset == numbers[-1] + 1


def test_the_first_unit_of_a_cleaned_queue_has_blanks_before_it_that_no_one_reads(make: Maker) -> None:
    queue = make()
    put(queue, 7, 8)
    assert (queue.min_offset, queue.max_offset) == (7, 9)
    assert queue.unit(6) is None
    again = make()
    again.load(None)
    again.correct_min(0)
    assert (again.min_offset, again.max_offset) == (7, 9)


@pytest.mark.parametrize("known", [None, 1800])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 10, 17])
def test_a_queue_comes_back_as_it_was(make: Maker, count: int, known: int | None) -> None:
    queue = make()
    put(queue, *range(count))
    again = make()
    again.load(known)
    assert again.max_offset == (count if known is None else min(count, 8))


def test_units_beyond_what_is_known_are_thrown_away(make: Maker) -> None:
    queue = make()
    put(queue, *range(12))
    again = make()
    again.load(1350)
    assert images(again) == built(0, 1, 2, 3)
    assert again.max_offset == 4


@pytest.mark.parametrize("known", [None, 1 << 40])
def test_a_queue_whose_first_file_is_all_zeros_ends_where_it_begins(make: Maker, known: int | None) -> None:
    """Its messages have expired: a later file has no unit yet, and the earlier ones were deleted."""
    queue = make()
    directory = Path(queue.files.directory)
    directory.mkdir()
    for start in (200, 300):
        (directory / f"{start:020d}").write_bytes(bytes(FILE_BYTES))
    queue.load(known)
    assert queue.max_offset == 10
    put(queue, 10)
    assert images(queue)[f"{200:020d}"] == unit(10) + bytes(FILE_BYTES - 20)


def test_a_scan_ends_at_the_first_unit_that_is_not_written(make: Maker) -> None:
    queue = make()
    put(queue, *range(12))
    queue.files.write(bytes(20), 8 * 20)
    again = make()
    again.load(None)
    assert again.max_offset == 8
    assert images(again) == built(*range(8))


@pytest.mark.parametrize("end", range(13))
def test_a_cut_leaves_what_a_rebuild_would_make(make: Maker, end: int) -> None:
    queue = make()
    put(queue, *range(12))
    queue.trim(end)
    assert queue.max_offset == end
    assert images(queue) == built(*range(end))


def test_a_cut_leaves_no_blank_at_the_end(make: Maker) -> None:
    queue = make()
    put(queue, 0, 1, 7, 8)
    queue.trim(7)
    assert images(queue) == built(0, 1)
    assert queue.max_offset == 2


def test_units_of_damaged_records_become_blanks(make: Maker) -> None:
    queue = make()
    put(queue, *range(8))
    queue.blank(2, 4)
    assert images(queue) == built(0, 1, 4, 5, 6, 7)
    assert queue.next_unit(2).queue_offset == 4  # type: ignore[union-attr]
    queue.blank(6, 8)
    assert images(queue) == built(0, 1, 4, 5)
    assert (queue.max_offset, queue.least_next) == (6, 8), "numbers are not given twice"


def test_what_is_searched_is_found_over_blanks_and_files(make: Maker) -> None:
    queue = make()
    put(queue, 0, 1, 2, 9, 10, 11, 16)
    for physical, expected in [(0, 0), (1000, 0), (1001, 1), (1200, 2), (1201, 9), (1900, 9), (2600, 16), (2601, 17)]:
        assert queue.find_physical(physical) == expected


@pytest.mark.parametrize(("log_min", "expected", "files"), [(0, 0, 3), (1100, 1, 3), (1500, 5, 2), (2150, 12, 1)])
def test_the_minimum_follows_the_log(make: Maker, log_min: int, expected: int, files: int) -> None:
    queue = make()
    put(queue, *range(12))
    queue.expire_files(log_min)
    queue.correct_min(log_min)
    assert (queue.min_offset, len(queue.files.files)) == (expected, files)
    again = make()
    again.load(None)
    again.correct_min(log_min)
    assert (again.min_offset, again.max_offset) == (expected, 12)


@pytest.mark.parametrize(("log_min", "first"), [(1000, 0), (1100, 1), (1101, 6)])
def test_a_file_that_ends_in_blanks_stays_while_a_message_of_it_is_there(make: Maker, log_min: int, first: int) -> None:
    """A hole in the log takes the units of its records; the original takes a blank for a message at offset 0."""
    queue = make()
    put(queue, 0, 1, 6)
    assert queue.expire_files(log_min) == (first == 6)
    queue.correct_min(log_min)
    assert (queue.min_offset, queue.max_offset) == (first, 7)


def test_the_last_file_stays_for_its_number(make: Maker) -> None:
    queue = make()
    put(queue, *range(10))
    assert queue.expire_files(1 << 40) == 1
    queue.correct_min(1 << 40)
    assert (queue.min_offset, queue.max_offset) == (10, 10)
    put(queue, 10)
    assert queue.min_offset == 10


def test_a_file_of_another_size_is_an_error_that_names_it(make: Maker) -> None:
    queue = make()
    put(queue, 0)
    Path(queue.files.files[0].path).write_bytes(bytes(120))
    with pytest.raises(StoreSizeError, match="00000000000000000000: has 120 bytes"):
        make().load(None)


def test_an_empty_file_and_those_behind_it_do_not_count(make: Maker) -> None:
    queue = make()
    put(queue, *range(12))
    Path(queue.files.files[1].path).write_bytes(b"")
    again = make()
    again.load(None)
    assert again.max_offset == 5
    assert again.is_whole


def test_a_queue_with_a_file_missing_says_so(make: Maker) -> None:
    queue = make()
    put(queue, *range(12))
    Path(queue.files.files[1].path).unlink()
    again = make()
    again.load(None)
    assert not again.is_whole


def test_stray_files_are_passed_over(make: Maker) -> None:
    queue = make()
    put(queue, 0)
    directory = Path(queue.files.directory)
    (directory / "notes.txt").write_text("mine")
    (directory / "00000000000000000100.bak").write_bytes(b"x")
    (directory / "sub").mkdir()
    again = make()
    again.load(None)
    assert again.max_offset == 1


def test_many_queues_share_few_descriptors(tmp_path: Path) -> None:
    open_files = OpenFiles(Disk())
    open_files.limit = 3
    queues = [ConsumeQueue("T", number, str(tmp_path / str(number)), FILE_BYTES, open_files) for number in range(10)]
    for round_number in range(4):
        for queue in queues:
            put(queue, round_number)
    assert sum(queue.files.files[0].descriptor >= 0 for queue in queues) <= 3
    for queue in queues:
        assert images(queue) == built(0, 1, 2, 3)
    open_files.close_all()


assert len(PRE_BLANK) == 20
