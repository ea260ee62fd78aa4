import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.codecs.java_properties import format_properties, parse_properties
from rmq_formats.errors import DecodeError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b c \n", {"a": "b c "}),
        ("a:b\nc d\ne", {"a": "b", "c": "d", "e": ""}),
        ("# comment\n! another\n\n  \n a=b", {"a": "b"}),
        ("a=b\\\n   c\nd=e", {"a": "bc", "d": "e"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\n# no comment", {"a": "b# no comment"}),
        (r"a\=b\:c\ d=e\tf\u4e2d\n", {"a=b:c d": "e\tf中\n"}),
        ("a=1\na=2", {"a": "2"}),
        ("a==b", {"a": "=b"}),
        ("=b", {"": "b"}),
        ("a=b\r\nc=d\re=f", {"a": "b", "c": "d", "e": "f"}),
        ("messageDelayLevel=1s 5s 10s", {"messageDelayLevel": "1s 5s 10s"}),
        ("a=b\\", {"a": "b"}),
        (r"a=\z\"", {"a": 'z"'}),
        ("", {}),
    ],
)
def test_texts_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_a_broken_escape_is_refused() -> None:
    with pytest.raises(DecodeError):
        parse_properties(r"a=\u12g4")


@given(st.text(max_size=60))
def test_any_text_gives_properties_or_a_typed_error(text: str) -> None:
    try:
        parse_properties(text)
    except DecodeError:
        return


@given(st.dictionaries(st.from_regex(r"[a-zA-Z]{1,9}", fullmatch=True), st.from_regex(r"[\w.;/]{0,9}", fullmatch=True)))
def test_what_is_written_is_read_again(values: dict[str, str]) -> None:
    assert parse_properties(format_properties(values)) == values


def test_properties_are_written_sorted() -> None:
    assert format_properties({"b": "2", "a": "1"}) == "a=1\nb=2\n"


def test_a_line_that_goes_on_for_ever_costs_no_more_than_its_bytes() -> None:
    assert parse_properties("a\\\n" * (1 << 20)) == {"a" * (1 << 20): ""}
