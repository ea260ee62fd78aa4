"""``rmq produce`` and ``rmq consume`` as processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import one_line
from tests.client.scenarios import fresh, known
from tests.client.test_at_our_broker import namesrv as namesrv  # noqa: PLC0414 # the fixture
from tests.client.test_at_our_broker import standalone
from tests.support.processes import warm_processes

MAIN = "from rmq_cli.main import main; main()"
TIMEOUT_S = 60


def rmq(*arguments: str, lines: bytes = b"", code: int = 0) -> "subprocess.CompletedProcess[bytes]":
    """Run a command to its end."""
    done = warm_processes.run(
        [sys.executable, "-c", MAIN, *arguments], input=lines, capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == code, done.stderr.decode()
    return done


@pytest.fixture
def topic() -> str:
    """A topic that no other test has."""
    return fresh("Lines")


def sorted_lines(output: bytes) -> list[bytes]:
    return sorted(output.splitlines())


@pytest.mark.parametrize("start", ["first", "last"])
async def test_reading_without_a_group_leaves_none_behind(namesrv: str, topic: str, start: str) -> None:
    rmq("produce", "--namesrv", namesrv, "--topic", topic, lines=b"a\nb\n")
    await known(namesrv, topic)
    rmq("consume", "--namesrv", namesrv, "--topic", topic, "--from", start, "--timeout", "1")
    assert b"CONSOLE_CONSUMER" not in rmq("admin", "consumerProgress", "-n", namesrv).stdout


async def test_lines_go_in_and_come_out(namesrv: str, topic: str) -> None:
    done = rmq("produce", "--namesrv", namesrv, "--topic", topic, "--tags", "A", lines=b"one\r\n\ntwo\nthree")
    assert done.stderr == b"3 messages sent\n"
    await known(namesrv, topic)
    read = "consume", "--namesrv", namesrv, "--topic", topic, "--from", "first"
    assert sorted_lines(rmq(*read, "--limit", "3").stdout) == [b"one", b"three", b"two"]
    assert rmq(*read, "--tags", "B", "--timeout", "0.5").stdout == b""
    printed = rmq(*read, "--timeout", "1", "--json").stdout
    assert {json.loads(line)["tags"] for line in printed.splitlines()} == {"A"}
    other = fresh("Copy")
    results = rmq("produce", "--namesrv", namesrv, "--topic", other, "--json", lines=printed).stdout
    assert {json.loads(line)["status"] for line in results.splitlines()} == {"SEND_OK"}
    await known(namesrv, other)
    copied = rmq("consume", "--namesrv", namesrv, "--topic", other, "--from", "first", "--limit", "3").stdout
    assert sorted_lines(copied) == [b"one", b"three", b"two"]


@pytest.mark.long
async def test_a_file_is_sent_in_its_order(namesrv: str, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"%05d\n" % number for number in range(20_000)))
    done = rmq("produce", str(file), "--namesrv", namesrv, "--topic", topic, "--in-flight", "1")
    assert done.stderr == b"20,000 messages sent\n"
    await known(namesrv, topic)
    lines = rmq("consume", "--namesrv", namesrv, "--topic", topic, "--from", "first", "--limit", "20000").stdout
    assert sorted_lines(lines) == file.read_bytes().splitlines()


async def test_a_group_goes_on_where_it_was(namesrv: str, topic: str) -> None:
    rmq("produce", "--namesrv", namesrv, "--topic", topic, lines=b"a\nb\nc\nd\n")
    await known(namesrv, topic)
    join = "consume", "--namesrv", namesrv, "--topic", topic, "--from", "first", "--group", fresh("group")
    first = rmq(*join, "--limit", "3").stdout
    second = rmq(*join, "--timeout", "3").stdout
    assert len(first.splitlines()) == 3
    assert sorted_lines(first + second) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_and_what_was_printed_is_committed(
    namesrv: str, topic: str, number: signal.Signals
) -> None:
    rmq("produce", "--namesrv", namesrv, "--topic", topic, lines=b"a\n")
    await known(namesrv, topic)
    join = "consume", "--namesrv", namesrv, "--topic", topic, "--from", "first", "--group", fresh("group")
    with warm_processes.Popen([sys.executable, "-c", MAIN, *join], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"a\n"
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 0
    assert rmq(*join, "--timeout", "3").stdout == b""


async def test_a_timeout_is_an_error_where_a_broker_does_not_answer(tmp_path: Path, topic: str) -> None:
    with standalone(tmp_path) as (broker, namesrv, address):
        rmq("produce", "--namesrv", namesrv, "--topic", topic, lines=b"a\n")
        await known(namesrv, topic)
        read = "consume", "--namesrv", namesrv, "--topic", topic, "--from", "first", "--timeout", "2"
        with warm_processes.Popen(
            [sys.executable, "-c", MAIN, *read], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"a\n"
            broker.kill()
            assert process.wait(TIMEOUT_S) == 2
            assert process.stderr.read().decode().splitlines()[-1].startswith(f"rmq: {address}: cannot connect")


@pytest.mark.parametrize(
    ("arguments", "lines", "reason"),
    [
        (["produce"], b"", "give --topic"),
        (["produce", "--json", "--tags", "A"], b"", "tags and keys are in the lines"),
        (["produce", "--topic", "a/b"], b"x\n", "line 1: code 13: topic 'a/b'"),
        (["produce", "--topic", "T"], b"\nx\n", "line 2: 127.0.0.1:1: cannot connect"),
        (["produce", "--topic", "T", "--json"], b'{"body":"x","tgs":"y"}\n', "line 1: code 13: not a message"),
        (["produce", "--topic", "T", "/no/such/file"], b"", "/no/such/file: No such file"),
        (["produce", "--topic", "T", "/"], b"", "/: Is a directory"),
        (["produce", "--topic", "T", "--in-flight", "0"], b"", "--in-flight"),
        (["consume", "--topic", "T"], b"", "127.0.0.1:1: cannot connect"),
        (["consume", "--topic", "T", "--from", "yesterday"], b"", "--from yesterday: first, last, or a time"),
        (["consume", "--topic", "T", "--group", "a b"], b"", "group 'a b'"),
        (["consume", "--topic", "T", "--group", "g"], b"", "127.0.0.1:1: cannot connect"),
        (["consume", "--topic", "T", "--tags", "A", "--sql", "a > 1"], b"", "not both"),
        (["consume"], b"", "--topic"),
    ],
)
def test_errors_are_one_line(arguments: list[str], lines: bytes, reason: str) -> None:
    done = rmq(*arguments, "--namesrv", "127.0.0.1:1", lines=lines, code=2)
    assert reason in one_line(done.stderr.decode())
    assert done.stdout == b""


@pytest.mark.parametrize("group", [[], ["--group", "g"]])
async def test_a_topic_that_does_not_exist_is_told(namesrv: str, group: list[str]) -> None:
    name = fresh("none")
    done = rmq("consume", "--namesrv", namesrv, "--topic", name, *group, code=2)
    assert one_line(done.stderr.decode()) == f"code 17: {name}: no name server knows this topic"


def test_the_address_may_come_from_the_environment() -> None:
    done = warm_processes.run(
        [sys.executable, "-c", MAIN, "consume", "--topic", "T"],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "NAMESRV_ADDR": "127.0.0.1:2"},
    )
    assert b"127.0.0.1:2" in done.stderr
