import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.codecs.properties import decode_properties, encode_properties, parse_decimal, split_keys
from tests.support.stores.record_strategies import properties


def test_the_vector_of_java_decodes_as_in_java() -> None:
    assert decode_properties(b"a\x01\x02b\x011\x02c\x012") == {"b": "1", "c": "2"}


def test_each_property_ends_with_a_separator_in_order_of_the_mapping() -> None:
    assert encode_properties({"TAGS": "TagA", "KEYS": "k1 k2"}) == b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02"
    assert encode_properties({}) == b""


def test_later_duplicates_win() -> None:
    assert decode_properties(b"UNIQ_KEY\x01own\x02UNIQ_KEY\x01batch\x02") == {"UNIQ_KEY": "batch"}


def test_an_entry_without_value_does_not_undo_an_earlier_one() -> None:
    assert decode_properties(b"a\x011\x02a\x01\x02") == {"a": "1"}


def test_entries_without_name_value_or_separator_vanish() -> None:
    assert decode_properties(b"\x01v\x02\x02\x01\x02name\x02n\x01\x02\x02ok\x01v\x02") == {"ok": "v"}


def test_an_entry_without_separator_does_not_take_that_of_the_next() -> None:
    assert decode_properties(b"alone\x02b\x012\x02") == {"b": "2"}


def test_a_value_may_hold_the_inner_separator() -> None:
    assert decode_properties(b"a\x01b\x01c\x02") == {"a": "b\x01c"}


def test_the_last_entry_may_lack_its_separator() -> None:
    assert decode_properties(b"a\x01b\x02c\x01d") == {"a": "b", "c": "d"}


def test_bytes_that_are_not_utf8_are_replaced() -> None:
    assert decode_properties(b"a\x01x\xff\x02b\x01\xe4\x02") == {"a": "x\ufffd", "b": "\ufffd"}


def test_a_lone_surrogate_is_written_as_a_question_mark() -> None:
    assert encode_properties({"a": "x\ud800"}) == b"a\x01x?\x02"


def test_keys_are_split_at_spaces_and_empty_ones_left_out() -> None:
    assert split_keys("key1 key2") == ["key1", "key2"]
    assert split_keys("  a   b\tc ") == ["a", "b\tc"]
    assert split_keys("") == split_keys("   ") == []


@given(properties)
def test_properties_come_back_as_they_were(values: dict[str, str]) -> None:
    assert decode_properties(encode_properties(values)) == values


@given(st.binary(max_size=200))
def test_any_bytes_decode_to_names_with_values(data: bytes) -> None:
    for name, value in decode_properties(data).items():
        assert name
        assert value
        assert "\x02" not in name + value
        assert "\x01" not in name


@pytest.mark.parametrize("text", [None, "", "-1", "+1", " 1", "1_0", "x", "²", "٣", "1" * 19])
def test_text_that_is_no_number_of_eighteen_digits_is_the_default(text: str | None) -> None:
    assert parse_decimal(text, None) is None
    assert parse_decimal("9" * 18, None) == 10**18 - 1
    assert parse_decimal("007", 0) == 7
    assert parse_decimal("1234", -1, max_digits=3) == -1
