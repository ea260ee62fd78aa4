"""Verification of other layouts: what can be compared is sound, the rest is "not checked, because"."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from rmq_offline.verify.report import VerifyReport
from tests.cli.conftest import Rmq
from tests.conftest import MIXED_DELAY_LEVELS
from tests.layouts.conftest import Untouched
from tests.support.stores.rebuilt_stores import rebuild, small_store

NOT_CHECKED = {  # codes, and words of one finding's detail
    "tiered": ({"store.not_checked"}, "tiered storage"),
}
Golden = Callable[[str], Path]


def verify(store: Path) -> VerifyReport:
    return verify_store(str(store), VerifyOptions(), ProcessRunner(1))


def not_checked(report: VerifyReport) -> dict[str, str]:
    return {item.kind.code: item.detail for item in report.findings if item.kind.code.endswith("not_checked")}


@pytest.mark.parametrize("name", NOT_CHECKED)
def test_what_is_checked_is_sound(name: str, rmq: Rmq, golden: Golden, untouched: Untouched) -> None:
    store = golden(name) / "store"
    codes, words = NOT_CHECKED[name]
    with untouched(store):
        result = rmq("verify", store, "--json", "--delay-levels", MIXED_DELAY_LEVELS, "--workers", 1)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    told = [item for item in report["findings"] if item["code"].endswith(".not_checked")]
    assert {item["code"] for item in told} == codes
    assert all(item["detail"].startswith("not checked, because ") and (item["path"] or item["topic"]) for item in told)
    assert any(words in item["detail"] for item in told)
    assert report["messages"] == len((golden(name) / "expected" / "messages.jsonl").read_text("utf-8").splitlines())
    assert report["clean"]


@pytest.mark.parametrize("name", NOT_CHECKED)
def test_people_are_told_why_on_screen_and_page(name: str, rmq: Rmq, golden: Golden, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = rmq(
        "verify", golden(name) / "store", "--html", page, *("--delay-levels", MIXED_DELAY_LEVELS, "--workers", 1)
    )
    assert result.exit_code == 0, result.output
    assert ": not checked, because " in " ".join(result.stdout.split())
    assert NOT_CHECKED[name][1] in " ".join(result.stdout.split())
    assert "what is checked is sound" in result.stdout
    assert "not checked, because" in page.read_text("utf-8")


@pytest.mark.parametrize("name", ["rocksdb_crash", "rocksdb_lmq"])
def test_damage_beside_a_rocksdb_is_found_and_no_rebuild_of_queues_advised(name: str, golden_copy: Golden) -> None:
    store, lost = golden_copy(name), {"rocksdb_crash": set(), "rocksdb_lmq": {"consumequeue.unit.lost"}}[name]
    path = store / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[20_000] ^= 0x5A
    path.write_bytes(data)
    (index,) = (store / "index").iterdir()
    index.unlink()
    report = verify(store)
    found = {kind.code for kind, _ in report.kinds() if not kind.code.endswith("not_checked")}
    assert {"index.missing"} < found
    assert any(code.startswith("commitlog.") for code in found)
    assert {code for code in found if code.startswith("consumequeue.")} - {"consumequeue.unit.undispatched"} == lost
    assert not any("consumequeue" in kind.remedy or "rmq rebuild;" in kind.remedy for kind, _ in report.kinds())


def test_batch_topics_without_their_config_are_told_by_their_records(golden_copy: Golden) -> None:
    store = golden_copy("bcq")
    shutil.rmtree(store / "batchconsumequeue")
    for path in (store / "config").glob("topics.json*"):
        path.unlink()
    missing = [item for item in verify(store).findings if item.kind.code == "consumequeue.missing"]
    assert {item.topic for item in missing} == {"BatchOrders", "BatchClicks"}
    assert not (store / "consumequeue" / "BatchOrders").exists()


def test_a_broker_may_have_no_light_queues_whatever_its_records_say(golden_copy: Golden) -> None:
    store = golden_copy("lmq")
    (store / "config" / "lmqConsumerOffset.json").unlink()
    for path in (store / "consumequeue").glob("%LMQ%*"):
        shutil.rmtree(path)
    report = verify(store)
    assert "light queues (LMQ)" in not_checked(report)["consumequeue.not_checked"]
    assert not any(kind.code.startswith("consumequeue.unit") for kind, _ in report.kinds())


def test_a_checkpoint_of_newer_brokers_has_a_sixth_number(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    rebuild(store)
    (store / "checkpoint").write_bytes(bytes(40) + (77).to_bytes(8, "big") + bytes(4048))
    assert "checkpoint.trailing" in {kind.code for kind, _ in verify(store).kinds()}
    (store / "rocksdbstore").mkdir()
    assert not {"checkpoint.trailing", "checkpoint.later"} & {kind.code for kind, _ in verify(store).kinds()}
    (store / "checkpoint").write_bytes(bytes(40) + (1 << 40).to_bytes(8, "big") + bytes(4048))
    assert "checkpoint.later" in {kind.code for kind, _ in verify(store).kinds()}
    (store / "checkpoint").write_bytes(bytes(48) + b"\1" + bytes(4047))
    assert "checkpoint.trailing" in {kind.code for kind, _ in verify(store).kinds()}
