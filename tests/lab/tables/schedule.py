"""The part ``tables``: exports into Delta tables between which logs are cut, and tables are changed by others.

After each export that succeeds, each table holds what the model says: the records of the log, once, but for rows
that were deleted on purpose. One that is refused gives one clear line, for a reason that the round knows, and changes
nothing.
"""

from collections import defaultdict
from functools import cache

from pyspark.sql import SparkSession

from rmq_formats.spark import session
from tests.lab.rounds import Round
from tests.lab.tables.changes import CHANGES, Changes, Reasons
from tests.lab.tables.exports import Exports
from tests.lab.tables.model import ModelLog, ModelTable, forget

_STEPS = 12
_KINDS = (("raw",), ("raw",), ("raw", "keyed", "dead"), ("typed", "dead"), ("keyed",))
_SETTINGS = {
    "spark_sql_shuffle_partitions": "2", "spark_sql_codegen_wholeStage": "false",
    "spark_sql_codegen_factoryMode": "NO_CODEGEN", "spark_python_authenticate_socketTimeout": "120s",
}  # fmt: skip


def play(one: Round) -> None:
    """Run one schedule over one store and its tables."""
    spark = _session()
    kinds = one.dice.choice(_KINDS)
    tables = [ModelTable(kind, one.work / kind) for kind in kinds]
    log = ModelLog(one.work / "store")
    reasons: Reasons = defaultdict(set)
    changes = Changes(one, spark, log, tables, reasons)
    exports = Exports(one, spark, log, tables, reasons, changes.append)
    one.step(f"tables: {', '.join(kinds)}")
    changes.append()
    exports.export()
    try:
        for _ in range(_STEPS):
            one.case()
            if one.dice.random() < 0.5:
                changes.any_of(CHANGES)
                continue
            exports.any()
        exports.settle()
    finally:
        forget(spark)


@cache
def _session() -> SparkSession:
    """The process's session; one more would cost a JVM."""
    spark = SparkSession.getActiveSession()
    if spark is None:
        spark = session("lab", master="local[2]", **_SETTINGS)
        spark.sparkContext.setLogLevel("OFF")  # rounds provoke errors, and read them
    return spark
