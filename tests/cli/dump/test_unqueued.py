"""``rmq dump --unqueued`` and ``rmq inspect --unqueued``: messages in the log and in no queue, with the reason."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Rmq, one_line
from tests.support.stores.store_lives import FIRST_MS, LogWriter


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with messages that no queue has for each reason."""
    log = LogWriter()
    for number in range(5):
        log.add("Again", number, f"former {number}", FIRST_MS + number)
    for number in range(3):
        log.add("Gone", number, f"deleted {number}", FIRST_MS + 10 + number)
    log.forget("Again")
    log.forget("Gone")
    for number in range(20):
        log.add("Again", number, f"live {number}", FIRST_MS + 100 + number)
    units = dict(log.units)
    log.add("Again", 7, "repeated", FIRST_MS + 200)
    log.units = units
    log.add("Again", 20, "live 20", FIRST_MS + 201)
    cut = log.end
    for number in range(21, 30):
        log.add("Again", number, f"leftover {number}", FIRST_MS + 300 + number)
    log.cut(cut)
    log.add("Again", 21, "live 21, and longer", FIRST_MS + 9000)
    return log.save(tmp_path / "store")


def test_each_message_without_a_queue_is_listed_with_its_reason(rmq: Rmq, store: Path) -> None:
    done = rmq("dump", store, "--unqueued", "--json", "--no-body")
    assert done.exit_code == 0
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    reasons = [(row["topic"], row["reason"]) for row in rows]
    assert reasons[:9] == [("Again", "former")] * 5 + [("Gone", "deleted")] * 3 + [("Again", "skipped")]
    assert set(reasons[9:]) == {("Again", "leftover")}
    text = rmq("dump", store, "--unqueued", "--topic", "Gone", "--limit", "1").stdout
    assert "Gone/0 #0  deleted: its topic has no queue" in text
    assert "deleted 0" in text


def test_sums_by_topic_and_reason_are_printed(rmq: Rmq, store: Path) -> None:
    done = rmq("inspect", store, "--unqueued", "--json")
    assert done.exit_code == 0
    sums = {(row["topic"], row["reason"]): row["messages"] for row in json.loads(done.stdout)["unqueued"]}
    assert sums.pop(("Again", "leftover")) > 5
    assert sums == {("Again", "former"): 5, ("Gone", "deleted"): 3, ("Again", "skipped"): 1}
    assert "deleted: its topic" in rmq("inspect", store, "--unqueued").stdout


def test_a_dump_of_the_log_ends_at_the_logs_end_with_a_notice(rmq: Rmq, store: Path) -> None:
    done = rmq("dump", store, "--json", "--no-body")
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 5 + 3 + 20 + 1 + 2
    assert "a recovery left the records after it" in one_line(done.stderr)


def test_what_is_no_store_or_has_no_queues_is_refused(rmq: Rmq, store: Path, tmp_path: Path) -> None:
    done = rmq("dump", store / "commitlog", "--unqueued")
    assert done.exit_code == 2
    assert "give a store: its queues are needed" in done.stderr
    alone = LogWriter()
    alone.add("Orders", 0, "body", FIRST_MS)
    alone.units = {}
    done = rmq("inspect", alone.save(tmp_path / "alone"), "--unqueued")
    assert done.exit_code == 2
    assert "no queue, so that nothing tells" in done.stderr
