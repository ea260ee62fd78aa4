"""Damage, missing parts, mixtures of layouts, over all offline commands: findings or one line, and nothing changed."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Rmq
from tests.layouts.conftest import Untouched

Golden = Callable[[str], Path]
Damage = Callable[[Path, Golden], object]
QUEUES = "batchconsumequeue/BatchOrders/0/*"
DATA = "dledger-n0/data/*"


def files(store: Path, pattern: str) -> list[Path]:
    found = sorted(store.glob(pattern))
    assert found
    return found


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def put(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at if at >= 0 else path.stat().st_size + at)
        file.write(data)


def of_tomorrow(store: Path, _: Golden) -> None:
    """Tables of a format that the library does not know yet."""
    for path in files(store, "consumequeue/*.sst"):
        put(path, -12, (99).to_bytes(4, "little"))


DAMAGES: dict[str, tuple[str, Damage]] = {
    "an entry is cut": ("dledger", lambda store, _: cut(files(store, DATA)[-1], 5000)),
    "an entry's head is gone": ("dledger", lambda store, _: put(files(store, DATA)[0], 293, bytes(48))),
    "a file of entries is missing": ("dledger", lambda store, _: files(store, DATA)[2].unlink()),
    "the index of entries is missing": ("dledger", lambda store, _: shutil.rmtree(store / "dledger-n0" / "index")),
    "DLedger's texts are none": (
        "dledger",
        lambda store, _: [
            (store / "dledger-n0" / name).write_bytes(b"\xff\0\n") for name in ("checkpoint", "currterm")
        ],
    ),
    "the new half overlaps the old": (
        "dledger_mixed",
        lambda store, _: shutil.copy(files(store, DATA)[0], store / "commitlog"),
    ),
    "a batch queue is cut": ("bcq", lambda store, _: cut(files(store, QUEUES)[0], 461)),
    "a file of a batch queue is missing": ("bcq", lambda store, _: files(store, QUEUES)[1].unlink()),
    "a batch topic has plain queues too": (
        "bcq",
        lambda store, _: shutil.copytree(store / "consumequeue" / "Orders", store / "consumequeue" / "BatchOrders"),
    ),
    "offsets of light queues are none": (
        "lmq",
        lambda store, _: (store / "config" / "lmqConsumerOffset.json").write_text('{"lmqOffsetTable":{"a":"x"}}'),
    ),
    "CURRENT names no MANIFEST": (
        "rocksdb",
        lambda store, _: (store / "consumequeue" / "CURRENT").write_text("MANIFEST-999999\n"),
    ),
    "the MANIFEST is cut": (
        "rocksdb",
        lambda store, _: [cut(path, 60) for path in files(store, "consumequeue/MANIFEST-*")],
    ),
    "the RocksDB is of a newer version": ("rocksdb", of_tomorrow),
    "topics in RocksDB are damaged": (
        "rocksdb",
        lambda store, _: [cut(path, 60) for path in files(store, "config/topics/MANIFEST-*")],
    ),
    "config is of v1 and of v2": (
        "rocksdb",
        lambda store, golden_copy: shutil.copytree(
            golden_copy("rocksdb_lmq") / "config" / "rdb", store / "config" / "rdb"
        ),
    ),
    "files stand beside the RocksDB": (
        "rocksdb",
        lambda store, golden_copy: shutil.copytree(
            golden_copy("lmq") / "consumequeue" / "Orders", store / "consumequeue" / "Orders"
        ),
    ),
}
COMMANDS = {
    "inspect": ("inspect", "STORE"),
    "dump": ("dump", "STORE", "--limit", 3),
    "dump of queues": ("dump", "STORE/consumequeue", "--limit", 3),
    "query": ("query", "STORE", "--topic", "Orders", "--queue", 0, "--offset", 3),
    "verify": ("verify", "STORE", "--workers", 1),
    "rebuild": ("rebuild", "STORE", "--out", "OUT", "--workers", 1),
    "repair": ("repair", "STORE"),
    "classic": ("convert", "STORE", "--to", "classic", "--out", "NEW", "--workers", 1),
    "rocksdb": ("convert", "STORE", "--to", "rocksdb", "--out", "NEW", "--workers", 1),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_command_has_findings_or_one_line(
    name: str, rmq: Rmq, golden_copy: Golden, untouched: Untouched, tmp_path: Path
) -> None:
    golden, damage = DAMAGES[name]
    store = golden_copy(golden)
    damage(store, golden_copy)
    words = {"STORE": str(store), "OUT": str(tmp_path / "out"), "NEW": str(tmp_path / "new")}
    codes = {}
    for command, arguments in COMMANDS.items():
        given = [words.get(str(word), str(word).replace("STORE", str(store))) for word in arguments]
        for place in ("out", "new"):
            shutil.rmtree(tmp_path / place, ignore_errors=True)
        with untouched(store):
            result = rmq(*given)
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exc_info)
        assert "Traceback" not in result.output
        codes[command] = result.exit_code
        if result.exit_code == 2:
            assert (result.stdout, len(result.stderr.splitlines())) == ("", 1), (command, result.output)
            assert not (tmp_path / "new").exists()
    assert set(codes.values()) <= {0, 1, 2}
    assert codes["verify"] != 0 or "not checked" in rmq("verify", store, "--json").stdout, codes
