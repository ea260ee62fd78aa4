import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.remoting.codes import JSON, ROCKETMQ, RequestCode
from rmq_core.remoting.header import (
    RemotingCommand,
    decode_binary_header,
    decode_json_header,
    encode_binary_header,
    encode_json_header,
    request,
)
from rmq_formats.errors import DecodeError, FormatError, LengthError
from tests.remoting.command_strategies import COMMANDS, damaged, equal

JSON_VECTOR = (
    b'{"code":105,"extFields":{"topic":"T1"},"flag":0,"language":"PYTHON","opaque":7,"remark":"r",'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
BINARY_VECTOR = bytes.fromhex("0069 03 01df 00000007 00000000 00000001 72 0000000d 0005 746f706963 00000002 5431")


def vector(serialize_type: int) -> RemotingCommand:
    return RemotingCommand(105, 0, "PYTHON", 7, 479, "r", {"topic": "T1"}, b"", serialize_type)


def test_json_header_is_java_s_byte_for_byte() -> None:
    assert encode_json_header(vector(JSON)) == JSON_VECTOR
    assert equal(decode_json_header(JSON_VECTOR), vector(JSON))


def test_binary_header_is_java_s_byte_for_byte() -> None:
    assert encode_binary_header(vector(ROCKETMQ)) == BINARY_VECTOR
    assert equal(decode_binary_header(BINARY_VECTOR), vector(ROCKETMQ))


@given(COMMANDS)
def test_a_command_survives_either_form(command: RemotingCommand) -> None:
    if command.serialize_type == JSON:
        decoded = decode_json_header(memoryview(encode_json_header(command)))
    else:
        decoded = decode_binary_header(encode_binary_header(command))
    decoded.body = command.body
    assert equal(decoded, command)


def test_absent_members_count_as_in_java() -> None:
    command = decode_json_header(b"{}")
    assert equal(command, RemotingCommand(0, 0, "JAVA", 0, 0, None, {}, b"", JSON))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b'{"code":1,"extFields":null}', {}),
        (b'{"code":1,"extFields":{"a":5,"b":true,"c":null,"d":"x"}}', {"a": "5", "b": "true", "d": "x"}),
        (b'{"code":1,"extFields":{"a":{"b":[1,2]}}}', {"a": '{"b":[1,2]}'}),
        (b'{"code":1,"extFields":{"a":"x\x01y"}}', {"a": "x\x01y"}),
        (b'{"code":1,"extFields":{1:"x"}}', {"1": "x"}),
        (rb'{"code":1,"extFields":{"a":"\ud800"}}', {"a": "?"}),
    ],
    ids=["null", "numbers", "objects", "control_characters", "bare_keys", "half_a_surrogate_pair"],
)
def test_fields_are_read_as_fastjson_reads_them(header: bytes, expected: dict[str, str]) -> None:
    command = decode_json_header(header)
    assert command.ext_fields == expected
    encode_json_header(command)


def test_members_are_cast_as_fastjson_casts_them() -> None:
    command = decode_json_header(b'{"code":"105","opaque":null,"language":"KLINGON","x":{0:[{}]},"remark":7,"flag":-1}')
    assert (command.code, command.opaque, command.language, command.remark, command.flag) == (105, 0, None, "7", -1)


@pytest.mark.parametrize(
    ("member", "code", "language"),
    [
        (b'"code":"34","language":"CPP"', 34, "CPP"),
        (b'"code":34.0,"language":1', 34, "CPP"),
        (b'"code":true,"language":"go"', 1, "GO"),
        (b'"code":"","language":99', 0, None),
        (b"'code':34,language:'PHP',", 34, "PHP"),
        (b'"code":"1,034"', 1034, "JAVA"),
    ],
)
def test_a_header_s_members_are_read_as_fastjson_reads_them(member: bytes, code: int, language: str | None) -> None:
    command = decode_json_header(b"{%b}" % member)
    assert (command.code, command.language) == (code, language)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"null",
        b"x",
        b'{"code":}',
        b'{"code":"one"}',
        b'{"code":{}}',
        b'{"code":[1]}',
        b'{"opaque":2147483648}',
        b'{"opaque":"99999999999"}',
        b'{"code":1,"extFields":[1]}'[:-1],
        b'{"remark":"\xff\xfe"}',
        b'{"x":' + b"[" * 5000,
        b"\x00" * 30,
    ],
)
def test_a_header_that_is_none_is_refused(header: bytes) -> None:
    with pytest.raises(FormatError):
        decode_json_header(header)


def test_a_field_that_nests_deep_is_refused() -> None:
    for depth in (100, 400, 900, 5000):
        header = b'{"extFields":{"a":' + b"[" * depth + b"]" * depth + b"}}"
        try:
            fields = decode_json_header(header).ext_fields
        except FormatError:
            continue
        assert len(fields["a"]) == 2 * depth


def test_fields_that_are_no_object_are_refused_when_they_are_read() -> None:
    command = decode_json_header(b'{"code":1,"extFields":[1,2]}')
    with pytest.raises(DecodeError):
        _ = command.ext_fields


def test_a_stranger_cannot_set_body_or_form_by_json() -> None:
    command = decode_json_header(b'{"code":1," body":{"a":1}," type":1,"body":"eA==","serialize_type":1}')
    assert (command.code, command.body, command.serialize_type) == (1, b"", JSON)
    command = decode_json_header(b'{"code":1," type":"x"}')
    assert (command.code, command.body, command.serialize_type) == (1, b"", JSON)


@pytest.mark.parametrize("damage", list(damaged(BINARY_VECTOR)), ids=lambda data: data.hex()[:60])
def test_a_damaged_binary_header_gives_a_typed_error_or_another_command(damage: bytes) -> None:
    try:
        command = decode_binary_header(damage)
    except FormatError:
        return
    again = decode_binary_header(encode_binary_header(command))
    assert again.ext_fields == command.ext_fields


@given(st.binary(max_size=80))
def test_random_bytes_are_no_header(data: bytes) -> None:
    for decode in (decode_json_header, decode_binary_header):
        try:
            decode(data)
        except FormatError:
            continue


NAMES = st.sampled_from(["code", "opaque", "extFields", "remark", "language", "x"])
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)


@given(ANY_JSON)
def test_any_json_gives_a_command_or_a_typed_error(value: object) -> None:
    try:
        command = decode_json_header(json.dumps(value).encode())
        encode_json_header(command)
    except FormatError:
        return


def test_empty_texts_of_a_binary_header_are_no_fields_as_java_has_null_there() -> None:
    header = bytes.fromhex("0069 03 01df 00000007 00000000 00000000 0000000c 0000 00000000 0000 00000000")
    command = decode_binary_header(header)
    assert (command.ext_fields, command.remark) == ({}, None)


def test_an_unknown_language_is_none() -> None:
    assert decode_binary_header(BINARY_VECTOR[:2] + b"\x7f" + BINARY_VECTOR[3:]).language is None


def test_a_code_that_the_binary_header_cannot_hold_is_refused_and_not_cut() -> None:
    with pytest.raises(LengthError):
        encode_binary_header(request(RequestCode.POP_MESSAGE, serialize_type=ROCKETMQ))
    with pytest.raises(LengthError):
        encode_binary_header(request(10, {"k" * 40000: "v"}, serialize_type=ROCKETMQ))


def test_an_answer_has_its_request_s_number_and_form() -> None:
    asked = request(105, {"topic": "T"}, serialize_type=ROCKETMQ)
    asked.opaque = 12
    answer = asked.response(17, "no such topic")
    assert (answer.opaque, answer.flag, answer.is_response, answer.serialize_type) == (12, 1, True, ROCKETMQ)
    assert not asked.is_response
    assert not asked.is_oneway


def test_a_command_shows_no_body_and_no_fields() -> None:
    shown = repr(request(10, {"SecurityToken": "secret"}, b"secret body"))
    assert shown == "<request 10 #0 PYTHON 479, 11 B of body>"
