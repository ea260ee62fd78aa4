"""``rmq broker`` and ``rmq standalone`` as processes, and their settings."""

import asyncio
import json
import signal
import socket
from pathlib import Path

import pytest

from rmq_core.broker.config import load_config
from rmq_core.broker.ignored_keys import FIXED_VALUES, IGNORED
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.settings import changed_settings
from rmq_core.store.config import FlushDiskType
from rmq_formats.errors import OptionError
from tests.support.processes.broker_processes import failure, standalone

SMALL = "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=2000\nmaxHashSlotNum=500\nmaxIndexNum=2000\n"


def conf(tmp_path: Path, text: str = "", name: str = "broker.conf") -> str:
    file = tmp_path / name
    file.write_text((SMALL if name.endswith("conf") else "") + text)
    return str(file)


def ask(address: str, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
    async def invoke() -> RemotingCommand:
        async with RemotingClient() as client:
            return await client.invoke(address, request(code, fields, body), 5)

    return asyncio.run(invoke())


def send(address: str, body: bytes) -> RemotingCommand:
    fields = dict(zip("abcdefghm", ["pg", "T", "TBW102", "4", "0", "0", "1", "0", "false"], strict=True))
    return ask(address, 310, fields, body)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_serves_until_it_is_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    store = tmp_path / "store"
    with standalone(store, "-c", conf(tmp_path), log=tmp_path / "log") as running:
        assert send(running.broker, b"kept").code == 0
        route = ask(running.namesrv, 105, {"topic": "T"})
        assert running.broker in bytes(route.body).decode()
        assert (store / "abort").exists()
        running.process.send_signal(number)
        assert running.process.wait(timeout=30) == 0
        assert "Traceback" not in running.errors.read_text()
    assert not (store / "abort").exists()
    topics = json.loads((store / "config" / "topics.json").read_text())
    assert topics["topicConfigTable"]["T"]["readQueueNums"] == 4


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    settings = conf(tmp_path, "flushDiskType=SYNC_FLUSH\n")
    for round_number in range(2):
        with standalone(tmp_path / "store", "-c", settings, log=tmp_path / "log") as running:
            answer = send(running.broker, b"kept")
            assert (answer.code, answer.ext_fields["queueOffset"]) == (0, str(round_number))
            running.process.kill()


def test_a_port_in_use_is_one_line_and_exit_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        arguments = ["--store", str(tmp_path / "store"), "--listen", f"127.0.0.1:{port}", "-c", conf(tmp_path)]
        errors = failure("broker", *arguments)
        assert f"rmq: 127.0.0.1:{port}: cannot listen" in errors
        arguments[3] = f"127.0.0.1:{port + 2}"
        assert f"rmq: 127.0.0.1:{port}: cannot listen" in failure("broker", *arguments)
    assert errors.count("\n") == 1
    assert not (tmp_path / "store" / "abort").exists()


def test_a_locked_store_is_one_line_and_exit_2(tmp_path: Path) -> None:
    with standalone(tmp_path / "store", "-c", conf(tmp_path), log=tmp_path / "log") as running:
        errors = failure("broker", "--store", str(tmp_path / "store"), "--listen", "127.0.0.1:0", "-c", conf(tmp_path))
        assert str(tmp_path / "store") in errors
        assert errors.count("\n") == 1
        assert send(running.broker, b"still here").code == 0


def test_a_store_of_other_sizes_is_one_line_and_exit_2(tmp_path: Path) -> None:
    with standalone(tmp_path / "store", "-c", conf(tmp_path), log=tmp_path / "log") as running:
        assert send(running.broker, b"x").code == 0
        assert running.stop() == 0
    other = conf(tmp_path, "mappedFileSizeCommitLog=65536\n")
    errors = failure("broker", "--store", str(tmp_path / "store"), "--listen", "127.0.0.1:0", "-c", other)
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("listenPrt=1\n", "unknown key 'listenPrt'"),
        ("listenPort=many\n", "listenPort: 'many' is not of type int"),
        ("listenPort=70000\n", "70000 is not between 0 and 65535"),
        ("mappedFileSizeCommitLog=big\n", "mappedFileSizeCommitLog has a bad value"),
        ("flushDiskType=SOMETIMES\n", "flushDiskType has a bad value"),
        ("messageDelayLevel=1s 5x\n", "delay level"),
        ("brokerRole=SLAVE\n", "only a master"),
        ("brokerIP2=10.0.0.1:10912\n", "brokerIP2 is no address: '10.0.0.1:10912'"),
        ("aclEnable=true\n", "aclEnable=true is not supported: the only value is false"),
        ("messageStorePlugIn=org.x.Y\n", "messageStorePlugIn=org.x.Y is not supported: it has to be empty"),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        load_config("/store", Path(conf(tmp_path, text)), {}, {})


@pytest.mark.parametrize(
    ("text", "told"), [("listenPrt=1\n", "unknown key 'listenPrt'"), ("brokerIP1=nowhere\n", "brokerIP1 is no address")]
)
def test_bad_settings_are_one_line_and_exit_2(tmp_path: Path, text: str, told: str) -> None:
    arguments = ("--store", str(tmp_path / "store"), "--listen", "127.0.0.1:0", "-c", conf(tmp_path, text))
    errors = failure("broker", *arguments)
    assert told in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("broker", "--store", "{}", "--listen", "nonsense"),
        ("broker", "--store", "{}", "--namesrv", "nonsense"),
        ("broker", "--store", "{}", "-c", "{}/none.conf"),
        ("broker",),
        ("standalone", "--store", "{}", "--broker-listen", "1.2.3.4.5:0", "--listen", "127.0.0.1:0"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    errors = failure(*(argument.format(tmp_path) for argument in arguments))
    assert errors.splitlines()[-1].startswith("rmq: ")


def test_a_directory_that_cannot_be_written_is_one_line_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    errors = failure("broker", "--store", str(tmp_path / "file" / "store"), "--listen", "127.0.0.1:0")
    assert errors.splitlines()[-1].startswith("rmq: ")


def test_a_file_in_the_place_of_a_store_is_named(tmp_path: Path) -> None:
    file = conf(tmp_path)
    with pytest.raises(OptionError, match=r"broker\.conf: is a file, not the directory of a store"):
        load_config(file, None, {}, {})
    in_the_file = conf(tmp_path, f"storePathRootDir={file}\n", "other.conf")
    with pytest.raises(OptionError, match=r"broker\.conf: is a file, not the directory of a store"):
        load_config(None, Path(in_the_file), {}, {})


def test_a_file_may_be_toml_and_use_either_name(tmp_path: Path) -> None:
    file = conf(
        tmp_path,
        'brokerName = "b"\nlisten_port = 0\nmappedFileSizeCommitLog = 65536\n'
        'flush_disk_type = "SYNC_FLUSH"\nenableConsumeQueueExt = true\n',
        "broker.toml",
    )
    config, store, passed_over = load_config("/store", Path(file), {}, {"RMQ_BROKER_BROKER_CLUSTER_NAME": "c"})
    assert (config.broker_name, config.broker_cluster_name, store.root) == ("b", "c", "/store")
    assert (store.commitlog_file_bytes, store.flush_disk_type) == (65536, FlushDiskType.SYNC)
    assert store.consumequeue_ext_enabled
    assert passed_over == []


@pytest.mark.parametrize("key", sorted(FIXED_VALUES))
def test_what_is_promised_and_not_there_is_refused_in_one_line(tmp_path: Path, key: str) -> None:
    """At the start and over the wire; the value that promises nothing is taken."""
    nothing, *others = FIXED_VALUES[key].split("|")
    something = {"false": "true", "true": "false"}.get(nothing, "other")
    config, _, passed_over = load_config("/store", Path(conf(tmp_path, f"{key}={nothing}\n")), {}, {})
    assert passed_over == []
    for other in others:
        load_config("/store", Path(conf(tmp_path, f"{key}={other}\n")), {}, {})
    with pytest.raises(OptionError, match=rf"broker.conf: {key}={something} is not supported"):
        load_config("/store", Path(conf(tmp_path, f"{key} = {something}\n")), {}, {})
    assert changed_settings(config, {key: nothing}, FIXED_VALUES) == {}
    with pytest.raises(OptionError, match=f"^{key}={something} is not supported"):
        changed_settings(config, {key: something, "brokerPermission": "4"}, FIXED_VALUES)
    assert key not in IGNORED


def test_settings_of_the_black_list_are_not_changed_over_the_wire(tmp_path: Path) -> None:
    text = "configBlackList=brokerPermission; autoCreateTopicEnable\n"
    config, _, _ = load_config("/store", Path(conf(tmp_path, text)), {}, {})
    for key in ("brokerPermission", "broker_permission", "autoCreateTopicEnable"):
        with pytest.raises(OptionError, match=f"{key} is in configBlackList"):
            changed_settings(config, {"longPollingEnable": "false", key: "4"}, FIXED_VALUES)
    assert changed_settings(config, {"longPollingEnable": "false"}, FIXED_VALUES) == {"long_polling_enable": False}


@pytest.mark.parametrize("command", ["broker", "standalone"])
def test_a_promise_that_is_not_kept_is_exit_2(tmp_path: Path, command: str) -> None:
    file = conf(tmp_path, "sendMessageThreadPoolNums=16\nuseTLS=true\n")
    errors = failure(command, "--store", str(tmp_path / "store"), "--listen", "127.0.0.1:0", "-c", file)
    assert errors == f"rmq: {file}: useTLS=true is not supported: the only value is false\n"
    assert not (tmp_path / "store").exists()


def test_keys_of_the_original_that_mean_nothing_here_are_told(tmp_path: Path) -> None:
    file = conf(tmp_path, "sendMessageThreadPoolNums=16\nstorePathRootDir=/other\nstorePathCommitLog=/other/log\n")
    _, store, passed_over = load_config(None, Path(file), {}, {})
    assert passed_over == ["sendMessageThreadPoolNums"]
    assert (store.root, store.commitlog_path) == ("/other", "/other/log")
    _, store, _ = load_config("/mine", Path(file), {}, {})
    assert store.commitlog_path == "/mine/commitlog"
    with pytest.raises(OptionError, match="no store"):
        load_config(None, None, {}, {})
