"""Mutated samples of everything that is decoded: typed errors only, and never for long."""

import random
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from rmq_core.remoting.bodies.routes import decode_registration, encode_registration
from rmq_formats.codecs.java_properties import parse_properties
from rmq_formats.errors import FormatError
from tests.remoting import test_bodies as bodies
from tests.remoting.mutated_protocol import BODIES, FRAMES, PROPERTIES, read_body, read_frames
from tests.support.torture import rounds

pytestmark = pytest.mark.torture

ROUNDS = rounds(3000)
MAX_SECONDS = 0.1

TOKENS = [
    b"null", b"true", b"NaN", b"1e999", b"-0", b"1.5", b"9" * 24, b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\ud800",
    b"\\u0000", b"\x00", b"\xff", b"\xed\xa0\x80",
]  # fmt: skip


def mutated(sample: bytes, dice: random.Random) -> bytes:
    data = bytearray(sample)
    for _ in range(dice.randrange(1, 6)):
        at, other = dice.randrange(len(data) + 1), dice.randrange(len(data) + 1)
        match dice.randrange(4):
            case 0:
                data[at : at + 1] = bytes([dice.randrange(256)])
            case 1:
                del data[at : at + dice.randrange(1, 9)]
            case 2:
                data[at:at] = dice.choice(TOKENS)
            case _:
                data[at:at] = data[other : other + dice.randrange(1, 30)]
    return bytes(data)


def fuzz(samples: list[bytes], read: Callable[[bytes, random.Random], object]) -> None:
    dice = random.Random(2024)
    for _ in ROUNDS:
        data = mutated(dice.choice(samples), dice)
        begin = time.process_time()
        with suppress(FormatError):
            read(data, dice)
        assert time.process_time() - begin < MAX_SECONDS, data


def test_mutated_frames_give_typed_errors() -> None:
    fuzz(FRAMES, read_frames)


def test_mutated_bodies_give_typed_errors() -> None:
    fuzz(BODIES, read_body)


def test_mutated_registrations_give_typed_errors() -> None:
    packed = [encode_registration(bodies.REGISTRATION, True)]
    fuzz(packed, lambda data, _dice: decode_registration(data, True, 479))


def test_mutated_properties_give_typed_errors() -> None:
    fuzz([PROPERTIES], lambda data, _dice: parse_properties(data.decode("latin-1")))
