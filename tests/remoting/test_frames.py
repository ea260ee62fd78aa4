import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.remoting.codes import ROCKETMQ
from rmq_core.remoting.frames import MAX_FRAME_BYTES, FrameParser, decode_frame, encode_frame, frame_head
from rmq_core.remoting.header import RemotingCommand, request
from rmq_formats.errors import DecodeError, FormatError, LengthError, TruncatedError
from tests.remoting.command_strategies import COMMANDS, damaged, equal

BINARY_FRAME = bytes.fromhex(
    "00000027 01000023 0069 03 01df 00000007 00000000 00000001 72 0000000d 0005 746f706963 00000002 5431"
)
FRAME = encode_frame(request(310, {"a": "group", "b": "topic"}, b"body"))


def test_a_binary_frame_is_java_s_byte_for_byte() -> None:
    command = decode_frame(BINARY_FRAME)
    assert (command.code, command.remark, command.ext_fields) == (105, "r", {"topic": "T1"})
    assert command.serialize_type == ROCKETMQ
    assert encode_frame(command) == BINARY_FRAME


@given(COMMANDS)
def test_a_command_survives_a_frame(command: RemotingCommand) -> None:
    assert equal(decode_frame(encode_frame(command)), command)


@given(st.lists(COMMANDS, max_size=5), st.lists(st.integers(1, 40), min_size=1, max_size=50))
def test_frames_are_found_however_the_stream_is_cut(commands: list[RemotingCommand], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(command) for command in commands)
    parser, found, at, turn = FrameParser(), [], 0, 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        found += parser.feed(stream[at : at + step])
        at, turn = at + step, turn + 1
    assert len(found) == len(commands)
    assert all(equal(one, other) for one, other in zip(found, commands, strict=True))
    assert parser.buffered_bytes == 0


def test_a_body_is_a_view_and_not_a_copy() -> None:
    data = FRAME * 2
    first, second = FrameParser().feed(data)
    assert isinstance(first.body, memoryview)
    assert first.body.obj is data
    assert second.body == b"body"


def test_only_what_has_come_of_a_frame_is_held() -> None:
    parser = FrameParser()
    claims_16_mib = (MAX_FRAME_BYTES - 4).to_bytes(4, "big")
    assert not list(parser.feed(claims_16_mib))
    assert parser.buffered_bytes == 4
    assert not list(parser.feed(bytes(100)))
    assert parser.buffered_bytes == 104


def test_the_largest_frame_passes_and_one_byte_more_does_not() -> None:
    command = request(10)
    command.body = bytes(MAX_FRAME_BYTES - len(frame_head(command)))
    assert len(encode_frame(command)) == MAX_FRAME_BYTES
    assert decode_frame(encode_frame(command)).body == command.body
    command.body = bytes(len(command.body) + 1)
    with pytest.raises(LengthError):
        encode_frame(command)


def test_a_parser_may_have_a_smaller_limit() -> None:
    assert list(FrameParser(len(FRAME)).feed(FRAME))
    with pytest.raises(LengthError):
        list(FrameParser(len(FRAME) - 1).feed(FRAME))


@pytest.mark.parametrize("size", [-1, 0, 3, MAX_FRAME_BYTES - 3, 0x16030102, 0x50524F58, 0x7FFFFFFF, -(1 << 31)])
def test_an_impossible_size_is_refused_at_its_fourth_byte(size: int) -> None:
    parser = FrameParser()
    data = size.to_bytes(4, "big", signed=True)
    assert not list(parser.feed(data[:3]))
    with pytest.raises(LengthError):
        list(parser.feed(data[3:]))


def test_a_header_longer_than_its_frame_is_refused_before_the_rest_has_come() -> None:
    with pytest.raises(LengthError):
        list(FrameParser().feed(bytes.fromhex("00001000 00001000")))


def test_an_unknown_type_of_header_is_refused() -> None:
    with pytest.raises(DecodeError):
        decode_frame(FRAME[:4] + b"\x02" + FRAME[5:])


def test_frames_before_a_bad_one_are_still_given() -> None:
    commands = FrameParser().feed(FRAME * 3 + b"\xff" * 8)
    assert [next(commands).code for _ in range(3)] == [310] * 3
    with pytest.raises(LengthError):
        next(commands)


def test_bytes_that_are_not_one_frame_are_refused() -> None:
    with pytest.raises(TruncatedError):
        decode_frame(FRAME[:-1])
    for data in (FRAME + b"x", FRAME * 2):
        with pytest.raises(LengthError):
            decode_frame(data)


@pytest.mark.parametrize("frame", [FRAME, BINARY_FRAME], ids=["json", "binary"])
def test_a_frame_damaged_at_any_byte_gives_a_typed_error_or_a_command(frame: bytes) -> None:
    for damage in damaged(frame):
        parser = FrameParser()
        try:
            for command in parser.feed(damage + frame):
                _ = command.ext_fields
        except FormatError:
            continue


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_random_bytes_give_typed_errors_only(pieces: list[bytes]) -> None:
    parser = FrameParser()
    try:
        for piece in pieces:
            list(parser.feed(piece))
    except FormatError:
        return
    assert parser.buffered_bytes <= sum(map(len, pieces))
