"""Several stores in one run: common batches, a report by broker, and a broken store that stops no other."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs import rebuild as rebuild_job
from jobs import verify as verify_job
from rmq_formats.errors import OptionError, StoreError
from rmq_offline.rebuild.stores import rebuild_stores
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.stores import brokers_findings_table, verify_stores
from tests.support.stores.store_files import tree
from tests.support.stores.verified_stores import REBUILT, SIZES, sound_store, verify


class CountingRunner(ProcessRunner):
    """Runner that notes how many tasks each batch has."""

    def __init__(self) -> None:
        super().__init__(1)
        self.batches: list[int] = []

    def map(self, function: Callable[[Any], Any], arguments: Sequence[Any], on_done: Any = None) -> list[Any]:
        """Apply ``function`` to each argument."""
        self.batches.append(len(arguments))
        return super().map(function, arguments, on_done)


@pytest.fixture
def brokers(tmp_path: Path) -> Path:
    """Directory with sound stores of the brokers a and b, and of c one without a log."""
    for name in ("a", "b"):
        sound_store(tmp_path / name / "store")
    (tmp_path / "c" / "store").mkdir(parents=True)
    return tmp_path


def test_stores_are_verified_in_common_waves_and_a_broken_one_is_named(brokers: Path) -> None:
    queue_file = next((brokers / "b" / "store" / "consumequeue" / "Orders" / "0").iterdir())
    queue_file.write_bytes(b"\1" + queue_file.read_bytes()[1:])
    runner = CountingRunner()
    report = verify_stores([str(brokers / "*" / "store")], SIZES, runner)
    alone = verify(brokers / "a" / "store")
    assert len(runner.batches) == 2
    assert [store.broker for store, _ in report.reports] == ["a", "b"]
    assert report.failed[0][0].broker == "c"
    assert "holds no store" in report.failed[0][1]
    by_name = {entry["broker_name"]: entry for entry in report.to_dict()["brokers"]}
    assert by_name["a"]["clean"]
    assert by_name["a"]["messages"] == alone.messages
    assert not by_name["b"]["clean"]
    assert by_name["c"]["error"] == report.failed[0][1]
    assert report.to_dict()["messages"] == 2 * alone.messages
    table = brokers_findings_table(report)
    assert {row["broker_name"] for row in table.to_pylist() if row["severity"] == "error"} == {"b"}


def test_where_no_store_can_be_read_it_is_an_error(brokers: Path) -> None:
    with pytest.raises(StoreError, match=r"verify: failed.* Broker c: .*holds no store"):
        verify_stores([str(brokers / "c*" / "store")], SIZES, ProcessRunner(1))


def test_stores_are_rebuilt_as_each_one_alone(brokers: Path, tmp_path: Path) -> None:
    wanted = tree(brokers / "a" / "store" / "consumequeue")
    for name in ("a", "b"):
        shutil.rmtree(brokers / name / "store" / "consumequeue")
    runner = CountingRunner()
    report = rebuild_stores([str(brokers / "*" / "store")], None, lambda _: REBUILT, runner)
    assert len(runner.batches) == 2
    assert [store.broker for store, _ in report.failed] == ["c"]
    for name in ("a", "b"):
        assert tree(brokers / name / "store" / "consumequeue") == wanted
    out = tmp_path / "out"
    rebuild_stores([str(brokers / "a" / "store"), str(brokers / "b" / "store")], str(out), lambda _: REBUILT, runner)
    assert {path.name for path in out.iterdir()} == {"a", "b"}
    assert tree(out / "b" / "consumequeue") == wanted


@pytest.mark.spark
@pytest.mark.long
def test_the_jobs_take_several_stores(spark: SparkSession, brokers: Path, tmp_path: Path) -> None:
    pattern = str(brokers / "*" / "store")
    sizes = ["--consumequeue-file-bytes", "400", "--index-slots", "50", "--index-entries", "30"]
    sizes += ["--consumequeue-ext-file-bytes", "0", "--delay-levels", "1s 5s"]
    findings = tmp_path / "findings.json"
    given = verify_job.parser().parse_args(
        ["--store", pattern, *sizes, "--commitlog-file-bytes", "4096", "--findings", str(findings)]
    )
    verify_job.check(given)
    report, code = verify_job.main(given, spark)
    assert code == 1
    assert [entry["broker_name"] for entry in report["brokers"]] == ["a", "b", "c"]
    assert findings.exists()
    given = rebuild_job.parser().parse_args(
        ["--store", str(brokers / "a" / "store"), "--store", str(brokers / "b" / "store"), *sizes]
    )
    rebuild_job.check(given)
    report, code = rebuild_job.main(given, spark)
    assert code == 0
    assert [entry["broker_name"] for entry in report["brokers"]] == ["a", "b"]
    with pytest.raises(OptionError, match="is a page of one store"):
        verify_job.check(verify_job.parser().parse_args(["--store", pattern, "--html", str(tmp_path / "x.html")]))
