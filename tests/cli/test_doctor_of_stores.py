"""``rmq doctor STORE``: what operators report is a question, and each answer has three lines."""

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_cli.doctor import store_run
from tests.cli.conftest import Rmq, one_line
from tests.support.stores.store_files import flip, tree
from tests.support.stores.store_lives import FIRST_MS, LogWriter, recovered_log
from tests.support.stores.verified_stores import FILE_BYTES, copied, message, sound_store

START = "why does the broker not start?"
MESSAGES = "why does a group not get messages?"
LAG = "why is the lag negative?"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("doctor") / "store"
    sound_store(root, [message(number) for number in range(60)])
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"Clicks":{},"Orders":{}}}')
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Orders@g":{0:3,1:15}}}')
    return root


@pytest.fixture
def store(base: Path, tmp_path: Path) -> Path:
    return copied(base, tmp_path / "store")


@pytest.fixture
def answers(rmq: Rmq) -> Callable[..., list[dict[str, Any]]]:
    def ask(*arguments: object) -> list[dict[str, Any]]:
        done = rmq("doctor", *arguments, "--json")
        assert done.exit_code in {0, 1}, done.stderr
        parsed: list[dict[str, Any]] = json.loads(done.stdout)["answers"]
        assert done.exit_code == any(answer["is_fault"] for answer in parsed)
        return [answer for answer in parsed if "disk" not in answer["seen"]]

    return ask


Answers = Callable[..., list[dict[str, Any]]]


def test_a_sound_store_has_no_answers_and_is_not_changed(rmq: Rmq, store: Path, answers: Answers) -> None:
    before = tree(store)
    assert answers(store) == []
    text = rmq("doctor", store).stdout
    assert text.count("nothing that explains it") >= 2
    assert f"rmq verify {store}" in text.replace("\n", "")
    assert tree(store) == before


def test_a_large_log_is_verified_on_request(
    rmq: Rmq, store: Path, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_run, "MAX_LOG_BYTES", 1000)
    (answer,) = answers(store)
    assert "log and queues were not compared" in answer["seen"]
    assert (answer["command"], answer["is_fault"]) == (f"rmq doctor {store} --verify", False)
    assert answers(store, "--verify") == []
    assert rmq("doctor", "127.0.0.1:1", "--verify").exit_code == 2


def break_log_size(store: Path) -> None:
    last = max((store / "commitlog").iterdir())
    last.write_bytes(last.read_bytes()[:-100])


def break_queue_size(store: Path) -> None:
    (store / "consumequeue/Orders/0" / f"{0:020d}").write_bytes(bytes(380))


def add_gzip(store: Path) -> None:
    (store / "commitlog" / f"{0:020d}.gz").write_bytes(b"x")


def compress_in_place(store: Path) -> None:
    first = store / "commitlog" / f"{0:020d}"
    first.with_name(f"{first.name}.gz").write_bytes(gzip.compress(first.read_bytes()))
    first.unlink()


def lose_log(store: Path) -> None:
    for file in (store / "commitlog").iterdir():
        file.unlink()


def break_topics(store: Path) -> None:
    (store / "config/topics.json").write_bytes(bytes(300))


def add_queue_file(store: Path) -> None:
    (store / "consumequeue/Orders/0/.DS_Store").write_bytes(b"x")


@pytest.mark.parametrize(
    ("damage", "seen", "command"),
    [
        (break_log_size, "CommitLog files have another size", "rmq repair"),
        (break_queue_size, "ConsumeQueue files have another size", "rmq repair"),
        (add_gzip, ".gz: a file in the CommitLog's directory", "mv "),
        (add_queue_file, ".DS_Store: a file in a queue's directory", "mv "),
        (compress_in_place, ".gz: a segment of the CommitLog that was compressed", "gunzip {store}/commitlog/0000"),
        (lose_log, "no CommitLog file in", "rmq inspect"),
        (break_topics, "topics.json: the file is empty", "rmq repair {store} --what config"),
    ],
)
def test_causes_of_a_failed_start_are_reported(
    store: Path, answers: Answers, damage: Callable[[Path], None], seen: str, command: str
) -> None:
    damage(store)
    found = [answer for answer in answers(store) if seen in answer["seen"]]
    assert [answer["question"] for answer in found] == [START]
    assert found[0]["command"].startswith(command.format(store=store))
    assert found[0]["is_fault"]


def conf(store: Path, **settings: object) -> Path:
    path = store.parent / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def test_settings_are_compared_with_the_store(store: Path, answers: Answers) -> None:
    sizes = {"mappedFileSizeCommitLog": FILE_BYTES, "mappedFileSizeConsumeQueue": 400}
    assert answers(store, "-c", conf(store, storePathRootDir=store, **sizes)) == []
    told = answers(store, "-c", conf(store, storePathRootDir=store))
    assert {answer["command"] for answer in told} == {
        f"set mappedFileSizeCommitLog={FILE_BYTES} in broker.conf", "set mappedFileSizeConsumeQueue=400 in broker.conf",
    }  # fmt: skip
    told = answers(store, "-c", conf(store, storePathRootDir=f"{store} ", storePathIndex="~/index", **sizes))
    assert ["ends with a blank" in told[0]["seen"], "storePathIndex=~/index" in told[1]["seen"]] == [True, True]
    told = answers(store, "-c", conf(store, storePathRootDir=store, storeType="defaultRocksDB", **sizes))
    assert "has its queues in files" in told[0]["seen"]
    told = answers(store, "-c", conf(store, storePathRootDir=store, enableDLegerCommitLog="true", **sizes))
    assert "has no log of DLedger" in told[0]["seen"]


def test_a_group_beyond_its_queue_is_an_answer_to_two_questions(store: Path, answers: Answers) -> None:
    (store / "config/consumerOffset.json").write_text('{"offsetTable":{"Orders@my group":{0:40,1:41},"Gone@g":{0:7}}}')
    told = answers(store)
    assert [answer["question"] for answer in told] == [MESSAGES, LAG] * 2
    (first, *_) = [answer for answer in told if "my group" in answer["seen"]]
    assert first["seen"] == "group my group is at 40 of Orders/0, which ends at 15, and so in 1 more queues"
    assert "the lag is -25" in first["reason"]
    assert first["command"] == f"rmq offsets {store} clamp --group 'my group'"
    assert any("was deleted or lost, and begins anew at 0" in answer["reason"] for answer in told)


def test_a_group_of_a_lost_queue_whose_messages_are_in_the_log_is_left_where_it_is(
    store: Path, answers: Answers
) -> None:
    (store / "config/consumerOffset.json").write_text('{"offsetTable":{"Orders@g":{0:12}}}')
    shutil.rmtree(store / "consumequeue" / "Orders" / "0")
    group_answers = [answer for answer in answers(store) if "group g" in answer["seen"]]
    assert [answer["question"] for answer in group_answers] == [MESSAGES, LAG]
    assert {answer["command"] for answer in group_answers} == {f"rmq repair {store} --plan"}


def test_settings_that_withhold_messages_are_reported(store: Path, answers: Answers) -> None:
    (store / "config/topics.json").write_text(
        '{"topicConfigTable":{"Clicks":{"perm":2},"Orders":{"readQueueNums":1,"writeQueueNums":4}}}'
    )
    (store / "config/subscriptionGroup.json").write_text('{"subscriptionGroupTable":{"g":{"consumeEnable":false}}}')
    seen = [answer["seen"] for answer in answers(store)]
    assert seen == [
        "group g has consumeEnable=false", "topic Clicks has perm=2, without the right to read",
        "topic Orders has 4 queues to write and 1 to read",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "question"),
    [
        ("WARN ReputMessageService - [BUG]logic queue order maybe wrong, expectLogicOffset: 60", MESSAGES),
        ("WARN this usually indicate that the dispatch behind too much and the commitlog", MESSAGES),
        ("java.lang.RuntimeException: Lock failed,MQ already started", START),
        ("/s/0\t8 length not matched message store config value, please check it manually", START),
        ("INFO the request offset: 101254 over flow badly, fix to 7157", LAG),
        ("MQClientException: CODE: 208  DESC: query message by id finished, but no message.", MESSAGES),
        ("Caused by: java.lang.OutOfMemoryError: Map failed", START),
        ("WARN The commitlog files are deleted, and delete the consume queue files", MESSAGES),
        ("ERROR load /s/config/topics.json failed, and try to load backup file", START),
        ("ERROR physic disk maybe full soon 0.96, so mark disk full", MESSAGES),
    ],
)
def test_known_lines_of_logs_are_explained(
    store: Path, answers: Answers, tmp_path: Path, line: str, question: str
) -> None:
    log = tmp_path / "store.log"
    log.write_text(f"2026-11-27 INFO main - ok\n{line}\n" * 2)
    (answer,) = answers(store, "--log", log) if "disk" not in line else [{"question": question, "seen": "2 times"}]
    assert answer["question"] == question
    assert "2 times" in answer["seen"]


def test_a_hostile_log_is_printed_without_control_characters(rmq: Rmq, store: Path, tmp_path: Path) -> None:
    log = tmp_path / "store.log"
    log.write_text("\x1b[2JLock failed,MQ already started\x1b]0;x\x07\n")
    assert "\x1b" not in rmq("doctor", store, "--log", log).stdout


def test_what_is_no_store_is_refused(rmq: Rmq, store: Path) -> None:
    assert one_line(rmq("doctor", store.parent).stderr) == f"{store.parent} holds no store; {store} is one"
    assert "no such store" in one_line(rmq("doctor", store / "nowhere").stderr)
    assert "--log" in one_line(rmq("doctor", store, "--log", store / "no.log").stderr)


def topic_made_again() -> LogWriter:
    log = LogWriter()
    for number in range(10):
        log.add("Orders", number, "old", FIRST_MS + number)
    log.forget("Orders")
    for number in range(5):
        log.add("Orders", number, "new", FIRST_MS + 100 + number)
    return log


def idle_topic() -> LogWriter:
    log = LogWriter(file_bytes=4096)
    for number in range(10):
        log.add("Idle", number, "old", FIRST_MS + number)
    for number in range(40):
        log.add("Busy", number, "new", FIRST_MS + 1000 + number)
    del log.files[0]
    return log


def clock_set_back() -> LogWriter:
    log = LogWriter()
    for number in range(60):
        log.add("Orders", number, "x", FIRST_MS + number - (86_400_000 if 20 <= number < 40 else 0))
    return log


def other_delay() -> LogWriter:
    log, topic = LogWriter(), "SCHEDULE_TOPIC_XXXX"
    for number in range(40):
        log.add(topic, number, "x", FIRST_MS + number, queue_id=2)
        delay_ms = 20_000 if number < 20 else 10_000
        log.units[topic, 2, number] = replace(log.units[topic, 2, number], tags_code=FIRST_MS + number + delay_ms)
    return log


def closed_gap() -> LogWriter:
    log = LogWriter()
    for place, offset in enumerate([*range(50), *range(52, 100), *range(98, 110)]):
        log.add("Orders", offset, "x", FIRST_MS + place, place=place)
    return log


@pytest.mark.parametrize(
    ("life", "seen", "command"),
    [
        (
            topic_made_again,
            "Orders/0: the topic was deleted and made again, and 10 messages of its former life",
            "rmq inspect {store} --unqueued -c {conf}",
        ),
        (
            idle_topic,
            "all messages of Idle/0 have expired; the queue ends at 10",
            "rmq offsets {store} --topic Idle -c {conf}",
        ),
        (clock_set_back, "the broker's clock went back once, from 2026-11-21T", "rmq verify {store} -c {conf}"),
        (
            other_delay,
            "SCHEDULE_TOPIC_XXXX/2: queue offsets 0 to 19 have a delay of 20 s",
            "rmq offsets {store} -c {conf}",
        ),
        (closed_gap, "Orders/0: no record has the queue offsets 50 to 51", "rmq verify {store} -c {conf}"),
        (recovered_log, "a recovery left 29 records after it", "rmq dump {store} --unqueued -c {conf}"),
    ],
)
def test_what_only_looks_wrong_is_explained_and_no_fault(
    tmp_path: Path, answers: Answers, life: Callable[[], LogWriter], seen: str, command: str
) -> None:
    log = life()
    store = log.save(tmp_path / "store")
    if life is idle_topic:
        (store / "config").mkdir(exist_ok=True)
        (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Idle@g":{0:10}}}')
    file = conf(store, storePathRootDir=store, mappedFileSizeCommitLog=log.file_bytes, mappedFileSizeConsumeQueue=2000)
    (answer,) = answers(store, "-c", file)
    assert answer["seen"].startswith(seen) or seen in answer["seen"]
    assert answer["command"] == command.format(store=store, conf=file)
    assert (answer["question"], answer["is_fault"]) == (MESSAGES, False)


def test_damage_of_the_log_leads_to_its_repair(store: Path, answers: Answers) -> None:
    flip(store, 120, FILE_BYTES)
    (answer,) = answers(store)
    assert (answer["command"], answer["is_fault"]) == (f"rmq repair {store} --plan", True)
    assert "commitlog." in answer["seen"]


def test_lost_config_is_made_anew_by_the_command_that_does_it(store: Path, answers: Answers) -> None:
    (store / "config/topics.json").write_bytes(bytes(300))
    file = conf(store, storePathRootDir=store, mappedFileSizeCommitLog=FILE_BYTES, mappedFileSizeConsumeQueue=400)
    (answer,) = answers(store, "-c", file)
    assert answer["command"] == f"rmq repair {store} --what config"


def test_what_cannot_be_listed_is_an_answer(store: Path, answers: Answers) -> None:
    shutil.rmtree(store / "commitlog")
    (store / "commitlog").symlink_to("commitlog")
    (answer, *_) = answers(store)
    assert answer["question"] == START
    assert "commitlog: cannot be listed (Too many levels of symbolic links)" in answer["seen"]


def test_a_name_of_any_length_makes_no_endless_line(rmq: Rmq, store: Path) -> None:
    offsets = json.dumps({"offsetTable": {f"Orders@{'g' * 100_000}": {"0": 99}}})
    (store / "config/consumerOffset.json").write_text(offsets)
    lines = rmq("doctor", store).stdout.splitlines()
    assert max(map(len, lines)) < 1100
    assert any("--json has all" in line for line in lines)
