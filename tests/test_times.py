"""Times in milliseconds."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rmq_cli.admin.options import time_ms
from rmq_cli.arguments import parse_time
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


def test_a_day_without_hyphens_is_the_same_day_wherever_times_are_given() -> None:
    day = datetime(2026, 1, 1)
    assert parse_time("20260101") == day
    assert timestamp_ms("20260101") == timestamp_ms(" 20260101 ") == time_ms("-s", "20260101") == NEW_YEAR_MS
    with pytest.raises(ValueError, match="expected milliseconds, or a time as"):
        timestamp_ms("20261301")


@pytest.mark.parametrize("digits", [20_260_101, 20_260_101_120_000])
def test_a_number_that_is_a_date_s_digits_is_refused(tmp_path: Path, digits: int) -> None:
    write(tmp_path, plain(2))
    with pytest.raises(OptionError, match=f"time: expected milliseconds since 1970, and {digits} is a date"):
        list(Store(str(tmp_path)).messages(from_time=digits))


def test_a_number_that_is_no_milliseconds_is_refused_on_the_command_line() -> None:
    for digits, kind in [("20260101120000", "a date"), ("1700000000000000", "microseconds")]:
        with pytest.raises(OptionError, match=f"--time {digits}: expected milliseconds .* is {kind}"):
            parse_time(digits)
        with pytest.raises(OptionError, match=f"-s {digits}: expected milliseconds .* is {kind}"):
            time_ms("-s", digits)
        with pytest.raises(ValueError, match=f"{digits} is {kind}"):
            timestamp_ms(digits)
