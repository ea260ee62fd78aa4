"""Which half messages are ended, and which notes are needed again."""

from hypothesis import given
from hypothesis import strategies as st

from rmq_core.broker.transaction.check import EndedHalfMessages, half_offsets

NOTES = st.lists(st.lists(st.integers(0, 30), max_size=5), max_size=8)


@given(first=st.integers(0, 10), notes=NOTES, taken=st.lists(st.integers(0, 30), unique=True))
def test_a_note_is_needed_until_all_half_messages_to_come_are_done(
    first: int, notes: list[list[int]], taken: list[int]
) -> None:
    """Against the rule in plain words: the last note that names a half message counts."""
    ended = EndedHalfMessages(100, first)
    for number, offsets in enumerate(notes):
        ended.add(100 + number, offsets)
    known = {offset for offsets in notes for offset in offsets}
    assert [ended.remove(offset) for offset in taken] == [offset in known for offset in taken]
    assert not any(ended.remove(offset) for offset in taken)
    last = {offset: 100 + number for number, offsets in enumerate(notes) for offset in offsets}
    still = [note for offset, note in last.items() if offset >= first and offset not in taken]
    assert ended.done_op_offset == min(still, default=100 + len(notes))


def test_what_is_no_number_in_a_note_is_left_out() -> None:
    assert half_offsets(b"0,17,,x,-3,1e3,99999999999999999999,8,") == [0, 17, 8]
    assert half_offsets(b"") == []
