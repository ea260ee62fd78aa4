"""Benchmarks the decoding of JSON bodies to Arrow columns: msgspec structs beside the decoder of single bodies."""

import json
import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from benchmarks.measure import Figure
from rmq_lakehouse.decode.bodies import decoded
from rmq_lakehouse.decode.json_body import decoder
from rmq_lakehouse.decode.structs import bodies_decoder
from rmq_lakehouse.decode.times import TimeUnits

TARGET_RATIO: Final = 3.0
_BODIES: Final = 10_000  # an Arrow batch of Spark
_BODY_BYTES: Final = 1024
_RUNS: Final = 5  # the fastest counts
_COLUMNS: Final = pa.struct(
    [("id", pa.int64()), ("name", pa.string()), ("amount", pa.decimal128(12, 2)), ("at", pa.timestamp("us", "UTC"))]
)


def figures() -> list[Figure]:
    """Measure on bodies of 1 KiB, of which four members are columns."""
    bodies = pa.array([_body(number) for number in range(_BODIES)], pa.binary())
    decode = decoder(_COLUMNS, TimeUnits(), "UTC")
    decode_bodies = bodies_decoder(_COLUMNS, TimeUnits(), "UTC", decode, _COLUMNS, 0)
    single = min(_processor_us(lambda: decoded(bodies, decode, _COLUMNS)) for _ in range(_RUNS))
    batch = min(_processor_us(lambda: decode_bodies(bodies)) for _ in range(_RUNS))
    return [
        Figure(
            "JSON bodies of 1 KiB to four Arrow columns, a processor",
            f"{batch:.1f} µs a body",
            f"{TARGET_RATIO:.0f} ×",
            single / batch >= TARGET_RATIO,
            f"{single:.1f} µs (one body after the other, `json_body`)",
            single / batch,
        )
    ]


def _body(number: int) -> bytes:
    members = {"id": number, "name": f"n{number % 100}", "amount": number % 1000 + 0.25}
    members["at"] = f"2024-02-03T04:05:{number % 60:02}.123Z"
    return json.dumps({**members, "more": "z" * (_BODY_BYTES - len(json.dumps(members)))}).encode()


def _processor_us(action: Callable[[], object]) -> float:
    """Measure the microseconds of a processor for each body."""
    begin = time.process_time()
    action()
    return (time.process_time() - begin) / _BODIES * 1e6
