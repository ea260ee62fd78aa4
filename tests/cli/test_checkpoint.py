"""``rmq checkpoint``: a checkpoint that makes the next start short, where the store proves it."""

import json
import os
from pathlib import Path

import pytest

from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.storage.store_files import LOG_PATHS_VARIABLE
from rmq_offline.diagnosis import recovery
from rmq_offline.repair import checkpoint
from tests.cli.conftest import Rmq, one_line
from tests.support.stores.store_files import tree
from tests.support.stores.store_with_queues import write_log, write_queue
from tests.support.stores.verified_stores import FIRST_MS, copied, patch, sound_store

SIZES = ("--delay-levels", "1s 5s", "--workers", "1")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoint") / "store"
    sound_store(root, 200)
    (root / "checkpoint").write_bytes(Checkpoint(FIRST_MS, FIRST_MS, FIRST_MS).encode())
    return root


@pytest.fixture
def store(base: Path, tmp_path: Path) -> Path:
    root = copied(base, tmp_path / "store")
    (root / "abort").touch()
    return root


def test_a_plan_writes_nothing(rmq: Rmq, store: Path) -> None:
    before = tree(store)
    done = rmq("checkpoint", store, *SIZES)
    assert done.exit_code == 1
    assert f"next: rmq checkpoint {store} --apply" in done.stdout
    assert tree(store) == before


def test_a_checkpoint_makes_the_next_start_short(rmq: Rmq, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_SAFETY_MS", 3)  # the messages have a millisecond each
    former = (store / "checkpoint").read_bytes()
    done = rmq("checkpoint", store, *SIZES, "--apply", "--json")
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert (report["before"]["files"], report["after"]["files"]) == (len(list((store / "commitlog").iterdir())), 1)
    written = Checkpoint.decode((store / "checkpoint").read_bytes())
    assert written.physic_msg_timestamp_ms == written.logics_msg_timestamp_ms == FIRST_MS + 199
    assert Path(report["quarantine"]).read_bytes() == former
    assert json.loads(rmq("inspect", store, "--json").stdout)["start"]["files"] == 1


def test_the_log_and_queues_of_other_file_systems_are_flushed_before_it(
    rmq: Rmq, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(checkpoint, "sync_file_system", lambda directory: flushed.append(os.path.realpath(directory)))
    monkeypatch.setenv(LOG_PATHS_VARIABLE, "{}")
    (store / "commitlog").rename(tmp_path / "log")
    (store / "consumequeue").rename(tmp_path / "queues")
    (store / "consumequeue").symlink_to(tmp_path / "queues")
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={store}\nstorePathCommitLog={tmp_path / 'log'}\n")
    assert rmq("checkpoint", store, *SIZES, "-c", conf, "--apply").exit_code == 0
    assert {str(tmp_path / "log"), str(tmp_path / "queues"), str(store)} <= set(flushed)


def test_a_store_that_does_not_prove_it_gets_none(rmq: Rmq, store: Path) -> None:
    patch(store / "consumequeue" / "Orders" / "0" / f"{0:020d}", 7, b"\x07")
    before = (store / "checkpoint").read_bytes()
    done = rmq("checkpoint", store, *SIZES, "--apply")
    assert done.exit_code == 1
    assert "not written" in done.stdout
    assert f"next: rmq verify {store}" in done.stdout
    assert (store / "checkpoint").read_bytes() == before


def test_findings_end_with_the_next_command(rmq: Rmq, store: Path) -> None:
    patch(store / "consumequeue" / "Orders" / "0" / f"{0:020d}", 7, b"\x07")
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_text('{"topicConfigTable":{"Clicks":{},"Orders":{}}}')
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Orders@g":{0:900}}}')
    lines = rmq("verify", store, *SIZES).stdout.splitlines()
    assert [line for line in lines if line.startswith("next: ")] == [
        f"next: rmq repair {store} --plan --delay-levels '1s 5s'", f"next: rmq offsets {store} clamp",
    ]  # fmt: skip


def test_a_fault_that_no_command_repairs_has_no_next_command(rmq: Rmq, tmp_path: Path) -> None:
    write_queue(tmp_path, dict(enumerate(write_log(tmp_path, [*range(9), *range(12, 20)]))))
    assert rmq("rebuild", tmp_path, "--what", "index", "--workers", "1").exit_code == 0
    done = rmq("verify", tmp_path, *SIZES)
    assert (done.exit_code, "commitlog.queue_offset.gap" in done.stdout, "next: " in done.stdout) == (1, True, False)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text("{")
    done = rmq("verify", tmp_path, *SIZES)
    assert [line for line in done.stdout.splitlines() if line.startswith("next: ")] == [
        f"next: rmq repair {tmp_path} --what config"
    ]


def test_a_uri_is_refused(rmq: Rmq) -> None:
    assert "local disk" in one_line(rmq("checkpoint", "s3://bucket/store").stderr)
