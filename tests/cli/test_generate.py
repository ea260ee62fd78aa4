"""``rmq generate``: what its arguments make."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Rmq, one_line


def records(rmq: Rmq, store: Path) -> list[dict[str, object]]:
    done = rmq("dump", store, "--json")
    assert done.exit_code == 0
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_two_lines_at_the_end_list_written_and_missing_files(rmq: Rmq, tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = rmq("generate", store, "--messages", 1000, "--body-bytes", 100, "--keys")
    assert (done.exit_code, done.stderr) == (0, "")
    written, missing = done.stdout.splitlines()
    assert written.startswith("1,000 messages, ")
    for part in (", 1 file in ", " s, ", " MB/s: ", str(store)):
        assert part in written
    assert missing == f"It has no queues and no Index yet: rmq rebuild {store}, or a broker that opens it, makes them"
    assert rmq("verify", store).exit_code == 1
    assert rmq("rebuild", store).exit_code == 0
    assert rmq("verify", store).exit_code == 0


def test_the_report_has_what_a_program_needs(rmq: Rmq, tmp_path: Path) -> None:
    store = tmp_path / "store"
    report = json.loads(rmq("generate", store, "--messages", 100, "--body-bytes", 10, "--json").stdout)
    assert list(report) == ["store", "messages", "bytes", "files", "seconds", "bytes_per_second"]
    found = records(rmq, store)
    assert (report["messages"], report["bytes"]) == (100, sum(int(str(record["size"])) for record in found))


@pytest.mark.parametrize(
    ("topics", "names"),
    [
        ([], ["TopicTest"]),
        (["--topics", "1"], ["TopicTest"]),
        (["--topics", "3"], ["TopicTest0", "TopicTest1", "TopicTest2"]),
        (["--topics", "Orders"], ["Orders"]),
        (["--topics", "Orders, %RETRY%group"], ["%RETRY%group", "Orders"]),
    ],
)
def test_topics_are_names_or_a_count(rmq: Rmq, tmp_path: Path, topics: list[str], names: list[str]) -> None:
    assert rmq("generate", tmp_path, "--messages", 30, "--body-bytes", 1, *topics).exit_code == 0
    found = records(rmq, tmp_path)
    assert sorted({str(record["topic"]) for record in found}) == names
    assert {record["queue_id"] for record in found} == {0, 1, 2, 3}


def test_keys_tags_queues_and_seed_are_as_requested(rmq: Rmq, tmp_path: Path) -> None:
    options = ["--messages", 20, "--body-bytes", 5, "--queues", 2, "--keys", "--tags", "--seed"]
    for name, seed in (("first", 7), ("again", 7), ("other", 8)):
        assert rmq("generate", tmp_path / name, *options, seed).exit_code == 0
    first, again, other = (records(rmq, tmp_path / name) for name in ("first", "again", "other"))
    assert first == again != other
    assert {record["queue_id"] for record in first} == {0, 1}
    assert all({"KEYS", "TAGS"} <= set(record["properties"]) for record in first)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--topics", "0"], "--topics 0: must be 1 to 100000, or names"),
        (["--topics", "a,a"], "topics must be at least one name, and each only once"),
        (["--topics", "no/name"], "not a topic's name: 'no/name'"),
        (["--queues", "0"], "Invalid value for '--queues'"),
        (["--body-bytes", "99999999"], "body_bytes must be 1 to 4194304"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(rmq: Rmq, tmp_path: Path, arguments: list[str], said: str) -> None:
    done = rmq("generate", tmp_path / "store", "--messages", 1, "--body-bytes", 1, *arguments)
    assert done.exit_code == 2
    assert one_line(done.stderr).startswith(said)
    assert not (tmp_path / "store").exists()


def test_a_store_in_use_is_not_overwritten(rmq: Rmq, tmp_path: Path) -> None:
    arguments = ["generate", tmp_path, "--messages", 1, "--body-bytes", 1]
    assert rmq(*arguments).exit_code == 0
    done = rmq(*arguments)
    assert done.exit_code == 2
    assert "already holds a store" in one_line(done.stderr)
