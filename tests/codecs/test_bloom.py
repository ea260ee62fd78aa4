"""Bloom filters, with what the original's class gave."""

import pytest

from rmq_formats.codecs.consumequeue_ext import BloomFilter


def test_sizes_are_the_original_s() -> None:
    bloom = BloomFilter()
    assert (bloom.hash_count, bloom.bit_count) == (3, 112)


@pytest.mark.parametrize(
    ("group", "topic", "positions"),
    [
        ("cgs", "TopicTest", [61, 83, 4]),
        ("group", "topic", [79, 21, 21]),
        ("golden_cg_ok", "Orders", [99, 80, 4]),  # of 19 bytes: more than a block
    ],
)
def test_bits_are_the_original_s(group: str, topic: str, positions: list[int]) -> None:
    assert BloomFilter().positions(group, topic) == positions


def test_a_map_holds_what_was_put_into_it() -> None:
    bloom = BloomFilter()
    bits = bloom.bit_map([0, 9, 111])
    assert bits == b"\x01\x02" + bytes(11) + b"\x80"
    assert bloom.may_contain(bits, bloom.bit_map([111, 0]))
    assert not bloom.may_contain(bits, bloom.bit_map([0, 1]))
