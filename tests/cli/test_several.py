"""``rmq verify`` and ``rmq rebuild`` of several stores."""

import json
from pathlib import Path

import pytest

from rmq_cli import main
from tests.support.stores.store_files import tree
from tests.support.stores.verified_stores import sound_store

SIZES = ["--consumequeue-file-bytes", "400", "--index-slots", "50", "--index-entries", "30", "--delay-levels", "1s 5s"]


def rmq(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main.main(list(arguments))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_several_stores_are_verified_and_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        sound_store(tmp_path / name / "store")
    monkeypatch.chdir(tmp_path)
    more = [*SIZES, "--commitlog-file-bytes", "4096", "--workers", "1"]
    assert rmq(capsys, "verify", "*/store", *more)[0] == 0
    (tmp_path / "c" / "store").mkdir(parents=True)
    code, out, _ = rmq(capsys, "verify", "*/store", *more)
    assert code == 1
    assert "c: " in out
    code, out, _ = rmq(capsys, "verify", "a/store", "b/store", "--json", "--report", "r.json", *more)
    assert code == 0
    assert [entry["broker_name"] for entry in json.loads(out)["brokers"]] == ["a", "b"]
    assert json.loads((tmp_path / "r.json").read_text()) == json.loads(out)
    code, out, _ = rmq(capsys, "rebuild", "*/store", "--out", "new", "--json", "--workers", "1", *SIZES)
    assert code == 1
    assert "error" in json.loads(out)["brokers"][2]
    assert tree(tmp_path / "new" / "b" / "consumequeue") == tree(tmp_path / "b" / "store" / "consumequeue")
    code, out, said = rmq(capsys, "verify", "c*/store", *more)
    assert (code, out, len(said.splitlines())) == (2, "", 1)
    assert "Broker c" in said
