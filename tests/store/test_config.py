"""Settings, and the config files that are kept beside the store."""

from pathlib import Path

import pytest

from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_core.store.files import config_files
from rmq_core.store.files.disk import Disk
from rmq_formats.errors import DecodeError, OptionError


def test_properties_of_broker_conf_have_their_own_names() -> None:
    config = StoreConfig.from_properties({
        "storePathRootDir": "/data/store", "mappedFileSizeCommitLog": " 1048576 ", "flushDiskType": "SYNC_FLUSH",
        "messageIndexEnable": "False", "mappedFileSizeConsumeQueue": "2001", "brokerName": "b",
    })  # fmt: skip
    assert config.commitlog_path == "/data/store/commitlog"
    assert config.commitlog_file_bytes == 1 << 20
    assert config.flush_disk_type is FlushDiskType.SYNC
    assert not config.index_enabled
    assert config.consumequeue_file_bytes == 2020, "whole units"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mappedFileSizeCommitLog", "1g"),
        ("mappedFileSizeCommitLog", "10"),
        ("flushDiskType", "NO_FLUSH"),
        ("messageIndexEnable", "yes"),
        ("maxIndexNum", "1"),
        ("diskMaxUsedSpaceRatio", "101"),
        ("deleteWhen", "25"),
        ("messageDelayLevel", "1x"),
        ("storePathRootDir", ""),
        ("storePathCommitLog", "/a,/b"),
        ("fileReservedTime", "-1"),
    ],
)
def test_a_bad_value_is_an_error_that_names_it(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=name) as caught:
        StoreConfig.from_properties({"storePathRootDir": "/data/store", name: value})
    assert "\n" not in str(caught.value)


def test_a_config_file_is_replaced_whole_and_the_text_before_kept(tmp_path: Path) -> None:
    path = tmp_path / "config" / "offsets.json"
    config_files.save(str(path), b'{"a": 1}', Disk())
    config_files.save(str(path), b'{"a": 2}', Disk())
    config_files.save(str(path), b'{"a": 2}', Disk())
    assert path.read_text() == '{"a": 2}'
    assert path.with_name("offsets.json.bak").read_text() == '{"a": 1}'
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["offsets.json", "offsets.json.bak"]


@pytest.mark.parametrize("text", ["", "{", '{"a": ', "\udcff"])
def test_a_config_file_that_cannot_be_read_is_taken_from_the_text_before(tmp_path: Path, text: str) -> None:
    path = tmp_path / "offsets.json"
    config_files.save(str(path), b'{"a": 1}', Disk())
    config_files.save(str(path), b'{"a": 2}', Disk())
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert config_files.load_numbers(str(path), Disk()) == {"a": 1}
    path.with_name("offsets.json.bak").unlink()
    assert config_files.load_numbers(str(path), Disk()) == {}


def test_a_parser_may_refuse_what_it_is_given(tmp_path: Path) -> None:
    def refuse(text: str) -> int:
        raise DecodeError(text)

    config_files.save(str(tmp_path / "x.json"), b"{}", Disk())
    assert config_files.load(str(tmp_path / "x.json"), refuse, Disk()) is None
