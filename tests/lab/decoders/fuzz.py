"""The part ``decoders``: mutated inputs to every decoder and loader; typed errors alone, soon, and in little memory."""

import random
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache

from tests.lab.decoders import formats, loaders, protocol
from tests.lab.decoders.target import Target
from tests.lab.rounds import Round

_INPUTS = 250  # of a target, in a round
_MAX_SECONDS = 0.1  # an input, of a processor's time
_MAX_GROWTH_BYTES = 64 << 20  # four frames of the largest size; of a whole round
_SHOWN_BYTES = 160
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


@cache
def targets() -> tuple[Target, ...]:
    """All that is fuzzed. Each has read its samples, so that memory for what is made once does not count."""
    found = (*formats.targets(), *protocol.targets(), *loaders.targets())
    assert len({target.name for target in found}) == len(found)
    dice = random.Random(1)
    for target in found:
        for sample in target.samples:
            with suppress(*target.errors):
                target.read(sample, dice)
    return found


def play(one: Round) -> None:
    """Feed every target."""
    all_of_them = targets()
    before = _peak_bytes()
    for target in all_of_them:
        for data in _inputs(one, target):
            began = time.perf_counter()
            try:
                target.read(data, one.dice)
            except target.errors:
                pass
            except Exception:
                one.step(_shown(target, data))
                raise
            if time.perf_counter() - began > _MAX_SECONDS:
                _time_again(one, target, data)
            one.case()
    grown = _peak_bytes() - before
    one.demand(grown <= _MAX_GROWTH_BYTES, f"memory grew by {grown >> 20} MiB in a round")


def _inputs(one: Round, target: Target) -> Iterator[bytes]:
    dice, samples = one.dice, target.samples
    for _ in range(int(_INPUTS * target.share)):
        yield mutated(samples[int(dice.random() * len(samples))], samples, dice)


def _time_again(one: Round, target: Target, data: bytes) -> None:
    """Whether it is the input that takes long, or the machine that has much to do."""
    seconds = []
    for _ in range(3):
        began = time.process_time()
        with suppress(*target.errors):
            target.read(data, one.dice)
        seconds.append(time.process_time() - began)
    one.step(_shown(target, data))
    one.demand(min(seconds) <= _MAX_SECONDS, f"{target.name} takes {min(seconds):.2f} s")


def _shown(target: Target, data: bytes) -> str:
    rest = "" if len(data) <= _SHOWN_BYTES else f" … {len(data)} bytes"
    return f"{target.name} reads {data[:_SHOWN_BYTES]!r}{rest}"


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
