"""Times in milliseconds."""

from pathlib import Path

import pytest

from rmq_cli.admin.options import time_ms
from rmq_formats import Store
from rmq_formats.errors import OptionError
from rmq_formats.times import check_milliseconds
from tests.lakehouse.small_stores import plain, write


@pytest.mark.parametrize("value", [-1, 0, 999_999_999, 10_000_000_000, 1_700_000_000_000])
def test_milliseconds_are_taken(value: int) -> None:
    assert check_milliseconds(value) == value


def test_seconds_are_refused_wherever_times_are_given(tmp_path: Path) -> None:
    write(tmp_path, plain(2))
    with pytest.raises(OptionError, match=r"^-s 1700000000: expected milliseconds .* is seconds: 1700000000000$"):
        time_ms("-s", "1700000000")
    with pytest.raises(OptionError, match="time: expected milliseconds"):
        list(Store(str(tmp_path)).messages(from_time=1_700_000_000))


def test_microseconds_are_told_from_milliseconds() -> None:
    with pytest.raises(ValueError, match=r"1700000000000000 is microseconds: 1700000000000$"):
        check_milliseconds(1_700_000_000_000_000)
