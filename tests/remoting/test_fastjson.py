import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.remoting.fastjson import MAX_DIALECT_BYTES, loads
from rmq_formats.codecs import fastjson
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
    assert loads(text.encode()) == fastjson.loads(text)


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


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        ("{'a':'it\\'s \"b\"',c_1:'\\x41\\v\\0\\\\'}", {"a": 'it\'s "b"', "c_1": "A\v\0\\"}),
        ("{,a:1,,b:[,1,,2,],}", {"a": 1, "b": [1, 2]}),
        ('/* a comment, */{"a"/* {b:1} */:1 // to the end\n}', {"a": 1}),
        ('{a:"b:1,}",0:undefined}', {"a": "b:1,}", "0": None}),
        ("{true:{{'queueId':0}:1}}", {"true": {'{"queueId":0}': 1}}),
        ('\ufeff{"a":"\\\'\\x42"}', {"a": "'B"}),
    ],
)
def test_quotes_bare_keys_comments_and_commas_are_as_in_fastjson(dialect: str, expected: object) -> None:
    assert loads(dialect.encode(), is_request=True) == expected


@pytest.mark.parametrize("bad", ["'a", "{a b:1}", "{a:b}", "[1 2]", ",", "{'a'}", "/*", "{a:1}}"])
def test_what_fastjson_refuses_too_is_refused(bad: str) -> None:
    with pytest.raises(DecodeError):
        loads(bad.encode(), is_request=True)


@pytest.mark.parametrize("bad", ["'\\", "/*", '"\\', "{a:", ",", "//", "a "])
def test_a_hostile_request_is_gone_through_once(bad: str) -> None:
    with pytest.raises(DecodeError):
        loads(b"[" + bad.encode() * 8000, is_request=True)  # which would take minutes otherwise
