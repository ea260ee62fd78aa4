"""Times in milliseconds."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rmq_cli.admin.options import time_ms
from rmq_formats import Store
from rmq_formats.errors import OptionError
from rmq_formats.spark.options.values import timestamp_ms
from rmq_formats.times import check_milliseconds
from tests.lakehouse.small_stores import plain, write
from tests.support.stores.record_strategies import plain_message
from tests.support.stores.store_files import write_commitlog

NEW_YEAR_MS = 1_767_225_600_000


@pytest.mark.parametrize("value", [-1, 0, 999_999_999, 10_000_000_000, 1_700_000_000_000])
def test_milliseconds_are_taken(value: int) -> None:
    assert check_milliseconds(value) == value


def test_seconds_are_refused_wherever_times_are_given(tmp_path: Path) -> None:
    write(tmp_path, plain(2))
    with pytest.raises(OptionError, match=r"^-s 1700000000: expected milliseconds .* is seconds: 1700000000000$"):
        time_ms("-s", "1700000000")
    with pytest.raises(OptionError, match="time: expected milliseconds"):
        list(Store(str(tmp_path)).messages(from_time=1_700_000_000))


@pytest.mark.parametrize(("finer", "first", "end"), [(400, [1], [0]), (0, [0, 1], [])])
def test_a_bound_between_two_milliseconds_is_met_exactly(
    tmp_path: Path, finer: int, first: list[int], end: list[int]
) -> None:
    write_commitlog(tmp_path, [plain_message(), plain_message()], 4096, first_store_timestamp_ms=NEW_YEAR_MS)
    bound = datetime(2026, 1, 1, 0, 0, 0, finer, UTC)
    store = Store(tmp_path)
    assert [message.queue_offset for message in store.messages(from_time=bound)] == first
    assert [message.queue_offset for message in store.messages(to_time=bound)] == end
    assert timestamp_ms(bound.isoformat()) == timestamp_ms(f"{bound:%Y-%m-%dT%H:%M:%S.%f}") == NEW_YEAR_MS + len(end)


def test_microseconds_are_told_from_milliseconds() -> None:
    with pytest.raises(ValueError, match=r"1700000000000000 is microseconds: 1700000000000$"):
        check_milliseconds(1_700_000_000_000_000)
