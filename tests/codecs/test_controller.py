"""Text files of the controller mode: real ones, and what the original does not take either."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.codecs.controller import BrokerIdentity, Epoch, decode_epochs, decode_identity, encode_epochs
from rmq_formats.errors import ChecksumError, DecodeError

EPOCHS = (Epoch(1, 0), Epoch(5, 93229))


def test_a_broker_s_epochs_come_back_to_the_byte(golden: Callable[[str], Path]) -> None:
    text = (golden("controller") / "store" / "epochFileCheckpoint").read_text()
    assert decode_epochs(text) == EPOCHS
    assert encode_epochs(EPOCHS) == text


@given(st.lists(st.builds(Epoch, st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 63) - 1)), max_size=20))
def test_epochs_come_back(epochs: list[Epoch]) -> None:
    assert decode_epochs(encode_epochs(tuple(epochs))) == tuple(epochs)


@pytest.mark.parametrize("end", range(25))
def test_a_file_that_is_cut_is_refused_but_for_its_last_newline(end: int) -> None:
    text = encode_epochs(EPOCHS)[:end]
    if end == 24:
        assert decode_epochs(text) == EPOCHS
        return
    with pytest.raises((DecodeError, ChecksumError)):
        decode_epochs(text)


def test_a_checksum_of_zero_is_not_checked() -> None:
    assert decode_epochs("1\n0\n7-12\n") == (Epoch(7, 12),)


def test_lines_without_one_dash_are_passed_over() -> None:
    assert decode_epochs("1\n0\nnote\n7-12\n1-2-3\n-\n") == (Epoch(7, 12),)


@pytest.mark.parametrize(
    "text", ["", "1", "x\n0\n", "1\n0\n", "1\n0\n7-x\n", "1\n0\n2147483648-0\n", "1\n0\n1-" + "9" * 19]
)
def test_what_is_no_such_file_is_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        decode_epochs(text)


def test_a_broker_s_identity(golden: Callable[[str], Path]) -> None:
    text = (golden("controller") / "store" / "brokerIdentity").read_text()
    assert decode_identity(text) == BrokerIdentity("GoldenCluster", "golden-a", 1)


@pytest.mark.parametrize("text", ["", "a", "a#b", "#b#1", "a##1", "a#b#", "a#b#x", "a#b#1\n"])
def test_what_is_no_identity_is_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        decode_identity(text)
