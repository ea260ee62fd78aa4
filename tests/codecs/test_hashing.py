import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.codecs.hashing import index_key_hash, java_string_hash, tags_code

JAVA_HASHES = {
    "": 0,
    "a": 97,
    "*": 42,
    "hello": 99162322,
    "TagA": 2598919,
    "TagB": 2598920,
    "TagT": 2598938,
    "AaAa": 2031744,
    "BBBB": 2031744,
    "中文": 646394,
    "😀": 1772899,
    "TAG_😀": -1826110392,
    "TopicTest#Order": 178599532,
    "TopicTest#key1": -1655984460,
    "TopicTest#key2": -1655984459,
    "polygenelubricants": -2147483648,
    "DESIGNING WORKHOUSES": -2147483648,
    "TopicTest#DESIGNING WORKHOUSES": 88816898,
}


@pytest.mark.parametrize(("text", "expected"), JAVA_HASHES.items())
def test_hashes_are_those_of_java(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [
        ("TopicTest", "Order", 178599532),
        ("TopicTest", "key1", 1655984460),
        ("TopicTest", "key2", 1655984459),
        ("TopicTest", "DESIGNING WORKHOUSES", 88816898),
    ],
)
def test_an_index_hash_is_the_absolute_value_over_topic_and_key(topic: str, key: str, expected: int) -> None:
    assert index_key_hash(topic, key) == expected


def test_an_index_hash_is_zero_where_java_has_no_absolute_value() -> None:
    # Made for it: the sum over "a#KZ]JIWL" is Integer.MIN_VALUE.
    assert java_string_hash("a#KZ]JIWL") == -(1 << 31)
    assert index_key_hash("a", "KZ]JIWL") == 0


@pytest.mark.parametrize("tags", [None, ""])
def test_no_tags_have_code_zero(tags: str | None) -> None:
    assert tags_code(tags) == 0


def test_a_tags_code_keeps_its_sign() -> None:
    assert tags_code("TAG_😀") == -1826110392
    assert tags_code("TAG_😀").to_bytes(8, "big", signed=True).hex() == "ffffffff9327c448"


def test_a_lone_surrogate_counts_as_itself() -> None:
    assert java_string_hash("\ud83d") == 0xD83D


@given(st.text(st.characters()))
def test_a_hash_fits_into_an_int_and_follows_the_recurrence(text: str) -> None:
    expected = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        expected = 31 * expected + int.from_bytes(units[at : at + 2], "big")
    assert java_string_hash(text) % (1 << 32) == expected % (1 << 32)
    assert -(1 << 31) <= java_string_hash(text) < 1 << 31
    assert 0 <= index_key_hash("t", text) < 1 << 31
