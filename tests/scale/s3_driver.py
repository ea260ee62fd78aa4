"""A driver of its own that exports to tables in an object store, and waits for its turn before it commits.

``python -m tests.scale.s3_driver WORK`` takes the path of a table on each line of its input. Where an export is about
to commit for the first time it says ``ready``, and goes on when the next line has come; then it tells how it ended.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

from rmq_formats.errors import StoreError
from rmq_formats.spark import session
from rmq_lakehouse.delta.table import DeltaTransaction
from tests.lakehouse.exported_stores import Exporter


def main(work: Path) -> None:
    """Export the store ``store`` in ``work`` to one table after another."""
    spark = session("s3", master="local[1]", spark_sql_shuffle_partitions="1", spark_ui_enabled="false")
    spark.sparkContext.setLogLevel("OFF")
    exporter = Exporter(spark, work / "store", work)
    commit, waits = DeltaTransaction.commit, [False]

    def with_turns(self: DeltaTransaction, *arguments: Any) -> None:
        if waits.pop():
            tell("ready")
            sys.stdin.readline()
        waits.append(False)
        commit(self, *arguments)

    DeltaTransaction.commit = with_turns  # type: ignore[method-assign] # a seam
    tell("here")
    for line in sys.stdin:
        exporter.table = line.strip()  # type: ignore[assignment] # the job takes either
        waits[:] = [True]
        try:
            report, code = exporter.run()
            tell(json.dumps({"code": code, "messages": report["messages"]}))
        except StoreError as error:
            tell(json.dumps({"code": 2, "error": str(error)}))


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    main(Path(sys.argv[1]))
