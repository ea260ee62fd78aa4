"""Exports to a table in an object store, in a session with S3A: ``python -m tests.scale.s3_exporters TABLE WORK``.

Prints what came of it as one JSON object.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from rmq_formats.errors import StoreLockedError
from rmq_formats.spark import session
from tests.lakehouse.exported_stores import Exporter, plain, write
from tests.lakehouse.test_exactly_once import meanwhile


def main(table: str, work: Path) -> dict[str, Any]:
    """Two exporters, the second of which begins between the first one's look and its commit."""
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
    rows = spark.read.format("delta").load(table).select("physical_offset").collect()
    once = sorted(row.physical_offset for row in rows) == placed
    return {"once": once, "counts": counts, "refused": refused, "warned": (work / "log").read_text()}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], Path(sys.argv[2]))) + "\n")
