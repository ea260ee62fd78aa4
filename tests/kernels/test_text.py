"""Hashes and property look-ups over bytes against those over Java's and Python's strings."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmq_formats.codecs.hashing import java_string_hash
from rmq_formats.codecs.layout import SCHEDULE_TOPIC
from rmq_formats.codecs.properties import decode_properties
from rmq_formats.kernels import text as kernel
from tests.kernels.guarded_memory import guarded
from tests.support.oracles.consumequeue import tags_code_of

NAMES = {
    "TAGS": kernel.TAGS, "KEYS": kernel.KEYS, "UNIQ_KEY": kernel.UNIQ_KEY, "DELAY": kernel.DELAY,
    "INNER_MULTI_QUEUE_OFFSET": kernel.LIGHT_OFFSETS, "INNER_BASE": kernel.INNER_BASE,
    "INNER_MULTI_DISPATCH": kernel.LIGHT_NAMES,
}  # fmt: skip
texts = st.text(max_size=80)
ascii_texts = st.text(st.characters(max_codepoint=127), max_size=200)
pieces = st.sampled_from(
    [b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"DELAX", b"INNER_MULTI_QUEUE_OFFSET", b"INNER_MULTI_QUEUE_OFFSEX",
     b"INNER_MULTI_DISPATCH", b"INNER_MULTI_DISPATCX",
     b"INNER_BASE", b"TAG", b"\1", b"\1", b"\2", b"\2", b" ", b"a", b"x" * 17,
     "中".encode(), "😀".encode(), b"\xe4\xb8", b"\xff", b"\xed\xa0\x80", b"\0"]
)  # fmt: skip
blocks = st.lists(pieces, max_size=40).map(b"".join)
broken_texts = st.one_of(st.binary(max_size=60), blocks, texts.map(lambda text: text.encode("utf-8", "surrogatepass")))


def array_of(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8).copy()


def signed_hash(data: np.ndarray, start: int, stop: int, seed: int = 0) -> int:
    return int(np.uint32(kernel.java_hash(data, start, stop, np.uint32(seed))).view(np.int32))


def decoded(data: bytes) -> str:
    """A whole text, code point by code point."""
    array, at, points = array_of(data), 0, []
    while at < len(data):
        point, size = kernel.decode_code_point(array, at, len(data))
        points.append(chr(point))
        at += size
    assert at == len(data)
    return "".join(points)


@settings(deadline=None)
@given(st.one_of(ascii_texts, texts), st.integers(0, 20), st.integers(0, 20))
def test_the_hash_of_a_text_is_java_s_wherever_it_stands(text: str, before: int, behind: int) -> None:
    encoded = text.encode("utf-8", "replace")
    data = array_of(b"\xff" * before + encoded + b"z" * behind)
    assert signed_hash(data, before, before + len(encoded)) == java_string_hash(encoded.decode())


@settings(deadline=None)
@given(broken_texts)
@example(b"")
@example(b"a" * 16 + b"\xf0\x9f\x98\x80" + b"b" * 15)
@example(b"\xf4\x90\x80\x80\xf0\x8f\xbf\xbf\xe0\x9f\xbf\xc1\xbf")
def test_what_is_not_utf_8_hashes_as_replacement_characters(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    assert decoded(data) == text
    assert signed_hash(array_of(data), 0, len(data)) == java_string_hash(text)


@pytest.mark.parametrize("length", range(1, 5))
def test_each_short_sequence_of_telling_bytes_decodes_as_in_python(length: int) -> None:
    telling = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xDF, 0xE0, 0xED, 0xEF, 0xF0, 0xF4]
    random = np.random.default_rng(length)
    for _ in range(400):
        data = bytes(random.choice([*telling, 0xF5, 0xFF], size=length).tolist())
        assert decoded(data) == data.decode("utf-8", "replace"), data.hex()


@settings(deadline=None)
@given(texts, texts)
def test_a_hash_goes_on_from_a_seed(first: str, second: str) -> None:
    first, second = (text.encode("utf-8", "replace").decode() for text in (first, second))
    data = array_of((first + second).encode())
    middle = len(first.encode())
    seed = int(kernel.java_hash(data, 0, middle, np.uint32(0)))
    assert signed_hash(data, middle, len(data), seed) == java_string_hash(first + second)


def check_properties(data: np.ndarray, start: int, stop: int) -> None:
    found = np.full((kernel.PROPERTY_ROWS, 2), 77, dtype=np.int64)
    kernel.find_properties(data, start, stop, found)
    block = data[start:stop].tobytes()
    expected = decode_properties(block)
    for name, row in NAMES.items():
        at, size = found[row].tolist()
        value = data[at : at + size].tobytes().decode("utf-8", "replace") if size else None
        assert value == expected.get(name), block
        assert at >= start if size else (at, size) == (-1, 0)


@settings(deadline=None, max_examples=300)
@given(blocks, st.integers(0, 40), st.integers(0, 40))
def test_properties_are_found_as_java_decodes_them(block: bytes, before: int, behind: int) -> None:
    data = array_of(b"\2KEYS\1no\2"[: before % 10] + bytes(before) + block + b"\1\2TAGS\1no\2" * (behind // 8))
    start = before % 10 + before if before % 10 < 9 else 9 + before
    check_properties(data, start, start + len(block))


@pytest.mark.parametrize(
    "block",
    [
        b"TAGS\1a\2TAGS\1b\2",
        b"TAGS\1a\2TAGS\1\2",
        b"TAGS\1a\1b\2KEYS\1k",
        b"\1TAGS\1a\2KEYS\2",
        b"TAGS\2TAGS\1",
        b"A" * 31 + b"\1b\2TAGS\1" + b"c" * 64 + b"\2UNIQ_KEY\1d",
    ],
)
def test_odd_blocks_are_read_as_java_reads_them(block: bytes) -> None:
    check_properties(array_of(block), 0, len(block))
    check_properties(array_of(block + b"\2" * 40), 0, len(block))


def test_no_byte_outside_of_the_window_is_read() -> None:
    value = b"TAGS\1" + b"v" * 90 + b"\2KEYS\1k1 k2\2"
    for size in range(len(value) + 1):
        block = value[-size:] if size else b""
        for at_end in (True, False):
            with guarded(block, at_end=at_end) as data:
                check_properties(data, 0, size)
                assert signed_hash(data, 0, size) == java_string_hash(block.decode())


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_character_that_the_window_cuts_off_is_not_read_on(cut: int) -> None:
    with guarded(b"x" * 20 + "😀".encode()[:cut]) as data:
        assert signed_hash(data, 0, len(data)) == java_string_hash("x" * 20 + "\ufffd")


@settings(deadline=None)
@given(st.one_of(st.text(st.sampled_from("0123456789+- a"), max_size=12), st.integers(-5, 1 << 33).map(str)))
@example("2147483647")
@example("2147483648")
@example("9999999999")
@example("1000000000")
@example("+3")
@example("-1")
@example("0000000002")
@example("００３")
def test_delay_levels_are_read_as_the_oracle_reads_them(delay: str) -> None:
    data = array_of(delay.encode())
    level = int(kernel.parse_decimal(data, 0, len(data)))
    levels = (1000, 2000, 3000)
    code = 1_000_000 + levels[min(level, 3) - 1] if level > 0 else 0
    assert code == tags_code_of(SCHEDULE_TOPIC, {"DELAY": delay}, 1_000_000, delay_levels_ms=levels)
