"""``rmq query``: the five ways to find messages, and what people see of them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_formats import Store
from rmq_formats.codecs.compression import Compression, compress
from rmq_formats.codecs.layout import FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_PREPARED, FLAG_TRANSACTION_ROLLBACK
from rmq_formats.codecs.properties import encode_properties
from tests.cli.conftest import Rmq, one_line
from tests.support.stores.record_strategies import plain_message
from tests.support.stores.store_files import write_commitlog

Golden = Callable[[str], Path]
Lines = Callable[[str], list[bytes]]


def ways(record: dict[str, Any]) -> dict[str, list[Any]]:
    """Arguments that all find a record."""
    topic, properties = ["--topic", record["topic"]], record["properties"]
    return {
        "--key": [*topic, "--key", properties["KEYS"].split()[0]],
        "--uniq-key": [*topic, "--uniq-key", properties["UNIQ_KEY"]],
        "--msg-id": ["--msg-id", record["msg_id"]],
        "--offset": [*topic, "--queue", record["queue_id"], "--offset", record["queue_offset"]],
        "--time": [*topic, "--queue", record["queue_id"], "--time", record["store_timestamp"]],
    }


@pytest.mark.parametrize("way", ["--key", "--uniq-key", "--msg-id", "--offset", "--time"])
def test_each_way_prints_the_dumps_line(
    rmq: Rmq, golden: Golden, golden_name: str, expected_lines: Lines, way: str
) -> None:
    lines = [line for line in expected_lines(golden_name) if b'"KEYS"' in line and b'"UNIQ_KEY"' in line]
    line = lines[len(lines) // 2]
    done = rmq("query", golden(golden_name) / "store", *ways(json.loads(line))[way], "--json")
    assert done.exit_code == 0
    assert line in done.stdout_bytes.splitlines(keepends=True)
    if way == "--msg-id":
        assert done.stdout_bytes == line
        assert done.stderr == ""
    elif golden_name == "crash":  # its broker was killed: what is beside the log may lack something
        assert one_line(done.stderr).startswith("scanning 1.6 MiB of the log; no ")
    else:
        assert done.stderr == ""


@pytest.mark.parametrize("way", ["--key", "--uniq-key", "--offset", "--time"])
def test_without_index_and_queues_the_log_is_scanned_with_a_notice(
    rmq: Rmq, golden: Golden, tmp_path: Path, expected_lines: Lines, way: str
) -> None:
    line = next(line for line in expected_lines("mixed")[1000:] if b'"KEYS"' in line)
    shutil.copytree(golden("mixed") / "store" / "commitlog", tmp_path / "commitlog")
    done = rmq("query", tmp_path, *ways(json.loads(line))[way], "--json")
    assert done.exit_code == 0
    assert line in done.stdout_bytes.splitlines(keepends=True)
    said = one_line(done.stderr)
    assert said.startswith("scanning ")
    assert ("no index files" if "key" in way else "has none") in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["--topic", "Orders", "--key", "no-such-key"],
        ["--topic", "NoSuchTopic", "--uniq-key", "X"],
        ["--msg-id", "7F000001000078BF0000000000000001"],
        ["--topic", "Orders", "--queue", "1", "--offset", "999999"],
        ["--topic", "Orders", "--time", "2099-01-01"],
    ],
)
def test_nothing_found_is_exit_1_and_a_line(rmq: Rmq, golden: Golden, arguments: list[str]) -> None:
    store = golden("mixed") / "store"
    done = rmq("query", store, *arguments)
    assert (done.exit_code, done.stdout) == (1, "")
    wanted = "no such topic: NoSuchTopic" if "NoSuchTopic" in arguments else "no such message"
    assert done.stderr.splitlines()[-1] == f"rmq: {store}: {wanted}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give one of --key, --uniq-key, --msg-id, --offset, --time; given: none"),
        (["--topic", "T", "--queue", "1"], "give one of"),
        (["--key", "a", "--msg-id", "b"], "given: --key, --msg-id"),
        (["--key", "a"], "--key: give --topic too"),
        (["--time", "2026-01-01"], "--time: give --topic too"),
        (["--topic", "T", "--offset", "1"], "--offset: give --queue too"),
        (["--topic", "T", "--msg-id", "00"], "--msg-id: names one message"),
        (["--msg-id", "xyz"], "not an offset message id"),
        (["--topic", "T", "--time", "yesterday"], "--time yesterday: not a time such as"),
        (["--topic", "T", "--time", "2026"], "--time 2026: not a time such as"),
    ],
)
def test_a_question_that_is_none_is_refused(rmq: Rmq, golden: Golden, arguments: list[str], said: str) -> None:
    done = rmq("query", golden("mixed") / "store", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in one_line(done.stderr)


@pytest.mark.parametrize(
    "time",
    ["2026-11-21T03:05:20Z", "2026-11-21T03:05:20", "2026-11-21T11:05:20+08:00", "1795230320000", "20261121T030520"],
)
def test_a_time_is_iso_or_milliseconds_and_utc_without_a_zone(rmq: Rmq, golden: Golden, time: str) -> None:
    done = rmq("query", golden("mixed") / "store", "--topic", "Orders", "--time", time, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(record["queue_id"] for record in found) == [0, 1, 2, 3]
    assert all(record["store_timestamp"] >= 1795230320000 for record in found)


def test_people_see_all_of_a_message(rmq: Rmq, golden: Golden, expected_lines: Lines) -> None:
    record = json.loads(expected_lines("mixed")[0])
    done = rmq("query", golden("mixed") / "store", "--msg-id", record["msg_id"])
    assert (done.exit_code, done.stderr) == (0, "")
    for part in ("Clicks/1 #0", record["msg_id"], record["born_host"], *record["properties"].values()):
        assert part in done.stdout
    assert "2026-11-21T03:05:17.922Z at offset 0, 397 bytes" in done.stdout


def bodies(rmq: Rmq, store: Path, number: int) -> str:
    done = rmq("query", store, "--topic", "T", "--queue", 1, "--offset", number)
    assert done.exit_code == 0
    return str(done.stdout)


def test_a_body_is_text_decompressed_where_it_is_text(rmq: Rmq, tmp_path: Path) -> None:
    text = "first line\n\tsecond, 订单, \x1b[31mred\x1b[0m\n" + "long " * 50
    plain = text.encode()
    broken = compress(plain, Compression.ZLIB)[:20]
    write_commitlog(
        tmp_path,
        [
            plain_message("T", plain),
            *(plain_message("T", compress(plain, codec), sys_flag=codec.sys_flag) for codec in Compression),
            plain_message("T", bytes(range(128, 256)) * 3),
            plain_message("T", broken, sys_flag=Compression.ZLIB.sys_flag, properties_bytes=b"WAIT\x01true\x02"),
            plain_message("T", b"", properties_bytes=b"WAIT\x01true\x02CLUSTER\x01cluster\x02"),
        ],
        1 << 20,
    )
    for number in range(4):
        shown = bodies(rmq, tmp_path, number)
        assert "\x1b" not in shown
        assert "first line\n        second, 订单, \\x1b[31mred\\x1b[0m\nlong long" in shown
        assert "long " * 49 in shown  # one line stays one
    assert "as zstd" in bodies(rmq, tmp_path, 3)
    assert "body, 384 B, not text\n80 81 82" in bodies(rmq, tmp_path, 4)
    assert " …" in bodies(rmq, tmp_path, 4)
    assert "body, 20 B: body ends within its zlib stream" in bodies(rmq, tmp_path, 5)
    assert "body, 0 B" in bodies(rmq, tmp_path, 6)


def test_properties_cannot_steer_a_terminal_and_odd_fields_are_shown(rmq: Rmq, tmp_path: Path) -> None:
    properties = encode_properties({"name\x1b[2J": "value\r\n", "[bold]": "[/bold]"})
    message = plain_message("T", properties_bytes=properties, reconsume_times=3, flag=9, sys_flag=8)
    write_commitlog(tmp_path, [message], 4096)
    shown = bodies(rmq, tmp_path, 0)
    assert "\x1b" not in shown
    assert "\r" not in shown
    for part in ("[bold]", "[/bold]", "3 times", "commit", "flag"):
        assert part in shown


def test_only_a_commit_or_a_rollback_names_its_half_message(rmq: Rmq, tmp_path: Path) -> None:
    messages = [
        plain_message("T", properties_bytes=b"WAIT\x01true\x02", sys_flag=flag, prepared_transaction_offset=7)
        for flag in (FLAG_TRANSACTION_PREPARED, FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_ROLLBACK)
    ]
    write_commitlog(tmp_path, messages, 4096)
    shown = [rmq("query", tmp_path, "--msg-id", message.msg_id).stdout for message in Store(tmp_path).messages()]
    lines = [next(line for line in text.splitlines() if "transaction" in line) for text in shown]
    assert [line.split(maxsplit=1)[1].strip() for line in lines] == [
        "prepared", "commit, half message at 7", "rollback, half message at 7",
    ]  # fmt: skip


def test_several_messages_are_counted(rmq: Rmq, golden: Golden) -> None:
    done = rmq("query", golden("mixed") / "store", "--topic", "Orders", "--time", "2026-11-21")
    assert done.stdout.splitlines()[-1] == "4 messages"
