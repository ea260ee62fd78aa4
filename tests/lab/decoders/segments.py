"""The part ``kernels``: mutated records and segments to the compiled readers, in memory that ends where they do."""

import random
from typing import Any

import numpy as np
from numba import njit

from rmq_formats.codecs.layout import BLANK_BYTES
from rmq_formats.kernels.scan import (
    BODY_AT,
    BODY_BYTES,
    FRAME_COLUMNS,
    POSITION,
    PROPERTIES_AT,
    PROPERTIES_BYTES,
    SIZE,
    SOUND,
    TOPIC_AT,
    TOPIC_BYTES,
    check_crc,
    check_frame,
)
from rmq_formats.kernels.text import PROPERTY_ROWS, find_properties
from rmq_formats.kernels.verify import are_properties, has_declared_compression, is_plain_topic
from tests.kernels.guarded_memory import guarded
from tests.kernels.scanned_segments import scanned, walked
from tests.lab.decoders.samples import records, segments
from tests.lab.rounds import Round

_RECORDS = 200_000  # mutated ones, in a round
_SEGMENTS = 2  # compared with the oracle, in a round
_STRETCHES = 12  # damaged ones of such a segment, at most


def play(one: Round) -> None:
    """Mutate single records, fast, and segments, against the oracle."""
    samples = records("exotic", "exotic_crc", "mixed", most=20)
    for physical_offset, record in one.dice.sample(samples, 5):
        _play_record(one, physical_offset, record, _RECORDS // 5)
    for _ in range(_SEGMENTS):
        _play_segment(one)


def _play_record(one: Round, physical_offset: int, record: bytes, count: int) -> None:
    seed = one.dice.getrandbits(62) | 1
    one.step(f"{count} mutations, from {seed}, of the record {record[:80].hex()}… ({len(record)} bytes)")
    totals = np.zeros(3, dtype=np.int64)
    with guarded(record + bytes(BLANK_BYTES)) as data:
        row, found = np.zeros(FRAME_COLUMNS, dtype=np.int64), np.zeros((PROPERTY_ROWS, 2), dtype=np.int64)
        fault = mutate_and_check(data, len(record), physical_offset, count, seed, row, found, totals)
    one.case(count)
    one.fault(int(totals[2]))
    one.demand(fault == 0, f"fault {fault} (see mutate_and_check) at mutation {totals[0]}")


@njit("int64(uint8[::1], int64, int64, int64, uint64, int64[::1], int64[:, ::1], int64[::1])", nogil=True, cache=True)
def mutate_and_check(
    data: Any, size: int, physical_offset: int, count: int, seed: int, row: Any, found: Any, totals: Any
) -> int:
    """Change one to four bytes of a record, read it, and change them back, ``count`` times.

    Args:
        data: uint8[size + 8]: the record, and zeros.
        size: of the record.
        physical_offset: where it stands.
        count: of mutations.
        seed: of chance; odd.
        row: int64[FRAME_COLUMNS], scratch.
        found: int64[PROPERTY_ROWS, 2], scratch.
        totals: int64[3], written: mutations done, those whose frame was sound, bytes changed.

    Returns:
        0, or: 1 spans of a sound frame beyond its bytes, 2 a change of the body passes its checksum, 3 a property
        beyond the record's.
    """
    places = np.zeros(4, dtype=np.int64)
    before = np.zeros(4, dtype=np.uint8)
    state = seed
    for number in range(count):
        totals[0] = number
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        changes = 1 + np.int64(state & np.uint64(3))
        dice = state >> np.uint64(2)
        # Half of them in the head, where the lengths are; of the others most stand in the body.
        span = np.uint64(min(size, 100)) if dice & np.uint64(1) else np.uint64(size)
        for change in range(changes):
            dice = dice * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            places[change] = np.int64((dice >> np.uint64(33)) % span)
            before[change] = data[places[change]]
            kind = (dice >> np.uint64(20)) & np.uint64(7)
            value = np.uint8((dice >> np.uint64(24)) & np.uint64(0xFF))
            if kind == 0:
                value = np.uint8(0)
            elif kind == 1:
                value = np.uint8(0xFF)
            elif kind == 2:
                value = np.uint8(0x7F)
            elif kind < 6:
                value = np.uint8(before[change] ^ np.uint8(1 << (value & 7)))
            data[places[change]] = value
        totals[2] += changes
        fault = 0
        if check_frame(data, len(data), 0, physical_offset, len(data), 0, row) == SOUND:
            totals[1] += 1
            end = row[SIZE]
            if not (
                row[POSITION] == 0
                and row[BODY_AT] > 0
                and row[BODY_BYTES] >= 0
                and row[TOPIC_BYTES] >= 0
                and row[PROPERTIES_BYTES] >= 0
                and row[BODY_AT] + row[BODY_BYTES] < row[TOPIC_AT]
                and row[TOPIC_AT] + row[TOPIC_BYTES] + 2 == row[PROPERTIES_AT]
                and row[PROPERTIES_AT] + row[PROPERTIES_BYTES] == end
                and end <= len(data)
            ):
                fault = 1
            else:
                is_sound = check_crc(data, row) == SOUND
                body_end = row[BODY_AT] + row[BODY_BYTES]
                if is_sound and changes == 1 and row[BODY_AT] <= places[0] < body_end and data[places[0]] != before[0]:
                    fault = 2
                find_properties(data, row[PROPERTIES_AT], end, found)
                for index in range(len(found)):
                    at, length = found[index, 0], found[index, 1]
                    if at >= 0 and length >= 0 and (at < row[PROPERTIES_AT] or at + length > end):
                        fault = 3
                are_properties(data, row[PROPERTIES_AT], end)
                is_plain_topic(data, row[TOPIC_AT], row[TOPIC_AT] + row[TOPIC_BYTES])
                has_declared_compression(data, 0x1, row[BODY_AT], row[BODY_BYTES])
        for change in range(changes - 1, -1, -1):
            data[places[change]] = before[change]
        if fault:
            return fault
    totals[0] = count
    return 0


def _play_segment(one: Round) -> None:
    """A damaged segment is scanned, in windows, as the oracle walks it."""
    store = one.dice.choice(["exotic", "exotic_crc"])
    file_offset, sound = one.dice.choice(segments(store))
    data = bytearray(sound)
    for _ in range(one.dice.randrange(1, _STRETCHES)):
        _damage(data, one.dice, one)
    window_bytes = one.dice.choice([1 << 12, 5000, 1 << 16, 1 << 20])
    found, wanted = scanned(bytes(data), file_offset, window_bytes=window_bytes), walked(bytes(data), file_offset)
    one.case(len(wanted))
    one.demand(found == wanted, f"scanned in windows of {window_bytes} bytes, {store} at {file_offset} is another log")


def _damage(data: bytearray, dice: random.Random, one: Round) -> None:
    at, size = dice.randrange(len(data)), dice.choice([1, 1, 1, 4, 30, 512, 3000])
    end = min(at + size, len(data))
    match dice.randrange(4):
        case 0:
            what, junk = "bytes at random", dice.randbytes(end - at)
        case 1:
            what, junk = "zeros", bytes(end - at)
        case 2:
            other = dice.randrange(len(data) - (end - at) + 1)
            what, junk = f"bytes from {other}", bytes(data[other : other + end - at])
        case _:
            what, junk = "a flip", bytes([data[at] ^ 1 << dice.randrange(8)])
    data[at : at + len(junk)] = junk
    one.fault()
    one.step(f"{what}: {len(junk)} at {at}")
