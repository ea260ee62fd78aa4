"""Exports of a store with its tier: each message once, wherever it is when it lands."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs import export_delta
from rmq_formats import Store
from rmq_formats.errors import ClusterError, OptionError, RmqError, StoreError
from rmq_lakehouse.exports import ExportLoop

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
BROKER = "1cfb8c9b_GoldenCluster/golden-a"
Place = tuple[str, int, int]


@pytest.fixture(scope="module")
def sent(golden: Callable[[str], Path]) -> list[Place]:
    """Places of the users' messages of the golden store ``tiered``."""
    lines = (golden("tiered") / "expected" / "messages.jsonl").read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return sorted(
        (one["topic"], one["queue_id"], one["queue_offset"]) for one in found if one["topic"] != "SCHEDULE_TOPIC_XXXX"
    )


class TierExporter:
    """Runs the job on a store of one's own with its tier."""

    def __init__(self, spark: SparkSession, store: Path, work: Path) -> None:
        self.spark, self.store = spark, store
        self.table: Path | str = work / "table"

    def run(self, *more: str, tier: bool = True) -> tuple[dict[str, Any], int]:
        """Export."""
        own = ["--tier", str(self.store / "tiered")] if tier else []
        given = export_delta.parser().parse_args(["--store", str(self.store), "--table", str(self.table), *own, *more])
        return export_delta.main(export_delta.check(given), self.spark)

    def places(self) -> list[Place]:
        """What the table has."""
        rows = self.spark.read.format("delta").load(str(self.table)).select("topic", "queue_id", "queue_offset")
        return sorted((row.topic, row.queue_id, row.queue_offset) for row in rows.collect())

    def expire(self, files: int) -> None:
        """Delete the first files of the CommitLog, as a broker does in time."""
        for path in sorted((self.store / "commitlog").iterdir())[:files]:
            path.unlink()

    def segments(self, queue: str, kind: str = "COMMIT_LOG") -> list[Path]:
        """Files of a queue in the tier, by offset."""
        return sorted((self.store / "tiered" / BROKER / queue / kind).iterdir(), key=lambda path: path.name[8:])


@pytest.fixture
def exporter(spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path) -> TierExporter:
    """An exporter of a copy of the golden store ``tiered``."""
    shutil.copytree(golden("tiered") / "store", tmp_path / "store")
    return TierExporter(spark, tmp_path / "store", tmp_path)


def test_a_first_export_makes_a_table_of_a_catalog(exporter: TierExporter, sent: list[Place]) -> None:
    exporter.table = "spark_catalog.default.tier_messages"
    try:
        assert exporter.run()[0]["messages"] == len(sent)
        assert exporter.run()[0]["messages"] == 0
        assert exporter.spark.table("default.tier_messages").count() == len(sent)
    finally:
        exporter.spark.sql("DROP TABLE IF EXISTS default.tier_messages")


@pytest.mark.long
def test_each_message_lands_once_also_when_it_has_moved_to_the_tier(
    exporter: TierExporter, sent: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter.expire(1)
    export_round = ExportLoop.export_round
    with monkeypatch.context() as patch:
        patch.setattr(ExportLoop, "export_round", lambda self: (export_round(self)[0], False))  # one round
        report, code = exporter.run("--mode", "available-now", "--max-messages-per-trigger", "300")
    assert (code, report["messages"]) == (0, 300)
    exporter.expire(1)  # so that some of what is left is in the tier alone now
    report, code = exporter.run()
    assert (code, report["messages"], report["damaged"]) == (0, len(sent) - 300, 0)
    assert exporter.places() == sent
    report, code = exporter.run()
    assert (code, report["messages"], report["files"]) == (0, 0, 0)


def test_what_is_damaged_in_the_tier_is_counted_and_the_rest_lands(exporter: TierExporter, sent: list[Place]) -> None:
    exporter.expire(2)
    segment = exporter.segments("Orders/0")[0]
    data = bytearray(segment.read_bytes())
    data[100] ^= 1  # in the first body
    segment.write_bytes(data)
    report, code = exporter.run("--topics", "Orders")
    orders = [place for place in sent if place[0] == "Orders"]
    assert (code, report["damaged"], report["messages"]) == (1, 1, len(orders) - 1)
    assert set(exporter.places()) < set(orders)


def test_messages_that_neither_has_are_an_error_or_counted(exporter: TierExporter, sent: list[Place]) -> None:
    exporter.expire(2)
    first, *others = exporter.segments("Orders/0")
    for path in [*others, *exporter.segments("Orders/0", "CONSUME_QUEUE")[1:]]:
        path.unlink()
    tier = Store(exporter.store, tier=exporter.store / "tiered", log="tiered")
    (cut,) = tier.query(topic="Orders", queue_id=0, offset=120)
    os.truncate(first, cut.physical_offset)
    told = r"Orders golden-a:0: offsets 120 to .* are missing: deleted before the export"
    with pytest.raises(ClusterError, match=told):
        exporter.run("--topics", "Orders")
    report, code = exporter.run("--topics", "Orders", "--fail-on-data-loss", "false")
    assert code == 1
    assert report["missing_messages"] > 0
    orders = [place for place in sent if place[0] == "Orders"]
    assert len(exporter.places()) + report["missing_messages"] == len(orders)


def test_what_has_expired_in_the_log_before_the_tier_had_it_is_no_damage(
    exporter: TierExporter, sent: list[Place]
) -> None:
    last = max(path.name for path in (exporter.store / "commitlog").iterdir())
    size = (exporter.store / "commitlog" / last).stat().st_size
    exporter.expire(len(list((exporter.store / "commitlog").iterdir())))
    (exporter.store / "commitlog" / f"{int(last) + size:020}").write_bytes(bytes(size))
    shutil.rmtree(exporter.store / "tiered" / BROKER / "Orders" / "0")
    report, code = exporter.run("--topics", "Orders")  # a first export, and what had expired before is none of its own
    others = [place for place in sent if place[0] == "Orders" and place[1] != 0]
    assert (code, report["messages"], report["damaged"]) == (0, len(others), 0)
    assert exporter.places() == others
    report, code = exporter.run("--topics", "Orders")
    assert (code, report["messages"]) == (0, 0)


def test_tables_of_a_store_alone_and_with_its_tier_are_told_apart(exporter: TierExporter, tmp_path: Path) -> None:
    exporter.run("--topics", "Orders")
    with pytest.raises(StoreError, match="is the table of a store of GoldenCluster with its tier, not of one store"):
        exporter.run("--topics", "Orders", tier=False)
    with pytest.raises(StoreError, match="another selection has committed"):
        exporter.run()
    exporter.table = tmp_path / "alone"
    exporter.run("--topics", "Orders", tier=False)
    with pytest.raises(StoreError, match=r"is the table of one store, .*, not of a store with its tier"):
        exporter.run("--topics", "Orders")


@pytest.mark.long
def test_bodies_that_do_not_decode_are_dead_letters_of_both(
    exporter: TierExporter, sent: list[Place], tmp_path: Path
) -> None:
    exporter.expire(2)
    spec = tmp_path / "spec.toml"
    spec.write_text(
        f'[[topics]]\ntopic = "Orders"\ntable = "{tmp_path}/typed"\nformat = "json"\nschema = "a INT"\n', "utf-8"
    )
    report, code = exporter.run("--topics", "Orders", "--typed", str(spec), "--dlq-table", str(tmp_path / "dead"))
    orders = [place for place in sent if place[0] == "Orders"]
    assert (code, report["damaged"]) == (0, 0)
    assert report["undecoded"] + report["exports"]["Orders"] == len(orders)
    assert exporter.places() == orders


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--from-offset", "5"], "--from-offset: with --tier queue offsets choose messages"),
        (["--starting-timestamp", "1"], "--starting-timestamp: with --tier"),
        (["--topics", "Nobody"], "have no topic 'Nobody'"),
        (["--mode", "stream", "--checkpoint", "x"], "--checkpoint is for streams of one store"),
    ],
)
def test_arguments_that_cannot_be_are_told(exporter: TierExporter, more: list[str], error: str) -> None:
    with pytest.raises(OptionError, match=error):
        exporter.run(*more)
    shutil.rmtree(exporter.store / "tiered")
    with pytest.raises(RmqError, match="no tiered storage"):
        exporter.run("--topics", "Orders")


@pytest.mark.long
def test_a_table_that_was_restored_is_refused(exporter: TierExporter) -> None:
    exporter.run("--topics", "Orders")
    exporter.spark.sql(f"RESTORE TABLE delta.`{exporter.table}` TO VERSION AS OF 0")
    with pytest.raises(StoreError, match=r"table was restored: .*; give another table"):
        exporter.run("--topics", "Orders")
