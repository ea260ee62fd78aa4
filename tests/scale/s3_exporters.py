"""Exports to a table in an object store, and an import from it into a store there, in a session with S3A.

``python -m tests.scale.s3_exporters TABLE STORE WORK`` prints what came of it as one JSON object.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs import import_delta
from rmq_formats.errors import StoreLockedError
from rmq_formats.spark import session
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import plain, write
from tests.lakehouse.test_exactly_once import meanwhile


def main(table: str, store: str, work: Path) -> dict[str, Any]:
    """Two exporters, the second of which begins between the first one's look and its commit; then an import."""
    logging.basicConfig(filename=work / "log")
    spark = session("s3", master="local[2]", spark_sql_shuffle_partitions="2")
    spark.sparkContext.setLogLevel("OFF")
    exporter = Exporter(spark, work / "store", work)
    exporter.table = table  # type: ignore[assignment] # the job takes either
    placed = write(exporter.store, plain(30))
    exporter.run("--ending-physical-offset", str(placed[10]))
    refused = []

    def another() -> None:
        try:
            exporter.run()
        except StoreLockedError as error:
            refused.append(str(error))

    with pytest.MonkeyPatch.context() as patch:
        meanwhile(patch, another)
        counts = [exporter.run()[0]["messages"]]
    counts.append(exporter.run()[0]["messages"])
    frame = spark.read.format("delta").load(table)
    once = sorted(row.physical_offset for row in frame.select("physical_offset").collect()) == placed
    exporter.table = work / "local"
    exporter.run("--ending-physical-offset", str(placed[10]))
    exporter.run()
    small = ["--commitlog-file-bytes", "4096", "--consumequeue-file-bytes", "400", "--index-slots", "50"]
    given = import_delta.parser().parse_args(["--table", table, "--store", store, *small, "--index-entries", "20"])
    import_delta.check(given)
    return {
        "once": once, "counts": counts, "refused": refused, "warned": (work / "log").read_text(),
        "files": [name.rpartition("/")[2] for name in frame.inputFiles()],
        "same": frame.orderBy("physical_offset").collect() == exporter.rows("local"),
        "stats": [stats(spark, place) for place in (table, str(exporter.table))],
        "imported": import_delta.main(given, spark)[0]["messages"],
    }  # fmt: skip


def stats(spark: SparkSession, table: str) -> list[str]:
    """What the table's log says of each file, but for its name and time."""
    added = spark.read.json(f"{table}/_delta_log/*.json").where("add IS NOT NULL")
    rows = added.selectExpr("to_json(add.partitionValues) || add.stats || add.size AS told").collect()
    return sorted(row.told for row in rows)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:3], Path(sys.argv[3]))) + "\n")
