"""Unique keys."""

from datetime import datetime

from rmq_core.remoting.uniq_key import UniqKeys, local_ip

MONTH = datetime(2026, 11, 1)
MONTH_MS = int(MONTH.timestamp() * 1000)


def test_a_key_has_javas_parts() -> None:
    keys = UniqKeys("192.0.2.2", 0x12345, bytes.fromhex("07AEB219"))
    assert keys.next(MONTH_MS + 0x6A44BEA1) == "C0000202234507AEB2196A44BEA10000"
    assert keys.next(MONTH_MS + 0x6A44BEA2).endswith("6A44BEA20001")


def test_the_number_wraps_as_javas_short_does() -> None:
    keys = UniqKeys("192.0.2.2", 1, bytes(4))
    made = [keys.next(MONTH_MS) for _ in range((1 << 16) + 1)]
    assert made[-1] == made[0]
    assert len(set(made)) == 1 << 16


def test_the_milliseconds_begin_anew_with_the_month() -> None:
    keys = UniqKeys("192.0.2.2", 1, bytes(4))
    december_ms = int(datetime(2026, 12, 1).timestamp() * 1000)
    assert keys.next(december_ms - 1)[20:28] == f"{december_ms - 1 - MONTH_MS:08X}"
    assert keys.next(december_ms)[20:28] == "00000000"
    assert keys.next(int(datetime(2027, 1, 1).timestamp() * 1000) + 5)[20:28] == "00000005"
    assert keys.next(MONTH_MS + 7)[20:28] == "00000007"  # a clock that was set back


def test_two_producers_of_a_process_make_different_keys() -> None:
    assert UniqKeys().next(MONTH_MS) != UniqKeys().next(MONTH_MS)


def test_this_machine_has_an_address() -> None:
    assert len(local_ip().split(".")) == 4
