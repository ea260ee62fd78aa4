"""Receipt handles of POP."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.remoting.pop import PopHandle, TopicKind

numbers = st.integers(0, (1 << 63) - 1)
names = st.text(st.characters(exclude_characters=" "))
kinds = st.sampled_from(TopicKind)
handles = st.builds(PopHandle, numbers, numbers, numbers, numbers, kinds, names, numbers, numbers)


@given(handles, st.sampled_from(["", " 4711", " 0 4711", " "]))
def test_what_is_written_is_read_and_what_proxies_put_behind_is_passed_over(handle: PopHandle, behind: str) -> None:
    assert PopHandle.decode(handle.encode() + behind) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1 2 3 4 0 b 0",
        "1 2 3 4 0 b 0 x",
        "1 2 3 4 9 b 0 0",
        "-1 2 3 4 0 b 0 0",
        "+1 2 3 4 0 b 0 0",
        "1 2 3 4 0 b 0 0x",
        "1 2 3 4 0 b 0 0\n",
        "1 2 3 4 0 b 0 ٣",
        " 1 2 3 4 0 b 0 0",
        "1  2 3 4 0 b 0 0",
        "9223372036854775808 2 3 4 0 b 0 0",
        "00000000000000000001 2 3 4 0 b 0 0",
        "1 2 3 4 0 " + "b" * 1024 + " 0 0",
    ],
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Parse failed|TopicKind"):
        PopHandle.decode(text)
