"""``-c broker.conf``: commands find the log where a broker has it, and take its sizes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.errors import OptionError
from rmq_formats.storage.broker_conf import read_broker_conf
from rmq_formats.storage.store_files import LOG_PATHS_VARIABLE
from tests.cli.conftest import Rmq, one_line
from tests.support.stores.store_files import tree

Golden = Callable[[str], Path]


@pytest.fixture(autouse=True)
def forget_log_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no store's log directories to the tests that follow."""
    monkeypatch.setenv(LOG_PATHS_VARIABLE, "{}")


@pytest.fixture
def store(copy_of: Golden) -> Path:
    return copy_of("mixed")


def write_conf(path: Path, **settings: object) -> Path:
    path.write_text("# a broker's settings\n" + "".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


@pytest.fixture(params=["one", "commas", "colons", "read-only"])
def conf(request: pytest.FixtureRequest, store: Path, tmp_path: Path) -> Path:
    """Move the log of a store out of it, into one directory or two, and write the settings that say so."""
    first, second = tmp_path / "disk1" / "commitlog", tmp_path / "disk2" / "commitlog"
    for directory in (first, second):
        directory.mkdir(parents=True)
    for number, file in enumerate(sorted((store / "commitlog").iterdir())):
        file.rename((first if request.param == "one" or number % 2 else second) / file.name)
    (store / "commitlog").rmdir()
    values: dict[str, object] = {
        "one": {"storePathCommitLog": first},
        "commas": {"storePathCommitLog": f"{first},{second}"},
        "colons": {"storePathCommitLog": f"{first}:{second}"},
        "read-only": {"storePathCommitLog": f"{first},", "readOnlyCommitLogStorePaths": f"{second},"},
    }[request.param]
    return write_conf(
        tmp_path / "broker.conf",
        brokerName="b",
        namesrvAddr="127.0.0.1:9876",
        storePathRootDir=store,
        unknownSetting="whatever",
        mappedFileSizeCommitLog=1048576,
        **values,
    )


def test_commands_read_a_log_that_is_elsewhere(rmq: Rmq, store: Path, conf: Path, golden: Golden) -> None:
    whole = golden("mixed") / "store"
    assert rmq("verify", store, "-c", conf, "--workers", 1).exit_code == 0
    inspected = json.loads(rmq("inspect", store, "-c", conf, "--json").stdout)
    assert inspected["commitlog"]["messages"] == 3234
    assert rmq("dump", store, "-c", conf, "--json").stdout == rmq("dump", whole, "--json").stdout
    query = ("--topic", "Orders", "--queue", "0", "--offset", "3", "--json")
    assert rmq("query", store, "-c", conf, *query).stdout == rmq("query", whole, *query).stdout != ""
    before = {name: tree(store / name) for name in ("consumequeue", "index")}
    assert rmq("rebuild", store, "-c", conf, "--workers", 1).exit_code == 0
    assert {name: tree(store / name) for name in before if name == "consumequeue"} == {
        "consumequeue": before["consumequeue"]
    }
    out = store.parent / "converted"
    assert rmq("convert", store, "-c", conf, "--to", "rocksdb", "--out", out, "--workers", 1).exit_code == 0
    assert len(list((out / "commitlog").iterdir())) == len(list((whole / "commitlog").iterdir()))


def test_a_copy_of_a_store_is_read_below_its_own_root(rmq: Rmq, store: Path, tmp_path: Path) -> None:
    former = "/data/rocketmq/store"
    (store / "commitlog").rename(store / "log")
    conf = write_conf(tmp_path / "broker.conf", storePathRootDir=former, storePathCommitLog=f"{former}/log")
    assert rmq("verify", store, "-c", conf, "--workers", 1).exit_code == 0


def test_the_log_of_another_store_is_not_read(rmq: Rmq, store: Path, golden: Golden, tmp_path: Path) -> None:
    other = golden("crash") / "store"
    conf = write_conf(
        tmp_path / "broker.conf", storePathRootDir=other, storePathCommitLog=golden("crash") / "store/commitlog"
    )
    assert rmq("verify", store, "-c", conf, "--workers", 1).exit_code == 0  # below that root, so below this one
    conf = write_conf(tmp_path / "broker.conf", storePathRootDir="/data/a", storePathCommitLog=other / "commitlog")
    done = rmq("verify", store, "-c", conf)
    assert done.exit_code == 2
    assert "has files of its own" in one_line(done.stderr)


def test_a_size_option_wins_over_the_file(rmq: Rmq, store: Path, tmp_path: Path) -> None:
    conf = write_conf(tmp_path / "broker.conf", mappedFileSizeConsumeQueue=4000, maxHashSlotNum=77, maxIndexNum=99)
    by_file = json.loads(rmq("verify", store, "-c", conf, "--workers", 1, "--json").stdout)
    assert "consumequeue.file.size" in by_file["finding_counts"]
    won = rmq(
        "verify",
        store,
        "-c",
        conf,
        "--workers",
        1,
        "--consumequeue-file-bytes",
        2000,
        "--index-slots",
        500,
        "--index-entries",
        2000,
    )
    assert won.exit_code == 0


def test_a_broker_without_an_index_lacks_none(rmq: Rmq, store: Path, tmp_path: Path) -> None:
    shutil.rmtree(store / "index")
    assert rmq("verify", store, "--workers", 1).exit_code == 1
    conf = write_conf(tmp_path / "broker.conf", messageIndexEnable="false")
    assert rmq("verify", store, "-c", conf, "--workers", 1).exit_code == 0


def test_a_rebuild_without_sizes_uses_the_sizes_of_the_files(rmq: Rmq, store: Path) -> None:
    before = tree(store / "consumequeue")
    done = rmq("rebuild", store, "--workers", 1)
    assert (done.exit_code, done.stderr) == (0, "")
    assert tree(store / "consumequeue") == before
    assert rmq("verify", store, "--workers", 1).exit_code == 0


def test_toml_has_the_names_of_our_settings(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        "consumequeue_file_bytes = 50\nmappedFileSizeCommitLog = 65536\nconsumequeue_ext_enabled = true\n"
        'commitlog_path = "/a,/b"\nindex_tags = "yes"\ndelay_levels = "1s 1m"\n'
    )
    conf = read_broker_conf(str(file))
    assert conf.sizes == {
        "consumequeue_file_bytes": 60, "commitlog_file_bytes": 65536, "consumequeue_ext_file_bytes": 48 << 20,
        "tags_from": 0, "delay_levels_ms": (1000, 60_000),
    }  # fmt: skip
    assert conf.commitlog_paths == ("/a", "/b")


@pytest.mark.parametrize(
    "line", ["maxIndexNum=many", "messageDelayLevel=1x", "enableConsumeQueueExt=1", "indexTags=si"]
)
def test_a_bad_value_is_named_with_its_file(tmp_path: Path, line: str) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(line)
    key, _, value = line.partition("=")
    with pytest.raises(OptionError, match=f"broker.conf: {key} has a bad value: '{value}'"):
        read_broker_conf(str(file))


def test_a_config_inside_of_a_store_is_not_followed(rmq: Rmq, store: Path, golden: Golden) -> None:
    elsewhere = golden("crash") / "store" / "commitlog"
    for name in ("broker.conf", "config/broker.conf", "config/broker.properties"):
        write_conf(store / name, storePathCommitLog=elsewhere, mappedFileSizeConsumeQueue=4000)
    assert json.loads(rmq("inspect", store, "--json").stdout)["commitlog"]["messages"] == 3234


def test_a_missing_directory_of_the_log_is_one_line(rmq: Rmq, store: Path, tmp_path: Path) -> None:
    shutil.rmtree(store / "commitlog")
    conf = write_conf(tmp_path / "broker.conf", storePathCommitLog=tmp_path / "nowhere")
    for command in ("verify", "inspect", "rebuild", "query", "dump", "repair"):
        done = rmq(command, store, "-c", conf)
        assert done.exit_code == 2
        if command != "query":
            assert one_line(done.stderr).endswith("nowhere: no such directory")


def test_the_next_command_repeats_the_settings_of_this_one(rmq: Rmq, store: Path, conf: Path) -> None:
    (store / "consumequeue").rename(store.parent / "consumequeue")
    sizes = ("--index-slots", 100, "--delay-levels", "1s 5s")
    text = rmq("verify", store, "-c", conf, *sizes, "--workers", 1).stdout
    assert f"next: rmq repair {store} --plan -c {conf} --index-slots 100 --delay-levels '1s 5s'\n" in text
    assert f"next: rmq verify {store} -c {conf} --index-slots 100\n" in (
        rmq("checkpoint", store, "-c", conf, *sizes[:2], "--workers", 1).stdout
    )
    assert " -c " not in rmq("verify", store, "--workers", 1).stdout.replace(" -c broker.conf", "")
