from pathlib import Path

import pytest

from rmq_core.namesrv.kv_config import KVConfig
from rmq_formats.errors import StoreError


def test_values_are_kept_in_java_s_own_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kvConfig.json"
    kv = KVConfig(path)
    assert kv.get("N", "k") is None
    kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    assert path.read_bytes() == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}'
    kv.put("ORDER_TOPIC_CONFIG", "U", "broker-b:4")
    kv.delete("ORDER_TOPIC_CONFIG", "T")
    again = KVConfig(path)
    assert again.get("ORDER_TOPIC_CONFIG", "U") == "broker-b:4"
    assert again.table("ORDER_TOPIC_CONFIG") == {"U": "broker-b:4"}
    assert [entry.name for entry in path.parent.iterdir()] == ["kvConfig.json"]


def test_a_namespace_stays_when_its_last_key_goes(tmp_path: Path) -> None:
    kv = KVConfig(tmp_path / "kv.json")
    assert kv.table("N") is None
    kv.delete("N", "k")
    assert kv.table("N") is None
    assert not (tmp_path / "kv.json").exists()
    kv.put("N", "k", "v")
    kv.delete("N", "k")
    assert kv.table("N") == {}


def test_a_file_of_java_s_without_a_table_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    for text in ("{}", '{"configTable":null}', '{"configTable":{}}'):
        path.write_text(text)
        assert KVConfig(path).table("N") is None


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"configTable":5}'])
def test_a_damaged_file_is_told_and_not_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kv.json"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=str(path)):
        KVConfig(path)
    assert path.read_bytes() == content


def test_a_directory_in_its_place_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        KVConfig(tmp_path)


def test_a_change_that_cannot_be_written_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kv.json"
    kv = KVConfig(path)
    kv.put("N", "k", "v")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        kv.put("N", "k", "w")
    with pytest.raises(StoreError):
        kv.delete("N", "k")
    assert kv.get("N", "k") == "v"
    assert KVConfig(path).get("N", "k") == "v"
    assert [entry.name for entry in tmp_path.iterdir()] == ["kv.json"]
