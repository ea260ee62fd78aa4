"""``rmq decodeMessageId``: both ids of messages that the original's clients have sent."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_cli.message_id import describe_message_id
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.message_id import UniqueId, encode_message_id, is_offset_id
from tests.cli.conftest import Rmq

DAY_MS = 86_400_000
V6 = "FD00000000000000000000000000000225F35FFD2B27830F7F5400DD"  # of a producer 5.5.0 on a machine with IPv6 alone


@pytest.mark.parametrize("name", ["lmq", "mixed_551"])
def test_ids_of_the_original_are_distinguished_and_decoded(name: str, golden: Callable[[str], Path]) -> None:
    known = 0
    for line in (golden(name) / "expected" / "messages.jsonl").read_text("utf-8").splitlines():
        message = json.loads(line)
        host = Host.parse(message["store_host"])
        place = describe_message_id(encode_message_id(host, message["physical_offset"]), 0)
        assert (place["store_host"], place["physical_offset"]) == (str(host), message["physical_offset"])
        unique = message["properties"].get("UNIQ_KEY", "")
        if len(unique) not in {32, 56}:
            continue
        assert not is_offset_id(unique)
        known += 1
        decoded = UniqueId.decode(unique)
        apart = message["born_timestamp"] - decoded.nearly_time_ms(message["born_timestamp"] + DAY_MS)
        # The month began in the producer's zone, and is told in that of this machine.
        assert min(apart % 900_000, -apart % 900_000) < 300_000
    assert known > 100


def test_the_previous_month_is_assumed_for_an_id_of_the_future() -> None:
    late = UniqueId("127.0.0.1", 1, 2, 27 * DAY_MS, 3)
    first_of_march, begin_of_february = 1_772_323_200_000, 1_769_904_000_000  # in UTC, 2026
    found = late.nearly_time_ms(first_of_march + 2 * DAY_MS)
    assert abs(found - begin_of_february - 27 * DAY_MS) <= DAY_MS


def test_ids_are_printed_for_people_and_programs(rmq: Rmq) -> None:
    result = rmq("decodeMessageId", V6, encode_message_id(Host.parse("[::1]:10911"), 341), "--json")
    unique, place = map(json.loads, result.stdout.splitlines())
    assert (unique["producer_ip"], unique["pid"], unique["number"]) == ("fd00::2", 9715, 221)
    assert (place["store_host"], place["physical_offset"]) == ("[::1]:10911", 341)
    assert "fd00::2" in rmq("decodeMessageId", V6).stdout
    for bad in ("", "xyz", V6[1:], f"{V6[:-1]} "):
        result = rmq("decodeMessageId", bad)
        assert (result.exit_code, result.stdout) == (2, "")
        assert len(result.stderr.splitlines()) == 1
