import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.errors import LengthError, TruncatedError
from tests.support.stores.record_strategies import int64


@given(int64, int64, int64, int64, int64)
def test_a_checkpoint_comes_back(physic: int, logics: int, index: int, flushed: int, confirm: int) -> None:
    checkpoint = Checkpoint(physic, logics, index, flushed, confirm)
    data = checkpoint.encode()
    assert len(data) == 4096
    assert data[40:] == bytes(4056)
    assert Checkpoint.decode(data) == Checkpoint.decode(data[:40]) == checkpoint


def test_the_fields_stand_in_the_order_of_java() -> None:
    assert Checkpoint(1, 2, 3, 4, 5).encode()[:40].hex() == "".join(f"{number:016x}" for number in range(1, 6))


@given(st.integers(0, 39))
def test_a_cut_checkpoint_is_truncated(size: int) -> None:
    with pytest.raises(TruncatedError):
        Checkpoint.decode(bytes(size))


def test_a_missing_file_counts_as_zeros() -> None:
    assert Checkpoint.decode(bytes(4096)) == Checkpoint()
    assert Checkpoint().min_timestamp_ms == 0


def test_recovery_begins_three_seconds_early() -> None:
    assert Checkpoint(10_000, 20_000, 8_000).min_timestamp_ms == 7_000
    assert Checkpoint(20_000, 10_000, 5_000).min_timestamp_ms == 7_000
    assert Checkpoint(2_999, 9_000).min_timestamp_ms == 0


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(LengthError):
        Checkpoint(1 << 63).encode()
