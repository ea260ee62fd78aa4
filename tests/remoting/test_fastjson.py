import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.remoting.fastjson import MAX_DIALECT_BYTES, loads
from rmq_formats.codecs import config_json
from rmq_formats.errors import DecodeError


@pytest.mark.parametrize(
    "text",
    [
        '{"offsetTable":{"t@g":{0:5,1:7\n\t\t}, "u@g":{-1:2, "3" : 4,5 :-1.5e3}},"a":[1,2,3]}',
        '{"no{0:key":"1:2","\\"3:":[],"\\\\":{4:{}}}',
        '{{"brokerName":"b","queueId":0,"topic":"T"}:{0:1}}',
        '"a control character \t"',
        '{"half a pair":"\\ud800"}',
        "[[{1:{2:{3:null}}}]]",
    ],
)
def test_the_dialect_is_read_as_from_a_file(text: str) -> None:
    assert loads(text.encode()) == config_json.loads(text)


@given(st.text(st.sampled_from('{}[]:,"01-.eE+ntrufalse\\ \n\0'), max_size=60))
def test_garbage_is_a_value_or_a_typed_error(text: str) -> None:
    for is_request in (False, True):
        try:
            loads(text.encode(), is_request=is_request)
        except DecodeError:
            continue


@given(st.dictionaries(st.integers(), st.text() | st.integers(), max_size=9))
def test_bare_keys_are_quoted_and_nothing_else_is(table: dict[int, object]) -> None:
    text = ",".join(f"{key}:{json.dumps(value)}" for key, value in table.items())
    assert loads(f"{{{text}}}".encode()) == {str(key): value for key, value in table.items()}


@pytest.mark.parametrize("bad", ["NaN", "[Infinity]", "{0:1", "{0:1}}", "\xff", "{[1]:2}", "[" * 5000, "{" * 5000])
def test_what_is_no_json_is_refused(bad: str) -> None:
    for is_request in (False, True):
        with pytest.raises(DecodeError):
            loads(bad.encode("latin-1"), is_request=is_request)


def test_a_long_request_has_to_be_standard() -> None:
    standard = b'{"a":"%b"}' % (b"x" * MAX_DIALECT_BYTES)
    assert loads(standard, is_request=True)
    with pytest.raises(DecodeError, match="too long"):
        loads(standard.replace(b'"a"', b"0"), is_request=True)
    assert loads(standard.replace(b'"a"', b"0"))
    with pytest.raises(DecodeError):  # objects as keys: no request has them, and their parser is slow
        loads(b"{" + b'{"queueId":0}:1,' * 4000 + b"0:1}", is_request=True)
