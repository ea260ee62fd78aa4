"""The frames: real bytes, and in any pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.ha.frames import Pushes, ReplicationError, Reports, encode_push, encode_report

# As a Java master and its slave exchange them: section 9 of the facts, "0/13073, 13073/0".
JAVA_HEAD = bytes.fromhex("0000000000000000" + "00003311")
JAVA_HEARTBEAT = bytes.fromhex("0000000000003311" + "00000000")
JAVA_REPORT = bytes.fromhex("0000000000003311")


def test_frames_are_the_originals() -> None:
    assert encode_push(0, 13073) == JAVA_HEAD
    assert encode_push(13073, 0) == JAVA_HEARTBEAT
    assert encode_report(13073) == JAVA_REPORT


@given(st.lists(st.binary(max_size=50), max_size=8), st.data())
def test_pushes_are_read_in_any_pieces(stretches: list[bytes], data: st.DataObject) -> None:
    at, wire = 0, b""
    for stretch in stretches:
        wire += encode_push(at, len(stretch)) + stretch
        at += len(stretch)
    pushes, log = Pushes(), b""
    while wire:
        taken = data.draw(st.integers(1, len(wire)))
        for offset, piece in pushes.feed(wire[:taken]):
            assert offset == len(log)
            log += piece
        wire = wire[taken:]
    assert log == b"".join(stretches)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=8), st.integers(1, 20))
def test_reports_are_read_in_any_pieces(offsets: list[int], step: int) -> None:
    wire = b"".join(map(encode_report, offsets))
    reports = Reports()
    found = [offset for at in range(0, len(wire), step) for offset in reports.feed(wire[at : at + step])]
    assert found == offsets


@pytest.mark.parametrize("head", [encode_push(0, -1), encode_push(-1, 1)])
def test_impossible_stretches_are_refused(head: bytes) -> None:
    with pytest.raises(ReplicationError, match="pushed"):
        list(Pushes().feed(head))
