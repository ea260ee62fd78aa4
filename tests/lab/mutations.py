"""Mutations of sound bytes: what a disk, a network or a stranger may make of them."""

import random
from collections.abc import Sequence

_EDGES = tuple(
    value.to_bytes(width, "big", signed=True)
    for width in (1, 2, 4, 8)
    for value in (0, 1, -1, (1 << (8 * width - 1)) - 1, -(1 << (8 * width - 1)))
)
TOKENS = (
    b"null", b"true", b"NaN", b"1e999", b"-0", b"1.5", b"9" * 24, b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\ud800",
    b"\\u0000", b"\x00", b"\xff", b"\xed\xa0\x80", b"\x01", b"\x02", b"\n", b"\\", b"=", b"'", b"(", b")", b"..", b"/",
)  # fmt: skip


def mutated(sample: bytes, samples: Sequence[bytes], dice: random.Random, tokens: Sequence[bytes] = TOKENS) -> bytes:
    """A sample with one to five changes; or, now and then, random bytes."""
    chance = dice.random
    if chance() < 0.02:
        return dice.randbytes(int(chance() * 200))
    data = bytearray(sample)
    for _ in range(1 + int(chance() * chance() * 5)):
        size = len(data)
        at = int(chance() * (size + 1))
        match int(chance() * 9):
            case 0 | 1:
                data[at : at + 1] = bytes((int(chance() * 256),))
            case 2 | 3:
                if at < size:
                    data[at] ^= 1 << int(chance() * 8)
            case 4:
                edge = _EDGES[int(chance() * len(_EDGES))]
                data[at : at + len(edge)] = edge
            case 5:
                del data[at : at + 1 + int(chance() * 9)]
            case 6:
                data[at:at] = tokens[int(chance() * len(tokens))]
            case 7:
                other = samples[int(chance() * len(samples))]
                begin = int(chance() * len(other))
                data[at:at] = other[begin : begin + 1 + int(chance() * 40)]
            case _:
                del data[at:]
    return bytes(data)
